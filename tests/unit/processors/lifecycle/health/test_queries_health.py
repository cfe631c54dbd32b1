"""The check of queries decides from the workers' statuses alone, and a tick reports it when it is news."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from holdfast.orchestration.sensors.connectors import OBSERVE_EVERY_S, query_news
from holdfast.processors.engine.queries.figures import LATELY_MINUTES, QueryCounts, QueryFigures
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.health.queries import REFUSED_MIN, judge_queries
from holdfast.processors.testing.clock import VirtualClock

NOW = 1_700_000_000.0
WELL = QueryFigures(answered=90, answered_at=NOW - 2, lately_answered=40)
AWAY = QueryFigures(
    answered=90, refused=30, refused_at=NOW - 1, refusal="Task in-0 is not ready.", lately_answered=40, lately_refused=5
)


@pytest.fixture
def asked(make_status: Callable[..., ProcessorStatus]) -> Callable[..., list[ProcessorStatus]]:
    def made(*figures: QueryFigures) -> list[ProcessorStatus]:
        return [replace(make_status(tasks=()), queries={"counts": each}) for each in figures]

    return made


def test_answers_and_few_refusals_pass(asked: Callable[..., list[ProcessorStatus]]) -> None:
    found = judge_queries("shop", "counts", asked(WELL, replace(WELL, lately_refused=REFUSED_MIN - 1)), NOW)
    assert found.passed
    assert found.sentence == "In the last 5 minutes, 80 queries were answered and 4 refused."
    assert found.figures == {
        "queries_answered": 180,
        "queries_refused": 0,
        "queries_per_minute": 16.8,
        "seconds_since_answer": 2.0,
    }
    few = replace(AWAY, lately_answered=45)
    assert judge_queries("shop", "counts", asked(few), NOW).passed, "5 of 50 are a tenth"


def test_many_refusals_warn_with_the_last_reason(asked: Callable[..., list[ProcessorStatus]]) -> None:
    found = judge_queries("shop", "counts", asked(AWAY), NOW)
    assert (found.passed, found.warns, found.known) == (False, True, True)
    assert found.sentence.endswith("40 queries were answered and 5 refused; the last one: Task in-0 is not ready.")
    assert "holdfast status shop" in found.action
    assert found.texts == {"last_refusal": "Task in-0 is not ready."}


def test_without_a_worker_nobody_knows(asked: Callable[..., list[ProcessorStatus]]) -> None:
    found = judge_queries("shop", "counts", [], NOW)
    assert (found.passed, found.known) == (False, False)
    assert judge_queries("shop", "others", asked(WELL), NOW).passed, "nobody has asked"


def test_a_tick_reports_what_is_new(asked: Callable[..., list[ProcessorStatus]]) -> None:
    memo: Any = None

    def tick(statuses: list[ProcessorStatus], at: float) -> list[bool]:
        nonlocal memo
        events, memo = query_news("shop", ["counts", "others"], statuses, memo, at)
        return [each.passed for each in events if isinstance(each, dg.AssetCheckEvaluation)]

    assert tick([], NOW) == [], "nobody has asked, so nothing is green"
    assert memo == {}
    assert tick(asked(WELL), NOW) == [True]
    assert tick(asked(replace(WELL, answered=95)), NOW + 60) == []
    assert tick(asked(replace(WELL, answered=95)), NOW + OBSERVE_EVERY_S) == [True]
    assert tick(asked(AWAY), NOW + OBSERVE_EVERY_S + 1) == [False]
    assert tick(asked(WELL), NOW + OBSERVE_EVERY_S + 2) == [True]
    assert tick([], NOW + OBSERVE_EVERY_S + 3) == [], "a restart of the only worker"
    assert tick([], NOW + OBSERVE_EVERY_S + 4) == [False]
    assert tick([], NOW + OBSERVE_EVERY_S + 5) == []
    assert tick(asked(WELL), NOW + OBSERVE_EVERY_S + 6) == [True]


def test_recent_counts_forget_what_is_older_than_their_minutes() -> None:
    clock = VirtualClock()
    counts = QueryCounts(clock)
    counts.answered("counts")
    counts.refused("counts", "The group moves its tasks now.")
    assert counts.figures["counts"] == QueryFigures(
        1, 1, clock.time(), clock.time(), "The group moves its tasks now.", 1, 1
    )
    clock.advance_to(clock.monotonic() + 60 * LATELY_MINUTES)
    counts.answered("counts")
    found = counts.figures["counts"]
    assert (found.answered, found.refused, found.lately_answered, found.lately_refused) == (2, 1, 1, 0)
    clock.advance_to(clock.monotonic() + 60 * LATELY_MINUTES)
    assert counts.figures["counts"].lately_answered == 0
