"""`holdfast snapshot`: the table version (Iceberg snapshot) that it chooses, and its output.

The rows of a real table are read without a JVM.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.infra.settings import load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.json_documents import ANSWERS
from holdfast.orchestration.commands.reports.snapshot import NoSuchVersion, described, version_at
from holdfast.orchestration.view.runs import DagsterAway, DagsterRuns
from holdfast.processors.lifecycle.plans.facts.warehouse import StoreTable, StoreVersion
from tests.parts.warehouse_tables import write_table

OLD = StoreVersion(11, ("snap-a",), written_at=1_000.0)
NEW = StoreVersion(12, ("snap-b",), current=True, written_at=2_000.0)
TABLE = StoreTable("holdfast.orders.totals", (NEW, OLD))


@pytest.mark.parametrize(
    ("at", "version"),
    [
        (None, NEW),
        ("snap-a", OLD),
        ("12", NEW),
        ("1970-01-01T00:20:00", OLD),
        ("1970-01-01T01:20:00+01:00", OLD),
        ("2026-01-01", NEW),
    ],
)
def test_a_version_is_named_by_tag_number_or_time(at: str | None, version: StoreVersion) -> None:
    assert version_at(TABLE, at) == version


@pytest.mark.parametrize("at", ["snap-c", "1970-01-01T00:00:01"])
def test_an_unknown_version_is_answered_with_the_known_ones(at: str) -> None:
    with pytest.raises(NoSuchVersion, match=r"snap-b of 1970-01-01 00:33:20Z; snap-a of"):
        version_at(TABLE, at)


def test_a_table_without_versions_and_one_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(NoSuchVersion, match="has no version yet; the newest are none"):
        version_at(StoreTable("holdfast.a.b"), None)
    with pytest.raises(NoSuchVersion, match="gone"):
        version_at(StoreTable("holdfast.a.b", problem="It is gone.", action="Find it."), None)


def test_what_is_told_is_json_whatever_the_columns_hold() -> None:
    document = described(TABLE, NEW, [{"n": 1, "b": b"\x01", "deep": {"a": [None, b""]}}], now=2_060.0)
    assert json.loads(json.dumps(document)) == document
    assert (document["version"], document["age_s"], document["snapshot"]) == ("12", 60.0, None)
    assert document["rows"] == [{"n": 1, "b": "01", "deep": {"a": [None, ""]}}]


def test_rows_of_a_table_are_printed_without_a_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    assert main(["snapshot", "fleet", "--store", "aircraft"]) == 64
    assert "no tables yet" in capfd.readouterr().err
    settings = load_settings()
    write_table(settings.paths, "fleet.aircraft", {"message_key": ["k0", "k1", "k2"], "n": [0, 1, 2]})
    assert main(["snapshot", "fleet", "--store", "aircraft", "--limit", "2", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    ANSWERS["snapshot"].validate_python(told, strict=True)
    assert told["rows"] == [{"message_key": "k0", "n": 0}, {"message_key": "k1", "n": 1}]
    assert told["table"] == "holdfast.fleet.aircraft"
    assert main(["snapshot", "fleet", "--store", "aircraft"]) == 0
    assert "holdfast.fleet.aircraft, version" in capfd.readouterr().out


def test_a_run_needs_dagster(tmp_path: Path) -> None:
    with pytest.raises(DagsterAway, match="does not run in this home"):
        DagsterRuns(load_settings(home=tmp_path))
