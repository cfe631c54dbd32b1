"""Promises that the model can check, and that the product does not keep yet: set one to True once it does."""

#: 6: Readers of main never see the columns of a version that is not published, whether its run died, lost or goes on.
COLUMNS_CHANGE_WITH_THE_PUBLISH = True
#: 7: The typed columns of a past version are what its JSON says, also where the base had another shape.
PAST_VERSIONS_HAVE_THE_SHAPE_OF_THEIR_SCHEMA = True
#: 8: Values that are no objects, and objects whose names are all null, in an inferred store that has other values.
VALUES_OF_ANY_KIND = True
#: 8: Names that differ in case alone.
NAMES_THAT_DIFFER_IN_CASE = True
#: A branch begins with the version that was looked at before, though another run publishes between look and branch.
BRANCHES_BEGIN_WHERE_THE_RUN_LOOKED = True
#: 3: Columns whose names differ from the JSON's (``offset`` is ``offset_``) keep their values when another one widens.
NAMES_OF_FIXED_COLUMNS = True
