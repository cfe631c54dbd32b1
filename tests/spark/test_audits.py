"""Audits of a table that Spark wrote (Iceberg v3, deletion vectors): Spark and Python find the same differing keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.assets.spark.audit import FrameCopies
from holdfast.assets.spark.fingerprint import bucket_sums
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.versions import table_version
from holdfast.processors.audits.comparison import Copy, Entry, Moment, Odd, Place, Side, compare_copies
from holdfast.processors.audits.copies import ChangelogCopy, StoreCopy, TableCopy
from holdfast.processors.audits.tables import tabled
from holdfast.processors.engine.state.buckets import bucket_of
from tests.bench.warehouse_data import PARTITIONS, STORE, Data, key_of, value_of

KEYS = 400
AT = Place("an id", 7)
#: Keys of partition 0 at which tests plant a difference: a wrong value, a missing key, an extra key, a duplicate.
WRONG, MISSING, EXTRA, DOUBLED = key_of(0), key_of(4), key_of(40_000), key_of(8)


class Rows:
    def __init__(self, settings: Settings, namespace: str, partition: int) -> None:
        self._settings, self._namespace, self._partition = settings, namespace, partition

    def __iter__(self) -> Any:
        return table_version(self._settings.paths, self._namespace, STORE).pairs(self._partition)


@pytest.fixture(scope="module")
def namespace(spark: Any, unique: Callable[[str], str]) -> str:
    """A namespace with a table of the test data, written by Spark."""
    name = unique("audited")
    spark.sql(f"CREATE NAMESPACE holdfast.`{name}`")
    spark.sql(
        f"CREATE TABLE holdfast.`{name}`.{STORE} (store_partition int, key binary, value binary) USING iceberg "
        "PARTITIONED BY (store_partition) TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read', "
        "'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read')"
    )
    data = Data(KEYS, Path())
    rows = [
        (number, bytearray(key), bytearray(value)) for number in range(PARTITIONS) for key, value in data.pairs(number)
    ]
    frame = spark.createDataFrame(rows, "store_partition int, key binary, value binary")
    frame.writeTo(f"holdfast.`{name}`.{STORE}").append()
    return name


def copies(spark: Any, settings: Settings, namespace: str, number: int) -> list[Copy]:
    """The same partition, read by Spark and by Python."""
    frame = FrameCopies(spark.table(f"holdfast.`{namespace}`.{STORE}"))
    return [frame.partition(number), TableCopy(Rows(settings, namespace, number))]


def spoil(spark: Any, namespace: str) -> None:
    table = f"holdfast.`{namespace}`.{STORE}"
    spark.sql(f"UPDATE {table} SET value = X'00' WHERE key = X'{WRONG.hex()}'")
    spark.sql(f"DELETE FROM {table} WHERE key = X'{MISSING.hex()}'")
    spark.sql(f"INSERT INTO {table} VALUES (0, X'{EXTRA.hex()}', X'{value_of(1).hex()}')")
    spark.sql(f"INSERT INTO {table} VALUES (0, X'{DOUBLED.hex()}', X'{value_of(8).hex()}')")


@pytest.mark.thorough
def test_spark_and_python_see_the_same_table_and_what_is_planted_in_it(
    spark: Any, spark_settings: Settings, namespace: str, tmp_path: Path
) -> None:
    data = Data(KEYS, tmp_path)
    paths = data.write_checkpoints(dict.fromkeys(range(PARTITIONS), AT))
    for number in range(PARTITIONS):
        for copy in copies(spark, spark_settings, namespace, number):
            assert copy.prints().whole == data.expected[number]
    spoil(spark, namespace)
    deleted = spark.sql(f"SELECT count(1) AS files FROM holdfast.`{namespace}`.{STORE}.delete_files").collect()
    assert deleted[0]["files"] > 0
    store = StoreCopy(paths[0], STORE, AT)
    for table in copies(spark, spark_settings, namespace, 0):
        found = compare_copies(
            0, AT, {Side.STORE: store, Side.CHANGELOG: store, Side.WAREHOUSE: table}, lambda keys: frozenset()
        )
        assert found.odd == {Odd.WAREHOUSE: 4}
        assert {one.key for one in found.first} == {WRONG, MISSING, EXTRA, DOUBLED}
        entries = {one.key: one.entries[Side.WAREHOUSE] for one in found.first}
        assert entries[WRONG] == Entry((b"\x00",))
        assert entries[MISSING] == Entry()
        assert entries[DOUBLED].values == (value_of(8),) * 2
        assert set(found.by_bucket) == {bucket_of(key) for key in (WRONG, MISSING, EXTRA, DOUBLED)}
    for table in copies(spark, spark_settings, namespace, 1):
        assert table.prints().whole == data.expected[1]


@pytest.mark.thorough
def test_only_sums_of_buckets_are_exchanged(spark: Any, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    bucket_sums(spark.table(f"holdfast.`{namespace}`.{STORE}")).explain()
    plan = capsys.readouterr().out
    assert "partial_bit_xor" in plan
    assert plan.count("Exchange") <= 1
    assert plan.index("partial_bit_xor") > plan.find("Exchange")  # a plan is printed from its last step to its first


@pytest.mark.thorough
def test_an_empty_partition_is_empty(spark: Any, spark_settings: Settings, namespace: str) -> None:
    for copy in copies(spark, spark_settings, namespace, 99):
        assert copy.prints().whole.count == 0
        assert copy.entries(frozenset({1, 2})) == {}


def test_a_published_snapshot_says_where_it_is_and_is_what_the_changelog_folds_to(
    changelog: Any, spark_settings: Settings
) -> None:
    changelog.write(0, [(b"a", 1), (b"b", 2), (b"gone", 5)])
    changelog.write(1, [(b"c", {"x": [1, None]})])
    changelog.snapshot()
    changelog.write(0, [(b"a", 3), (b"gone", None)])
    published = changelog.snapshot().manifest  # this snapshot is incremental, so the table has deletion vectors
    table = tabled(spark_settings, changelog.processor, "s")
    assert (table.manifest, table.untouched) == (published, True)
    changelog.write(0, [(b"a", 4)])  # the changelog continues, but the audit compares at the table's offsets

    def compared() -> list[Moment]:
        found = []
        for number in (0, 1):
            place = table.place(number)
            assert place is not None
            log = ChangelogCopy(changelog.topics, Partition(changelog.topic, number), place.offset, {})
            copies: dict[Side, Copy] = {Side.CHANGELOG: log, Side.WAREHOUSE: table.copy(number)}
            found.append(compare_copies(number, place, copies, log.superseded))
        return found

    assert [(moment.differing, moment.unjudged) for moment in compared()] == [(0, 0), (0, 0)]
    assert [moment.wholes[Side.WAREHOUSE] for moment in compared()] == [
        published.fingerprints[0],
        published.fingerprints[1],
    ]
    changelog.spark.sql(f"DELETE FROM {changelog.table_name} WHERE message_key = 'b'")
    table = tabled(spark_settings, changelog.processor, "s")
    assert (table.manifest, table.untouched) == (published, False)
    assert [moment.odd for moment in compared()] == [{Odd.CHANGELOG_WAREHOUSE: 1}, {}]
