"""Switches for promises (invariants) that the model checks.

The switch of a promise that the product does not keep yet is False.
"""

#: Readers of the branch main never see columns of an unpublished version. The run that wrote it may have died, may have
#: lost against another run, or may still be running.
COLUMNS_CHANGE_WITH_THE_PUBLISH = True
#: The typed columns of a past version equal its JSON, even if its base (the version that it extends) had other columns.
PAST_VERSIONS_HAVE_THE_SHAPE_OF_THEIR_SCHEMA = True
#: Stores with inferred columns may mix objects with other values, and with objects that have only null fields.
VALUES_OF_ANY_KIND = True
#: Names of JSON fields may differ only in case.
NAMES_THAT_DIFFER_IN_CASE = True
#: A branch starts from the version that the run has read, even if another run publishes before the branch is created.
BRANCHES_BEGIN_WHERE_THE_RUN_LOOKED = True
#: A column that is renamed because of a fixed column (``offset`` becomes ``offset_``) keeps its values when another
#: column is widened.
NAMES_OF_FIXED_COLUMNS = True
