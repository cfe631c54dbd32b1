"""The SQL statements that change a table's columns. Each one is a commit to the table, so there must be few."""

from holdfast.assets.spark.shapes import Shape, _statements
from holdfast.processors.engine.schema.evolution import Add, Drop, Rename, Replace, Widen
from holdfast.processors.engine.schema.types import Number, Scalar


def test_columns_that_are_added_share_one_statement():
    steps = (
        Rename(("x",), "y"),
        Drop(("z",)),
        Add(("a",), Scalar("bigint")),
        Add(("s", "b"), Scalar("string")),
        Widen(("d",), Number(20, 2)),
        Replace(("c",), Scalar("double")),
        Add(("e",), Scalar("date")),
    )
    shape = Shape(1, 2, "digest", steps, (("a", "it's a"), ("c", "C"), ("y", "not asked for")))
    assert list(_statements(shape)) == [
        "RENAME COLUMN `x` TO `y`",
        "DROP COLUMN `z`",
        "ADD COLUMNS (`a` bigint COMMENT 'it\\'s a', `s`.`b` string)",
        "ALTER COLUMN `d` TYPE decimal(20,2)",
        "DROP COLUMN `c`",
        "ADD COLUMNS (`c` double COMMENT 'C')",
        "ADD COLUMNS (`e` date)",
    ]
