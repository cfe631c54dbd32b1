"""What ``holdfast top`` computes from the workers' answers: rates, time behind, restores, and the order of rows."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from rich.console import Console

from holdfast.infra.database.records import Incident
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.reports.top import Look, document, page, row_of
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus
from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Healthy
from holdfast.processors.lifecycle.recovery.incidents import Observation


def task(phase: str = "running", lag: int | None = 0, restore: dict[str, float] | None = None) -> TaskStatus:
    return TaskStatus("0_0", "0", 0, phase, {"in": InputPosition(0, 0, lag, lag)}, restore=restore)


def status(*tasks: TaskStatus, phase: str = "running", processed: int = 1_500) -> ProcessorStatus:
    return ProcessorStatus(
        *("fleet", "0", 7, phase, "exactly-once", "v1", 100.0, 210.0, None),
        records={"processed": processed},
        commits={},
        tasks=tasks,
    )


def earlier(started_at: float = 100.0) -> ProcessorStatus:
    return replace(status(processed=1_000), started_at=started_at, heartbeat_at=200.0)


def row(said: ProcessorStatus | None, before: ProcessorStatus | None = None, **named: bool):
    diagnosis = Healthy("running") if said is not None else Dead(None, "SIGKILL")
    program = SimpleNamespace(alive=said is not None)
    return row_of("fleet", "0", Observation(program, said, diagnosis), before, **named)


def shown(*rows) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(page(Look(rows, (), {})))
    return console.export_text()


def test_a_rate_is_what_was_processed_between_two_looks() -> None:
    seen = row(status(task(lag=200), task(lag=50)), earlier())
    assert (seen.records_per_s, seen.lag, seen.behind_s) == (50.0, 250, 5.0)


@pytest.mark.parametrize("before", [None, earlier(started_at=99.0), status()])
def test_without_two_looks_at_one_process_there_is_no_rate(before: ProcessorStatus | None) -> None:
    assert row(status(task(lag=9)), before).records_per_s is None


def test_a_processor_that_stands_still_is_not_said_to_catch_up() -> None:
    seen = row(status(task(lag=9), processed=1_000), earlier())
    assert (seen.records_per_s, seen.behind_s) == (0.0, None)


def test_a_restore_is_as_far_as_its_slowest_task() -> None:
    tasks = (
        task("restoring", None, {"seconds": 3.0, "seconds_left": 1.0}),
        task("restoring", None, {"seconds": 3.0, "seconds_left": 9.0}),
        task(),
    )
    seen = row(status(*tasks, phase="restoring"))
    assert (seen.restored, seen.restore_s_left, seen.lag) == (0.25, 9.0, None)
    assert "██░░░░░░░░ 25%, 9 s left" in shown(seen)
    begun = row(status(task("restoring", None, {"seconds": 0.1, "seconds_left": None}), phase="restoring"))
    assert (begun.restored, begun.restore_s_left) == (0.0, None)


def test_one_that_is_dead_says_why_and_one_that_is_down_on_purpose_does_not_look_dead() -> None:
    dead, down = row(None), row(None, down=True)
    assert (dead.state, down.state) == ("dead", "down")
    assert dead.sentence in shown(dead)
    assert dead.sentence not in shown(down)


def test_a_look_is_one_document_for_programs() -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    incident = Incident(3, "fleet", "dead", {}, moment, None, None, 0, None, None, "", ())
    told = json.loads(json.dumps(document(Look((row(status(task())),), (incident,), {}))))
    assert told["processors"][0]["tasks_running"] == 1
    assert told["incidents"] == [{"id": 3, "processor": "fleet", "kind": "dead"}]


def test_where_nothing_was_ever_deployed_that_is_said(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    assert main(["top"]) == 0
    assert capsys.readouterr().out == "No deployed processor to show.\n"
    assert not any(tmp_path.iterdir())
