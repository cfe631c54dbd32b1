"""Tables after merges and maintenance. All readers get the same rows, kept tags remain, and all else is deleted."""

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote, urlparse

import duckdb
import pytest
from pydantic import BaseModel

from holdfast.assets.spark.catalog.quarantine import write_quarantine
from holdfast.assets.spark.catalog.tables import COLUMNS, create_table
from holdfast.assets.spark.maintenance import commits_since_compaction, maintain_store
from holdfast.assets.spark.shapes import reshape, shape_for
from holdfast.assets.spark.typed import type_rows, typed_columns
from holdfast.infra.settings import MaintenanceSettings
from holdfast.infra.warehouse.catalog import read_table
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.snapshots.names import quarantine_name, quoted, snapshot_tag, table_name

KEYS = 200


class Leg(BaseModel):
    to: str
    cost: Decimal


class Plane(BaseModel):
    n: int
    seen: dt.datetime
    day: dt.date
    legs: list[Leg]
    by_day: dict[str, int]
    note: str | None = None


def value(number, salt=0):
    return {
        "n": number + salt,
        "seen": f"2013-01-01T00:{number % 60:02}:00Z",
        "day": f"2013-01-{number % 28 + 1:02}",
        "legs": [{"to": "JFK", "cost": "1.5"}] * (number % 3),
        "by_day": {"mon": number},
    }


def rows(spark, numbers, salt=0):
    data = [
        (number % 2, key_prefix(b"%d" % number) + b"n", encode_value(value(number, salt), 1), str(number), number)
        for number in numbers
    ]
    shape = "store_partition int, key binary, value binary, message_key string, offset bigint"
    frame = spark.createDataFrame(data, shape).selectExpr(
        "*",
        "'n' AS state_key",
        "decode(substring(value, 11, length(value)), 'UTF-8') AS json",
        "timestamp '2013-01-01' AS changelog_timestamp",
        "timestamp '2013-01-02' AS event_timestamp",
    )
    return type_rows(frame, schema_of(Plane))


