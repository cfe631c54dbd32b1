"""Another process locks the catalog. The error names the catalog and the process, and says that nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.spark.failures import WarehouseFailed, spark_failure
from holdfast.infra.system.process import lock_holders
from holdfast.infra.warehouse import properties
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.infra.warehouse.errors import CatalogUnavailable

HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setattr(properties, "PATIENCE_S", 0.05)
    return load_settings()


@pytest.fixture
def holder(settings: Settings) -> Iterator[int]:
    """The id of a process that locks the catalog."""
    open_catalog(settings).engine.dispose()
    command = [sys.executable, "-c", HOLD, str(settings.paths.catalog)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks")
def test_the_process_that_locks_the_catalog_is_named(settings: Settings, holder: int) -> None:
    with pytest.raises(CatalogUnavailable) as refused:
        open_catalog(settings)
    said = refused.value.message
    assert f"The warehouse's catalog {settings.catalog} can't be used: database is locked." in said
    assert f"Held by process {holder} ({sys.executable}" in said
    assert said.endswith("Nothing is lost: published versions are as they were.")

    spark = spark_failure("write the snapshot", RuntimeError("[SQLITE_BUSY] The database file is locked"))
    assert isinstance(spark, WarehouseFailed)
    assert f"catalog {settings.catalog}. Held by process {holder} (" in spark.message


def test_a_file_that_nobody_locks_has_no_holders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert lock_holders(tmp_path / "file") == ()
    assert lock_holders(tmp_path / "absent") == ()
