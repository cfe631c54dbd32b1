"""The warehouse on Postgres and in an object store. Only settings differ; snapshots and readers are the same."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
import s3fs

from holdfast.assets.spark.catalog.tables import create_table
from holdfast.assets.spark.maintenance import maintain_store
from holdfast.infra.settings import MaintenanceSettings
from holdfast.infra.spark.failures import WarehouseFailed, short_errors
from holdfast.infra.warehouse.catalog import open_catalog, read_table
from holdfast.infra.warehouse.errors import CatalogLost, CatalogUnavailable, CatalogUnusable
from tests.kafka.object_store import READER
from tests.spark.conftest import Changelog
from tests.spark.test_changed_columns import FIRST, SECOND, planned

RACERS = 6


def with_warehouse(settings, **changes):
    return settings.model_copy(update={"warehouse": settings.warehouse.model_copy(update=changes)})


@pytest.fixture
def remote(remote_settings, session_for, broker, unique):
    return Changelog(broker, unique("remote"), session_for(remote_settings))


def test_a_snapshot_on_postgres_and_s3_is_read_by_spark_and_without_a_jvm(remote, remote_settings, s3):
    remote.write(0, [(b"a", 1), (b"b", 2)])
    first = remote.plan()
    assert remote.snapshot(first).committed
    remote.write(1, [(b"c", 3)])
    remote.write(0, [(b"a", None)])
    second = remote.plan()
    assert remote.snapshot(second).committed
    assert not remote.snapshot(second).committed
    for plan, expected in ((first, {"a": "1", "b": "2"}), (second, {"b": "2", "c": "3"})):
        tag = f"snap-{plan.snapshot_id}"
        assert remote.table(tag) == expected
        arrow = read_table(remote_settings, remote.processor, "s", tag=tag)
        assert dict(zip(arrow["message_key"].to_pylist(), arrow["json"].to_pylist(), strict=True)) == expected
    table = open_catalog(remote_settings).load_table((remote.processor, "s"))
    assert table.metadata_location.startswith("s3://")
    assert not list(remote_settings.home.rglob("*.parquet"))


@pytest.mark.thorough
def test_upkeep_works_on_postgres_and_s3(remote, remote_settings, s3):
    expected = {}
    for number in range(4):
        remote.write(0, [(b"a", number), (b"k%d" % number, number)])
        expected |= {"a": str(number), f"k{number}": str(number)}
        remote.snapshot()
    folder = open_catalog(remote_settings).load_table((remote.processor, "s")).location().removeprefix("s3://")
    files = s3fs.S3FileSystem(**s3.options())
    files.pipe(f"{folder}/data/leftover.parquet", b"of a run that is writing now, or that died")
    tags = {"keep_snapshots": 1, "keep_snapshots_days": 0, "keep_times_days": 0}
    # use `model_construct`, because validation would refuse 0 for these settings
    keep = MaintenanceSettings.model_construct(**tags, keep_versions_hours=0, compact_every=3, leftovers_hours=24)
    later = datetime.now(UTC) + timedelta(hours=1)
    done = {each.table: each for each in maintain_store(remote.spark, remote.processor, "s", keep, later)}
    kept = done[f"holdfast.{remote.processor}.s"]
    assert kept.tags_dropped == 2  # the newest snapshot and the newest full snapshot keep their tags in any case
    assert kept.files_compacted > kept.files_written > 0
    assert kept.versions_expired > 0
    assert kept.files_deleted > 0
    assert files.exists(f"{folder}/data/leftover.parquet"), "it is of today, and may be of a commit under way"
    assert remote.table() == expected
    arrow = read_table(remote_settings, remote.processor, "s")
    assert dict(zip(arrow["message_key"].to_pylist(), arrow["json"].to_pylist(), strict=True)) == expected
    assert remote.snapshot().manifest.rows == len(expected)


@pytest.mark.thorough
def test_columns_change_with_their_values_on_postgres_and_s3(remote, remote_settings):
    """Columns change together with their values on Postgres and S3.

    The change is an update of the table's row in the catalog's database. It uses the password and the driver with which
    the Spark session reads this catalog.
    """
    remote.write(0, [(b"a", {"flights": 1, "airport": "JFK", "gone": 7})])
    remote.snapshot(planned(remote, FIRST), schema=FIRST)
    remote.write(0, [(b"b", {"flights": 2.5, "home": "LGA", "added": 4})])
    made = remote.snapshot(planned(remote, SECOND), schema=SECOND)
    assert (made.committed, made.manifest.source) == (True, "changelog")
    rows = read_table(remote_settings, remote.processor, "s").to_pylist()
    assert {row["message_key"]: (row["flights"], row["home"], row["added"]) for row in rows} == {
        "a": (1.0, "JFK", None),
        "b": (2.5, "LGA", 4),
    }
    assert "gone" not in rows[0]


@pytest.mark.thorough
def test_spark_reads_what_pyiceberg_wrote(remote_settings, session_for):
    catalog = open_catalog(remote_settings)
    catalog.create_namespace("theirs")
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    catalog.create_table(("theirs", "t"), rows.schema).append(rows)
    found = session_for(remote_settings).sql("SELECT sum(n) AS n FROM holdfast.theirs.t").collect()
    assert found[0]["n"] == 6


@pytest.mark.thorough
def test_runs_that_make_the_same_catalog_namespace_and_table_at_once_all_go_on(remote_settings, session_for, spark):
    together = threading.Barrier(RACERS)

    def race(number):
        session = session_for(remote_settings) if number % 2 else spark.newSession()
        if number % 2 == 0:
            open_catalog(remote_settings)
            session = session_for(remote_settings)
        together.wait(120)
        create_table(session, "holdfast.raced.s")
        return session.table("holdfast.raced.s").count()

    with ThreadPoolExecutor(RACERS) as pool:
        assert list(pool.map(race, range(RACERS))) == [0] * RACERS
    assert open_catalog(remote_settings).list_tables("raced") == [("raced", "s")]


def test_a_wrong_password_and_a_missing_database_are_told_before_a_jvm_starts(remote_settings):
    wrong = with_warehouse(remote_settings, catalog_password="not the secret one")
    with pytest.raises(CatalogUnusable, match="password authentication failed") as refused:
        open_catalog(wrong)
    assert "HOLDFAST_WAREHOUSE__CATALOG_PASSWORD" in refused.value.action
    assert "not the secret one" not in repr(refused.value.as_dict())
    absent = with_warehouse(remote_settings, catalog_url=remote_settings.catalog.rpartition("/")[0] + "/absent")
    with pytest.raises(CatalogUnusable, match='"absent" does not exist'):
        open_catalog(absent)


def test_a_catalog_that_is_away_is_told_before_a_jvm_starts(remote_settings):
    away = with_warehouse(remote_settings, catalog_url="postgresql://127.0.0.1:1/holdfast")
    with pytest.raises(CatalogUnavailable, match="refused"):
        open_catalog(away)


@pytest.mark.thorough
def test_an_empty_catalog_over_a_bucket_with_tables_is_refused(remote, remote_settings, session_for, postgres):
    remote.write(0, [(b"a", 1)])
    remote.snapshot()
    emptied = with_warehouse(remote_settings, catalog_url=postgres.url(postgres.new_database()))
    with pytest.raises(CatalogLost, match=rf"holds \d+: .*{remote.processor}"):
        session_for(emptied)


@pytest.mark.thorough
def test_a_key_that_may_not_write_is_told_and_harms_nothing(remote, remote_settings, session_for):
    remote.write(0, [(b"a", 1)])
    remote.snapshot()
    remote.write(0, [(b"a", 2)])
    reader = with_warehouse(remote_settings, s3_access_key=READER[0], s3_secret_key=READER[1])
    writable, remote.spark = remote.spark, session_for(reader)
    with pytest.raises(WarehouseFailed) as refused:
        remote.snapshot()
    assert READER[1] not in str(refused.value)
    remote.spark = writable
    assert remote.table() == {"a": "1"}
    assert remote.snapshot().committed
    assert remote.table() == {"a": "2"}


@pytest.mark.thorough
def test_a_wrong_secret_key_is_told(remote_settings, session_for):
    wrong = with_warehouse(remote_settings, s3_secret_key="never right")
    session = session_for(remote_settings)
    session.sql("CREATE NAMESPACE holdfast.n")
    session = session_for(wrong)
    with pytest.raises(WarehouseFailed, match="S3Exception") as refused, short_errors("create a table"):
        session.sql("CREATE TABLE holdfast.n.t (n int) USING iceberg")
    assert "HOLDFAST_WAREHOUSE__S3_ACCESS_KEY" in refused.value.action
