"""An asset's page shows figures of a running processor, and the links that every page has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.factory import build_assets
from holdfast.assets.pages.worker_figures import details_of, facts_of
from holdfast.infra.paths import Paths
from holdfast.infra.settings import PROJECT, load_settings
from holdfast.infra.system.memory import used_mib
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.registration import ProcessorDefinition, load_processors
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus


def worker(slot: str, lag: int | None, **facts: Any) -> ProcessorStatus:
    task = TaskStatus(f"t-{slot}", "t", int(slot), "running", {"in": InputPosition(0, 0, lag, lag)})
    usual: dict[str, Any] = {
        "processor": "fleet",
        "slot": slot,
        "pid": 100 + int(slot),
        "phase": "running",
        "guarantee": "exactly-once",
        "code_version": "v1",
        "started_at": 1_000.0,
        "heartbeat_at": 1_100.0,
        "error": None,
        "records": {"processed": 500},
        "commits": {"count": 40, "aborted": 1, "last_ms": 12.5},
        "tasks": (task,),
        "memory_mib": 64.5,
    }
    return ProcessorStatus(**{**usual, **facts})


def test_the_numbers_of_all_workers_are_plotted_together() -> None:
    facts, figures = facts_of([worker("0", 30), worker("1", 12, commits={"count": 2, "last_ms": 80.0})], None)
    assert facts == {
        "instances": 2,
        "tasks_running": 2,
        "records_processed": 1_000,
        "commits": 42,
        "commits_aborted": 1,
        "commit_ms": 80.0,
        "memory_mib": 129.0,
        "lag_records": 42,
    }
    later = [replace(worker(slot, 0), heartbeat_at=1_110.0, records={"processed": 750}) for slot in "01"]
    again, _ = facts_of(later, {**facts, **figures})
    assert (again["records_per_s"], again["commits_per_s"]) == (50.0, 3.8)


def test_rates_are_of_the_same_workers() -> None:
    """Rates compare totals of the same workers only.

    Otherwise a total falls when a worker is missing, and the rate is negative.
    """
    facts, figures = facts_of([worker("0", 30), worker("1", 12)], None)
    alone, kept = facts_of([replace(worker("0", 30), heartbeat_at=1_110.0)], {**facts, **figures})
    assert not {"records_per_s", "commits_per_s"} & alone.keys()
    later = replace(worker("0", 0), heartbeat_at=1_120.0, records={"processed": 700})
    assert facts_of([later], json.loads(json.dumps({**alone, **kept})))[0]["records_per_s"] == 20.0


def test_what_a_worker_does_not_say_is_left_out() -> None:
    facts, _ = facts_of([worker("0", None, memory_mib=None, commits={"count": 0, "last_ms": None})], None)
    assert not {"lag_records", "memory_mib", "commit_ms", "records_per_s"} & facts.keys()


def test_each_worker_has_a_row_and_its_log(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    details = details_of("fleet", [worker("0", 30), worker("1", None, paused=True)], paths)
    first, second = details["workers"].records  # type: ignore[attr-defined]
    assert (first.data["pid"], first.data["lag_records"], first.data["memory_mib"]) == (100, "30", "64.5")
    assert (second.data["phase"], second.data["lag_records"]) == ("running, paused", "")
    assert details["log_1"].value == str(paths.program_log("fleet", "1"))


def grouped(slot: str, lag: int | None) -> ProcessorStatus:
    """A worker with two tasks: one reads the source topic, and one reads the repartition topic of a ``group_by``.

    ``lag`` is the lag of the second task. None means that this task is still restoring.
    """
    there = worker(slot, 5)
    phase = "restoring" if lag is None else "running"
    behind = TaskStatus(
        f"r-{slot}", "r", 0, phase, {"r": InputPosition(0, 0, lag, lag), "side": InputPosition(0, 0, 2, 2)}
    )
    return replace(there, tasks=(*there.tasks, behind))


def test_each_subtopology_has_its_lag(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    details = details_of("fleet", [grouped("0", 30), grouped("1", 40)], paths)
    second, first = details["subtopologies"].records  # type: ignore[attr-defined]
    assert (first.data["subtopology"], first.data["lag_records"]) == ("t", "10")
    assert (first.data["tasks"], first.data["lag_by_input"]) == (2, "in 10")
    assert (second.data["lag_records"], second.data["lag_by_input"]) == ("74", "r 70, side 4")
    [restoring, _] = details_of("fleet", [grouped("0", None)], paths)["subtopologies"].records  # type: ignore[attr-defined]
    assert (restoring.data["running"], restoring.data["lag_records"]) == (0, "")
    assert restoring.data["lag_by_input"] == "r unknown, side 2"
    assert "subtopologies" not in details_of("fleet", [worker("0", 30)], paths)


def test_the_memory_is_that_of_this_process(tmp_path: Path) -> None:
    assert 5 < (used_mib() or 0) < 10_000
    assert used_mib(tmp_path / "none") is None


@pytest.fixture(scope="module")
def specs() -> list[Any]:
    loaded = load_processors(load_settings())
    assert all(isinstance(each, ProcessorDefinition) for each in loaded)
    resources = dg.Definitions(resources=build_resources())
    return list(dg.Definitions.merge(build_assets(loaded), resources).resolve_all_asset_specs())


def test_links_to_the_docs_are_below_the_path_of_the_webserver(specs: list[Any]) -> None:
    made = build_assets(load_processors(load_settings()), path_prefix="/tools")
    resources = dg.Definitions(resources=build_resources())
    below = {spec.key: spec for spec in dg.Definitions.merge(made, resources).resolve_all_asset_specs()}
    assert below.keys() == {spec.key for spec in specs}
    for spec in specs:
        names = [name for name in ("docs", "read a key") if name in spec.metadata]
        links = {name: dg.MetadataValue.url("/tools" + spec.metadata[name].url) for name in names}
        assert below[spec.key].metadata == {**spec.metadata, **links}, spec.key


def test_every_asset_has_owners_a_page_of_the_docs_and_where_its_thing_is(specs: list[Any]) -> None:
    for spec in specs:
        assert spec.owners, spec.key
        assert spec.description, spec.key
        assert (PROJECT / spec.metadata["docs"].url.removeprefix("/")).is_file(), spec.key
    named = {keys.TOPICS: "topic", keys.CHANGELOGS: "topic", keys.PROCESSORS: "inputs", keys.STATE: "changelog"}
    for spec in specs:
        name = named.get(spec.key.path[0], "dagster/table_name")
        assert spec.key.path[0] == keys.OPERATIONS or spec.metadata[name], spec.key
