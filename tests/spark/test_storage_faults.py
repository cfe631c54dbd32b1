"""Storage that fails during a snapshot: the table stays intact, the error names the repair, and a retry succeeds."""

import sqlite3
import threading

import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.spark.failures import WarehouseFailed
from holdfast.infra.warehouse.catalog import open_catalog, read_table, register_tables
from holdfast.infra.warehouse.errors import CatalogLost, CatalogUnavailable, CatalogUnusable
from holdfast.processors.snapshots.names import table_name
from tests.spark.driver import Attached


def published(settings, processor):
    """The published rows, read without Spark."""
    arrow = read_table(settings, *table_name(processor, "s").split(".", 2)[1:])
    return dict(zip(arrow["message_key"].to_pylist(), arrow["json"].to_pylist(), strict=True))


@pytest.fixture(scope="module")
def local_settings(tmp_path_factory):
    return load_settings(home=tmp_path_factory.mktemp("faults") / "home")


@pytest.fixture(scope="module")
def store(local_settings, broker, unique):
    """A store in a separate warehouse, which the tests of this module share."""
    return Attached(broker, unique("fault"), None)


@pytest.fixture
def local(store, local_settings, session_for):
    """The store with a published snapshot and a newer change."""
    store.spark = session_for(local_settings)
    store.write(0, [(b"a", 1), (b"b", 2)])
    store.snapshot()
    store.write(0, [(b"a", 3)])
    return store


def converges(changelog, settings, session_for):
    """Run the snapshot again, in a new session that did not see the failure, and assert the result."""
    changelog.spark = session_for(settings)
    changelog.snapshot()
    assert changelog.table() == {"a": "3", "b": "2"}
    assert not changelog.snapshot().committed
    assert published(settings, changelog.processor) == {"a": "3", "b": "2"}


@pytest.mark.thorough
def test_a_catalog_that_another_process_has_locked(local, local_settings, session_for, monkeypatch):
    monkeypatch.setattr("holdfast.infra.warehouse.properties.PATIENCE_S", 1)
    local.spark = session_for(local_settings)
    holder = sqlite3.connect(local_settings.paths.catalog, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(CatalogUnavailable, match=r"locked\. .* Nothing is lost"):
        session_for(local_settings)
    with pytest.raises(WarehouseFailed, match=r"database is locked\. .* Nothing is lost") as refused:
        local.snapshot()
    assert "Let the process that locks" in refused.value.action
    holder.execute("ROLLBACK")
    assert published(local_settings, local.processor) == {"a": "1", "b": "2"}
    converges(local, local_settings, session_for)


@pytest.mark.thorough
def test_a_catalog_that_is_locked_for_moments_only_is_waited_for(local, local_settings, session_for):
    stop = threading.Event()

    def disturb():
        while not stop.is_set():
            holder = sqlite3.connect(local_settings.paths.catalog, isolation_level=None, timeout=30)
            holder.execute("BEGIN EXCLUSIVE")
            stop.wait(0.3)
            holder.execute("ROLLBACK")
            holder.close()
            stop.wait(0.2)

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    try:
        assert local.snapshot().committed
    finally:
        stop.set()
        disturbing.join(60)
    assert published(local_settings, local.processor) == {"a": "3", "b": "2"}


@pytest.mark.thorough
def test_a_catalog_that_is_gone_is_never_begun_anew_beside_the_tables(local, local_settings, session_for):
    kept = local_settings.paths.catalog.with_suffix(".kept")
    local_settings.paths.catalog.rename(kept)
    with pytest.raises(CatalogLost, match=local.processor):
        session_for(local_settings)
    kept.rename(local_settings.paths.catalog)
    converges(local, local_settings, session_for)


@pytest.mark.thorough
def test_a_catalog_that_is_lost_for_good_is_made_again_from_the_tables(local, local_settings, session_for):
    open_catalog(local_settings).engine.dispose()
    local_settings.paths.catalog.unlink()
    assert register_tables(local_settings)
    assert published(local_settings, local.processor) == {"a": "1", "b": "2"}
    converges(local, local_settings, session_for)


@pytest.mark.thorough
def test_a_catalog_of_another_format_is_left_as_it_is(local, local_settings, session_for):
    catalog = local_settings.paths.catalog
    kept = catalog.read_bytes()
    catalog.write_bytes(b"no database at all, but long enough to look like a page of one" * 200)
    with pytest.raises(CatalogUnusable, match="not a database"):
        session_for(local_settings)
    with pytest.raises(WarehouseFailed) as refused:
        local.snapshot()
    assert "another format" in refused.value.action
    catalog.write_bytes(kept)
    converges(local, local_settings, session_for)
