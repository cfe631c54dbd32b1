"""The checks of sources and sinks decide from the workers' statuses alone. Unknown is never green.

Tests also when a tick of the sensor reports a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from holdfast.orchestration.sensors.connectors import OBSERVE_EVERY_S, connector_news, observe_every_s
from holdfast.processors.engine.connectors import ConnectorSpec, ExternalSystem, SinkFigures, SourceFigures
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus, TaskStatus
from holdfast.processors.lifecycle.health.connectors import CLOCKS_S, TOLD_S, Judged, judge_sink, judge_source

NOW = 1_700_000_000.0
SOURCE = ConnectorSpec("clicks", "source", "SqlSource", ExternalSystem("sql", "postgresql://shop clicks"), ("clicks",))
SINK = ConnectorSpec("rows", "sink", "SqlSink", ExternalSystem("sql", "postgresql://dwh rows"), ("clicks", "other"))
MakeStatus = Callable[..., ProcessorStatus]
MakeTask = Callable[..., TaskStatus]

ALIVE = SourceFigures(
    "clicks-0", 1_200, NOW - 9, runs=True, reported_at=NOW - 3, within_s=60.0, position="id = 7", remaining={"rows": 0}
)
WELL = SinkFigures(stored=40, stored_at=NOW - 2)


@pytest.fixture
def status(make_status: MakeStatus, make_task: MakeTask) -> Callable[..., ProcessorStatus]:
    def made(phase: str = "running", lag: int | None = 3, **facts: Any) -> ProcessorStatus:
        task = replace(make_task(0), phase=phase, inputs={"clicks": InputPosition(0, 0, lag, lag)})
        return replace(make_status(tasks=(task,)), **facts)

    return made


def of_source(figures: SourceFigures, status: Callable[..., ProcessorStatus], **facts: Any) -> Judged:
    return judge_source("shop", SOURCE, [status(), status(sources={"clicks": figures}, **facts)], NOW)


def test_a_source_that_reports_in_time_passes_with_its_figures(status: Callable[..., ProcessorStatus]) -> None:
    found = of_source(ALIVE, status)
    assert found.passed
    assert found.sentence == ("The source reached its system 3 s ago. Position: id = 7. 1,200 messages are committed.")
    assert found.figures == {
        "produced_messages": 1_200,
        "waiting_messages": 0,
        "failures": 0,
        "remaining_rows": 0,
        "seconds_since_success": 3.0,
    }
    assert found.texts == {"position": "id = 7", "task": "clicks-0"}


@pytest.mark.parametrize(
    ("changed", "passed", "warns", "words"),
    [
        ({"reported_at": None, "within_s": None}, True, False, "The source runs."),
        ({"reported_at": NOW - 60 - CLOCKS_S}, True, False, "reached its system 65 s ago"),
        ({"reported_at": NOW - 66}, False, False, "has not reached its system for 66 s; expected a report within 60 s"),
        ({"reported_at": NOW - 66, "waiting": 9}, False, True, "waits for a commit of 9 messages since 66 s"),
        (
            {"failures": 2, "failure": "no route", "failed_at": NOW - 1},
            False,
            True,
            "can't reach its system: no route.",
        ),
        ({"failures": 2, "failure": "no route", "failed_at": NOW - 9}, True, False, "reached its system 3 s ago"),
        ({"reported_at": None, "failures": 1, "failure": "away", "failed_at": NOW - 9}, False, True, "since its start"),
        ({"runs": False, "ended": True}, True, False, "has read everything and has ended"),
        ({"runs": False, "failure": "KeyError: 'id'"}, False, False, "does not run on worker 0"),
        ({"runs": False}, False, True, "does not run on worker 0"),
    ],
)
def test_the_verdict_about_a_source(
    status: Callable[..., ProcessorStatus], changed: dict[str, Any], passed: bool, warns: bool, words: str
) -> None:
    found = of_source(replace(ALIVE, **changed), status)
    assert (found.passed, found.warns) == (passed, warns)
    assert words in found.sentence
    assert bool(found.action) is not passed


def test_a_source_of_a_paused_worker_waits(status: Callable[..., ProcessorStatus]) -> None:
    found = of_source(ALIVE, status, paused=True)
    assert (found.passed, found.warns) == (False, True)
    assert "is paused" in found.sentence


def test_a_source_whose_task_nobody_has_is_unknown(status: Callable[..., ProcessorStatus]) -> None:
    silent = judge_source("shop", SOURCE, [], NOW)
    assert (silent.passed, silent.warns, silent.known) == (False, True, False)
    assert silent.sentence == "No worker answers, so nobody knows."
    nobody = judge_source("shop", SOURCE, [status()], NOW)
    assert (nobody.passed, nobody.known) == (False, False)
    assert "the task of partition 0 of clicks" in nobody.sentence


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (SOURCE, {"source": "clicks"}),
        (SINK, {"sink": "SqlSink", "name": "rows"}),
        (replace(SINK, name="rows-2"), {"sink": "SqlSink", "name": "rows"}),
    ],
)
def test_an_error_that_stopped_the_worker_is_told(
    status: Callable[..., ProcessorStatus], spec: ConnectorSpec, fields: dict[str, str]
) -> None:
    error = {"message": "It is broken.", "action": "Correct it.", "fields": fields}
    judge = judge_source if spec.role == "source" else judge_sink
    found = judge("shop", spec, [status(phase="failed", error=error)], NOW)
    assert (found.passed, found.warns, found.action) == (False, False, "Correct it.")
    assert found.sentence.endswith("has stopped worker 0: It is broken.")
    of_another = {**error, "fields": {spec.role: "another", "name": "another"}}
    assert not judge("shop", spec, [status(error=of_another)], NOW).sentence.endswith("broken.")


@pytest.mark.parametrize(
    ("changed", "passed", "words"),
    [
        ({}, True, "stored 40 results since the start, the last results 2 s ago"),
        ({"stored": 0, "stored_at": None}, True, "stored 0 results since the start, nothing yet"),
        ({"fails": True, "failure": "refused", "failed_at": NOW}, False, "takes nothing: refused."),
        ({"failures": 4, "failure": "refused", "failed_at": NOW - 9}, True, "stored 40"),
        ({"refused": 2, "refused_at": NOW - 60, "failure": "too long"}, False, "refused 2 results, the last 60 s ago"),
        ({"refused": 2, "refused_at": NOW - TOLD_S - 1, "failure": "too long"}, True, "stored 40"),
    ],
)
def test_the_verdict_about_a_sink(
    status: Callable[..., ProcessorStatus], changed: dict[str, Any], passed: bool, words: str
) -> None:
    found = judge_sink("shop", SINK, [status(sinks={"rows": replace(WELL, **changed)})], NOW)
    assert found.passed is passed
    assert found.warns is not passed
    assert words in found.sentence
    assert ("postgresql://dwh rows" in found.action) is not passed


def test_a_sink_is_judged_on_all_workers_that_have_its_inputs(status: Callable[..., ProcessorStatus]) -> None:
    parts = replace(WELL, unpublished=2, stored=2)
    away = replace(WELL, fails=True, failure="away", unpublished=1)
    found = judge_sink("shop", SINK, [status(sinks={"rows": parts}), status(sinks={"rows": away}, lag=None)], NOW)
    assert not found.passed
    assert (found.figures["unpublished_parts"], found.figures["stored_results"]) == (3, 42)
    assert "lag_records" not in found.figures
    both = judge_sink("shop", SINK, [status(sinks={"rows": parts}), status(sinks={"rows": parts})], NOW)
    assert both.figures["lag_records"] == 6


def test_a_sink_without_a_running_task_is_unknown(status: Callable[..., ProcessorStatus]) -> None:
    for seen in ([], [status(phase="restoring", sinks={"rows": WELL})], [status()]):
        found = judge_sink("shop", SINK, seen, NOW)
        assert (found.passed, found.warns, found.known) == (False, True, False)


class Ticks:
    """Consecutive ticks of the sensor; returns (passed, number of observations) of what a tick reports."""

    def __init__(self) -> None:
        self.memo: Any = None

    def __call__(self, statuses: list[ProcessorStatus], now: float) -> list[bool | None]:
        events, self.memo = connector_news("shop", [SINK], statuses, self.memo, now)
        return [each.passed if isinstance(each, dg.AssetCheckEvaluation) else None for each in events]


def test_a_verdict_is_reported_once_and_figures_every_five_minutes(status: Callable[..., ProcessorStatus]) -> None:
    tick, more = Ticks(), replace(WELL, stored=50)
    assert tick([status(sinks={"rows": WELL})], NOW) == [True, None]
    assert tick([status(sinks={"rows": more})], NOW + 60) == []
    assert tick([status(sinks={"rows": replace(more, fails=True, failure="away")})], NOW + 120) == [False, None]
    assert tick([status(sinks={"rows": more})], NOW + 180) == [True, None]
    assert tick([status(sinks={"rows": more})], NOW + 180 + OBSERVE_EVERY_S) == [], "nothing has changed"
    assert tick([status(sinks={"rows": WELL})], NOW + 181 + OBSERVE_EVERY_S) == [None]


def test_unknown_is_reported_from_the_second_tick(status: Callable[..., ProcessorStatus]) -> None:
    tick = Ticks()
    assert tick([status(sinks={"rows": WELL})], NOW) == [True, None]
    assert tick([], NOW + 60) == []
    assert tick([], NOW + 120) == [False]
    assert tick([status(sinks={"rows": WELL})], NOW + 180) == [True, None]
    assert tick([], NOW + 240) == []
    assert tick([status(sinks={"rows": WELL})], NOW + 300) == []
    assert Ticks()([], NOW) == [False], "without an earlier report, unknown is told at once"


def test_a_failed_check_is_reported_again_with_its_figures(status: Callable[..., ProcessorStatus]) -> None:
    tick, away = Ticks(), replace(WELL, fails=True, failure="away", failures=1)
    assert tick([status(sinks={"rows": away})], NOW) == [False, None]
    assert tick([status(sinks={"rows": replace(away, failures=9)})], NOW + OBSERVE_EVERY_S) == [False, None]


def test_many_connectors_write_a_bounded_number_of_observations() -> None:
    assert [observe_every_s(count) for count in (0, 2, 100, 1_000)] == [300.0, 300.0, 300.0, 3_000.0]


def test_a_memo_of_another_version_is_forgotten(status: Callable[..., ProcessorStatus]) -> None:
    tick = Ticks()
    tick.memo = {"rows_sink": {"verdict": "green"}}
    assert tick([status(sinks={"rows": WELL})], NOW) == [True, None]
