"""Calls of ``holdfast spark`` and ``holdfast warehouse`` on the command line."""

import json

import pyarrow as pa
import pytest

from holdfast.infra.settings import load_settings
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.orchestration.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    return tmp_path


def test_where_no_warm_spark_runs_that_is_said(capsys):
    assert main(["spark", "status"]) == 1
    assert main(["spark", "stop", "--json"]) == 0
    assert capsys.readouterr().out == 'No warm Spark runs.\n{\n  "stopped": false\n}\n'


def test_tables_of_a_lost_catalog_are_registered(home, capsys):
    catalog = open_catalog(load_settings())
    catalog.create_namespace("fleet")
    catalog.create_table(("fleet", "aircraft"), pa.schema([("n", pa.int64())]))
    catalog.engine.dispose()
    load_settings().paths.catalog.unlink()
    assert main(["warehouse", "register", "--json"]) == 0
    registered = json.loads(capsys.readouterr().out)
    assert list(registered) == ["fleet.aircraft"]
    assert registered["fleet.aircraft"].startswith(f"file://{home}/warehouse/data/fleet/aircraft/metadata/")
    assert main(["warehouse", "register"]) == 0
    assert capsys.readouterr().out == "0 tables registered.\n"
