"""The check that messages arrive decides from the workers' statuses alone.

Tests also when a tick of the sensor reports the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.orchestration.sensors.recovery import OBSERVE_EVERY_S, arrival_news
from holdfast.processors.engine.runtime.task.arrivals import Newest
from holdfast.processors.engine.serving.status import ProcessorStatus, TaskArrivals, TaskStatus
from holdfast.processors.lifecycle.health.arrivals import TOLD_S, judge_arrivals

NOW = 1_700_000_000.0
MakeStatus = Callable[..., ProcessorStatus]
MakeTask = Callable[..., TaskStatus]


@pytest.fixture
def status(make_status: MakeStatus, make_task: MakeTask) -> Callable[..., ProcessorStatus]:
    def made(*arrivals: TaskArrivals) -> ProcessorStatus:
        return make_status(tasks=tuple(replace(make_task(at), arrivals=each) for at, each in enumerate(arrivals)))

    return made


def lost(kind: str = "put_aside", ago_s: float = 60.0, **counts: int) -> TaskArrivals:
    newest = Newest(kind, "KeyError at orders[1] offset 7", NOW - ago_s)
    return TaskArrivals(**counts, newest=newest, per_minute=0.5)


def test_the_tasks_of_all_workers_are_told_together_with_the_command(status: Callable[..., ProcessorStatus]) -> None:
    found = judge_arrivals("fleet", [status(lost(put_aside=3), TaskArrivals()), status(lost(late=2, ago_s=90))], NOW)
    assert found is not None
    assert not found.passed
    assert found.sentence == (
        "Messages do not arrive: 2 too late, 3 put aside, 1 per minute lately. The newest: KeyError at orders[1] "
        "offset 7."
    )
    assert "`holdfast dead-letters fleet`" in found.action


@pytest.mark.parametrize(
    ("kind", "words"), [("late", "grace_ms"), ("skipped", "holdfast logs fleet"), ("put_aside", "--replay")]
)
def test_each_kind_has_its_action(status: Callable[..., ProcessorStatus], kind: str, words: str) -> None:
    found = judge_arrivals("fleet", [status(lost(kind, **{kind: 1}))], NOW)
    assert found is not None
    assert words in found.action


def test_what_is_an_hour_old_passes_and_keeps_its_counts(status: Callable[..., ProcessorStatus]) -> None:
    found = judge_arrivals("fleet", [status(lost(put_aside=3, ago_s=TOLD_S + 1))], NOW)
    assert found is not None
    assert (found.passed, found.counts.put_aside) == (True, 3)
    assert "before it, 3 put aside" in found.sentence
    fine = judge_arrivals("fleet", [status(TaskArrivals())], NOW)
    assert fine is not None
    assert (fine.passed, fine.sentence) == (True, "All messages arrived.")


def test_without_a_worker_there_is_no_verdict() -> None:
    assert judge_arrivals("fleet", [], NOW) is None
    assert arrival_news("fleet", [], ["kept"], NOW) == ([], ["kept"])


def test_a_tick_reports_a_new_verdict_at_once_and_new_counts_once_in_minutes(
    status: Callable[..., ProcessorStatus],
) -> None:
    fine, bad, worse = status(TaskArrivals()), status(lost(put_aside=1)), status(lost(put_aside=2))
    (first,), memory = arrival_news("fleet", [fine], None, NOW)
    assert first.passed
    assert arrival_news("fleet", [fine], memory, NOW + 60) == ([], memory)
    (told,), memory = arrival_news("fleet", [bad], memory, NOW + 1)
    assert not told.passed
    assert "What to do: Read the reasons with `holdfast dead-letters fleet`" in (told.description or "")
    assert arrival_news("fleet", [worse], memory, NOW + 60) == ([], memory)
    (again,), _ = arrival_news("fleet", [worse], memory, NOW + OBSERVE_EVERY_S + 2)
    assert "2 put aside" in (again.description or "")