@pytest.fixture(scope="module")
def processor(spark, unique):
    """A store with one full write and three merges with deletions. Each of the four versions has a tag."""
    name = unique("upkeep").replace("-", "_")
    table = table_name(name, "s")
    create_table(spark, table)
    reshape(spark, table, shape_for(spark, table, schema_of(Plane)))
    names = [column for column, _, _ in COLUMNS] + [column for column, _, _ in typed_columns(schema_of(Plane))]
    whole = rows(spark, range(KEYS)).select(*names)
    whole.writeTo(quoted(table)).option("fanout-enabled", "true").append()
    spark.sql(f"ALTER TABLE {quoted(table)} CREATE TAG `{snapshot_tag('0')}`")
    for turn in range(1, 4):
        rows(spark, range(turn, KEYS, 10), salt=turn * 1000).select(*names).createOrReplaceTempView("tail")
        spark.sql(
            f"MERGE INTO {quoted(table)} t USING tail s ON t.store_partition = s.store_partition AND t.key = s.key "
            "WHEN MATCHED AND s.n % 20 = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        spark.sql(f"ALTER TABLE {quoted(table)} CREATE TAG `{snapshot_tag(str(turn))}`")
    bad = rows(spark, range(3)).selectExpr("* EXCEPT (why)", "'it is odd' AS why")
    for turn in ("0", "3"):
        assert write_quarantine(spark, quarantine_name(name, "s"), bad, turn, snapshot_tag(turn)) == {0: 2, 1: 1}
    return name


def plain(cell):
    """Convert a cell to a form that is the same for all engines."""
    if isinstance(cell, dt.datetime):
        return cell.astimezone(dt.UTC).isoformat() if cell.tzinfo is not None else cell.isoformat()
    if hasattr(cell, "asDict"):
        cell = cell.asDict()
    if isinstance(cell, dict):
        return {key: plain(each) for key, each in cell.items()}
    if isinstance(cell, list | tuple):
        pairs = all(isinstance(each, tuple) and len(each) == 2 for each in cell) and cell
        return dict(cell) if pairs else [plain(each) for each in cell]
    return bytes(cell) if isinstance(cell, bytearray) else cell


def by_key(names, found):
    at = names.index("message_key")
    return {row[at]: [plain(cell) for cell in row] for row in found}


def every_reader(spark, settings, processor, tag=None):
    version = "" if tag is None else f" VERSION AS OF '{tag}'"
    arrow = spark.sql(f"SELECT * FROM {quoted(table_name(processor, 's'))}{version}").toArrow()
    names = arrow.column_names
    by_spark = by_key(names, zip(*(arrow[name].to_pylist() for name in names), strict=True))
    read = read_table(settings.paths, processor, "s", tag=tag)
    by_pyiceberg = by_key(names, zip(*(read[name].to_pylist() for name in names), strict=True))
    duckdb.sql("SET TimeZone = 'UTC'")
    columns = ", ".join(f'"{name}"' for name in names)
    by_duckdb = by_key(names, duckdb.sql(f"SELECT {columns} FROM read").fetchall())
    return by_spark, by_pyiceberg, by_duckdb


def expected(turns):
    held = {number: number for number in range(KEYS)}
    for turn in range(1, turns + 1):
        for number in range(turn, KEYS, 10):
            held[number] = number + turn * 1000
            if held[number] % 20 == 1:
                del held[number]
    return {str(number): n for number, n in held.items()}


def check_readers(spark, settings, processor, tag, turns):
    by_spark, by_pyiceberg, by_duckdb = every_reader(spark, settings, processor, tag)
    assert by_spark == by_pyiceberg
    assert by_spark == by_duckdb
    names = spark.table(quoted(table_name(processor, "s"))).columns
    assert {key: row[names.index("n")] for key, row in by_spark.items()} == expected(turns)


def test_spark_pyiceberg_and_duckdb_read_the_same_rows_after_merges_with_deletions(spark, spark_settings, processor):
    files = spark.sql(f"SELECT * FROM {quoted(table_name(processor, 's'))}.delete_files").collect()
    assert {row["file_format"] for row in files} == {"PUFFIN"}
    check_readers(spark, spark_settings, processor, None, 3)
    check_readers(spark, spark_settings, processor, snapshot_tag("2"), 2)


def test_upkeep_keeps_what_tags_lead_to_and_nothing_else(spark, spark_settings, processor):
    table = table_name(processor, "s")
    location = location_of(spark, table)
    leftover = location / "data" / "leftover.parquet"
    leftover.write_bytes(b"of a run that died")
    spark.sql(f"ALTER TABLE {quoted(table)} CREATE BRANCH audit_dead AS OF VERSION {tagged(spark, table, '0')}")
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=10)
    tags = {"keep_snapshots": 2, "keep_snapshots_days": 0, "keep_times_days": 0}
    keep = MaintenanceSettings(**tags, keep_versions_hours=1, compact_every=3, leftovers_hours=24)
    assert commits_since_compaction(spark, table) == 4
    done = {each.table: each.numbers() for each in maintain_store(spark, processor, "s", keep, later)}
    numbers = done[table]
    # maintenance drops two of the four tags, and the branch that was never published
    assert numbers["tags_dropped"] == 3
    assert numbers["versions_expired"] == 2
    assert numbers["files_compacted"] > numbers["files_written"] > 0
    assert numbers["files_deleted"] > 0
    assert done[quarantine_name(processor, "s")]["quarantined_dropped"] == 3
    names = {row["name"] for row in spark.sql(f"SELECT name FROM {quoted(table)}.refs").collect()}
    assert names == {"main", snapshot_tag("2"), snapshot_tag("3")}
    check_readers(spark, spark_settings, processor, None, 3)
    check_readers(spark, spark_settings, processor, snapshot_tag("2"), 2)
    again = {each.table: each.numbers() for each in maintain_store(spark, processor, "s", keep, later)}
    assert again[table] == dict.fromkeys(again[table], 0) | {"versions_expired": again[table]["versions_expired"]}
    assert leftover.exists()  # the file is from today, so it may belong to an unfinished commit


def location_of(spark, table):
    described = spark.sql(f"DESCRIBE EXTENDED {quoted(table)}").where("col_name = 'Location'").collect()[0]
    return Path(unquote(urlparse(described["data_type"]).path))


def tagged(spark, table, number):
    found = spark.sql(f"SELECT snapshot_id FROM {quoted(table)}.refs WHERE name = '{snapshot_tag(number)}'")
    return found.collect()[0]["snapshot_id"]


@pytest.mark.thorough
def test_a_leftover_goes_when_it_is_old(spark, processor):
    table = table_name(processor, "s")
    leftover = location_of(spark, table) / "data" / "old.parquet"
    leftover.write_bytes(b"of a run that died")
    old = dt.datetime.now(dt.UTC).timestamp() - 3 * 86_400
    os.utime(leftover, (old, old))
    tags = {"keep_snapshots": 9, "keep_snapshots_days": 9, "keep_times_days": 9}
    keep = MaintenanceSettings(**tags, keep_versions_hours=1, compact_every=99, leftovers_hours=24)
    done = {each.table: each for each in maintain_store(spark, processor, "s", keep, dt.datetime.now(dt.UTC))}
    assert done[table].leftovers_removed == 1
    assert not leftover.exists()
