"""Table metadata that is read without Spark equals what Spark reports."""

import pytest

from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.catalog.metadata import exists, metadata_of, view_queries
from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.processors.snapshots.names import history_name, quoted, table_name, views_of


def as_spark_says(spark, table):
    """The versions (Iceberg snapshots) of a table according to Spark's queries."""
    found = spark.sql(
        "SELECT snapshot_id, parent_id, unix_micros(committed_at) AS at, summary, operation "
        f"FROM {quoted(table)}.snapshots"
    ).collect()
    refs = spark.sql(f"SELECT name, type, snapshot_id FROM {quoted(table)}.refs").collect()
    return versions.Versions(
        {row["snapshot_id"]: {**row["summary"], "operation": row["operation"]} for row in found},
        {row["snapshot_id"]: row["parent_id"] for row in found},
        {row["snapshot_id"]: row["at"] / 1e6 for row in found},
        {row["name"]: (row["type"], row["snapshot_id"]) for row in refs},
    )


@pytest.mark.thorough
def test_versions_branches_tags_and_properties_are_those_that_spark_says(changelog):
    spark, table = changelog.spark, table_name(changelog.processor, "s")
    changelog.write(0, [(b"a", 1), (b"b", 2)])
    first = changelog.snapshot()
    changelog.write(0, [(b"a", 3)])
    changelog.snapshot()
    versions.new_branch(spark, table, "0123456789abcdef", version=first.version)
    versions.set_tag(spark, table, "by-another", first.version)
    # The table has compressed metadata files, and a property whose value contains quotes.
    properties = """'write.metadata.compression-codec'='gzip', 'quoted'='so "so"'"""
    spark.sql(f"ALTER TABLE {quoted(table)} SET TBLPROPERTIES ({properties})")
    for name in (table, history_name(changelog.processor, "s")):
        seen = versions.Versions.of(spark, name)
        assert seen == as_spark_says(spark, name)
        assert len(seen.summaries) >= 2
    assert metadata_of(spark, table).properties["quoted"] == 'so "so"'


def test_a_table_that_is_not_there_and_a_view(changelog):
    spark = changelog.spark
    view, _ = views_of(changelog.processor, "s")
    missing = table_name(changelog.processor, "missing")
    assert (exists(spark, missing), view_queries(spark, view)) == (False, frozenset())
    with pytest.raises(TableUnknown, match=f"no table {changelog.processor}.missing"):
        metadata_of(spark, missing)
    changelog.write(0, [(b"a", 1)])
    changelog.snapshot()
    assert exists(spark, view)
    (query,) = view_queries(spark, view)
    assert spark.sql(query).columns == spark.table(quoted(view)).columns
