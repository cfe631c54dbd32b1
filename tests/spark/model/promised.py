"""Switches for promises that the model checks: a promise that the product does not keep yet is False."""

#: 6: Readers of main never see columns of an unpublished version, whether its run died, lost or still runs.
COLUMNS_CHANGE_WITH_THE_PUBLISH = True
#: 7: The typed columns of a past version equal its JSON, even if its base had other columns.
PAST_VERSIONS_HAVE_THE_SHAPE_OF_THEIR_SCHEMA = True
#: 8: Inferred stores may mix objects with values that are not objects, and with objects that have only null fields.
VALUES_OF_ANY_KIND = True
#: 8: Field names may differ only in case.
NAMES_THAT_DIFFER_IN_CASE = True
#: A branch starts from the version that the run looked at, even if another run publishes before the branch is made.
BRANCHES_BEGIN_WHERE_THE_RUN_LOOKED = True
#: 3: Columns that are renamed because of a fixed column (``offset`` is ``offset_``) keep their values when another
#: column widens.
NAMES_OF_FIXED_COLUMNS = True
