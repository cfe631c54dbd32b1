"""The texts of the check ``working``, and when each of them is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.infra.database.records import ApplyOutcome, ApplyRecord, Incident
from holdfast.processors.engine.serving.status import InputPosition, TaskStatus
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Dead,
    Differs,
    Failed,
    Healthy,
    NotDeployed,
    Starting,
    Stuck,
    Waiting,
)
from holdfast.processors.lifecycle.recovery.lagging import LAG_RECORDS, LAG_S, Lag, next_lag, pace_of
from holdfast.processors.lifecycle.recovery.working_check import (
    TELL_EVERY_S,
    Answer,
    is_due,
    judge_pause,
    judge_working,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WELL = {"0": Healthy("running")}
GONE = {"0": Dead(None, "SIGKILL"), "1": Healthy("running")}


def incident(**facts: Any) -> Incident:
    usual: dict[str, Any] = {"id": 7, "processor": "fleet", "kind": "dead", "detail": {}, "opened_at": NOW}
    rest: dict[str, Any] = {"claimed_by": None, "claimed_at": None, "attempts": 0, "closed_at": None}
    return Incident(**{**usual, **rest, "outcome": None, "reason": "", "timeline": (), **facts})


def text(answer: Answer | None) -> str:
    assert answer is not None
    return answer.text


def test_what_works_says_so() -> None:
    assert judge_working(WELL, None, NOW) == Answer(True, "healthy", "It works.")
    assert text(judge_working(WELL, incident(), NOW)) == "It works. Incident 7 is verified."
    old = incident(outcome="failed", closed_at=NOW)
    assert judge_working(WELL, old, NOW) == Answer(True, "healthy", "It works.")
    assert judge_working({"0": NotDeployed()}, None, NOW) == Answer(True, "not-deployed", "It should not run.")
    assert judge_working({}, None, NOW) == Answer(True, "not-deployed", "It should not run.")


def test_a_worker_beyond_the_record_is_red_with_the_action_that_stops_it() -> None:
    said = "It runs, but it is not recorded as a worker that should run: an apply was broken off."
    found = Differs("unwanted-worker", said, "holdfast apply scale fleet 2")
    answer = judge_working({**WELL, "7": found}, None, NOW)
    assert answer is not None
    assert (answer.colour, answer.kind, answer.action) == ("red", "unwanted-worker", "holdfast apply scale fleet 2")
    assert answer.text == (
        "A worker runs that the deployment does not have. Slot 7: It runs, but it is not recorded as a worker that "
        "should run: an apply was broken off. What to do: holdfast apply scale fleet 2"
    )


def ended(outcome: ApplyOutcome) -> ApplyRecord:
    return ApplyRecord(5, "fleet", "clear", "0" * 12, "", "ada", None, 1, NOW, NOW, outcome, "", (), 0.0)


def test_paused_is_yellow_and_red_where_an_apply_left_it_so() -> None:
    found = Differs("paused", "It is paused and reads no input; 12 records wait.", "holdfast apply restart fleet", True)
    answer = judge_working({**WELL, "7": found}, None, NOW)
    assert answer is not None
    assert (answer.passed, answer.colour, answer.kind) == (False, "yellow", "paused")
    assert answer.text == (
        "It is paused and reads no input. Slot 7: It is paused and reads no input; 12 records wait. "
        "What to do: holdfast apply restart fleet"
    )
    assert judge_pause(answer, None) == judge_pause(answer, ended("done")) == answer
    left = judge_pause(answer, ended("abandoned"))
    assert left.colour == "red"
    assert "Apply 5 (clear), which ended as abandoned, may have left it so. What to do: holdfast apply" in left.text


def test_a_first_start_is_no_answer_yet_and_one_that_mends_is() -> None:
    starting = {"0": Starting("restoring")}
    assert judge_working(starting, None, NOW) is None
    mending = judge_working(starting, incident(remedy="rebuild", kind="store-corrupt", attempts=1), NOW)
    assert text(mending) == (
        "Its local state is damaged. Slot 0: It is restoring. Since 2026-03-01 12:00:00Z, incident 7. Recovery sets "
        "its local state aside and restores it, attempt 1 of 3."
    )


@pytest.mark.parametrize(
    ("found", "told", "expected"),
    [
        (
            GONE,
            None,
            "Its process is gone. Slot 0: Its process was killed by SIGKILL. The recovery sensor opens an incident.",
        ),
        (GONE, incident(), "Recovery is starting."),
        (GONE, incident(remedy="restart", attempts=2), "Recovery restarts it, attempt 2 of 3."),
        (GONE, incident(remedy="wait", kind="disk-full"), "It resumes without an action as soon as the disk has room."),
        (GONE, incident(outcome="failed", closed_at=NOW, action="do it"), "Recovery stopped. What to do: do it"),
        (GONE, incident(outcome="failed", closed_at=NOW), "Recovery stopped. What to do: holdfast incidents show 7"),
        ({"0": Waiting()}, None, "It resumes without an action as soon as a broker answers."),
        ({"0": Stuck(31)}, incident(kind="stuck"), "Recovery is starting."),
    ],
)
def test_a_failing_answer_ends_with_what_is_done_or_the_one_action(found: Any, told: Any, expected: str) -> None:
    answer = judge_working(found, told, NOW)
    assert answer is not None
    assert not answer.passed
    assert not answer.only_warns
    assert answer.text.endswith(expected)


def test_an_incident_that_ended_well_tells_nothing_of_the_next_fault() -> None:
    answer = judge_working({"0": Failed({"message": "no"})}, incident(outcome="resolved", closed_at=NOW), NOW)
    assert answer is not None
    assert answer.incident is None


def test_it_is_told_again_when_it_is_another_one_or_after_a_while() -> None:
    answer, now = Answer(False, "stuck", "for 31 s", 7), NOW.timestamp()
    assert is_due(answer, None, now)
    assert is_due(answer, "rubbish", now)
    told = [answer.short, now]
    assert not is_due(Answer(False, "stuck", "for 41 s", 7), told, now + 10)
    assert is_due(Answer(False, "stuck", "for 41 s", 8), told, now + 10)
    assert is_due(answer, told, now + TELL_EVERY_S)


def status(make_status: Any, lag: int | None, *, read: int = 0, slot: str = "0", tasks: int = 1) -> Any:
    end = None if lag is None else read + lag
    at = InputPosition(committed=read, position=read, end=end, lag=lag)
    rest = [TaskStatus(f"t-{slot}-{n}", "t", n, "running", {"in": InputPosition(0, 0, 0, 0)}) for n in range(1, tasks)]
    return make_status(tasks=(TaskStatus(f"t-{slot}-0", "t", 0, "running", {"in": at}), *rest))


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_lag_that_does_not_shrink_is_a_warning(make_status: Any) -> None:
    small, large = status(make_status, LAG_RECORDS - 1), status(make_status, LAG_RECORDS * 2)
    assert next_lag(None, [small], NOW) is None
    assert next_lag(None, [status(make_status, None)], NOW) is None
    first = next_lag(None, [large], NOW)
    assert first is not None
    assert (first.records, first.since) == (LAG_RECORDS * 2, NOW.timestamp())
    later = next_lag(first, [large], after(LAG_S))
    assert later is not None
    assert (later.records, later.since) == (first.records, first.since)
    shrunk = next_lag(first, [status(make_status, LAG_RECORDS)], after(LAG_S))
    assert shrunk is not None
    assert (shrunk.records, shrunk.since) == (LAG_RECORDS, after(LAG_S).timestamp())
    assert judge_working(WELL, None, NOW, lag=first) == Answer(True, "healthy", "It works.")
    answer = judge_working(WELL, None, after(LAG_S), lag=later)
    assert answer is not None
    assert (answer.passed, answer.only_warns, answer.kind) == (False, True, "lagging")
    assert answer.text.startswith("It works but falls behind: at least 200,000 records wait")
    assert "What to do: compare lag" in answer.text, "nothing was processed, so no number of workers is known"


@pytest.mark.parametrize(
    ("arriving", "processed", "tasks", "words", "command"),
    [
        # 3 workers process 500 messages/s more than arrive, and need 660,000 / 500 s for the lag
        (1_000, 500, 4, "3 workers would catch up by 2026-03-01 12:27Z", "holdfast scale fleet 3"),
        # First row: 3 workers would not reduce the lag, so 4 are recommended. Second row: 4 workers need more than an
        # hour, and are still recommended.
        (1_500, 500, 4, "4 workers would catch up by 2026-03-01 12:32Z", "holdfast scale fleet 4"),
        (1_990, 500, 4, "4 workers would catch up by 2026-03-02", "holdfast scale fleet 4"),
        (5_000, 500, 4, "would not keep up with 4 workers: it has 4 tasks, and no task can have two workers", ""),
        (1_000, 500, 1, "The processor has 1 tasks, and no task can have two workers", ""),
    ],
)
def test_a_lag_that_grows_says_how_many_workers_catch_up_by_when(
    make_status: Any, arriving: int, processed: int, tasks: int, words: str, command: str
) -> None:
    lag: Lag | None = None
    for seconds in range(0, int(LAG_S) + 1, 10):
        waiting = 510_000 + (arriving - processed) * seconds
        lag = next_lag(lag, [status(make_status, waiting, read=processed * seconds, tasks=tasks)], after(seconds))
    answer = judge_working(WELL, None, after(LAG_S), lag=lag, processor="fleet")
    assert answer is not None
    assert f"{arriving:,} records/s arrive, and 1 worker processes {processed:,} records/s" in answer.text
    assert words in answer.text
    assert answer.action == command
    assert (f"`{command}`" in answer.text) is bool(command)


def test_the_rates_of_other_workers_are_not_mixed(make_status: Any) -> None:
    lag = next_lag(None, [status(make_status, 500_000)], NOW)
    more = [status(make_status, 500_000, read=9_000), status(make_status, 500_000, read=0, slot="1")]
    lag = next_lag(lag, more, after(LAG_S))
    assert lag is not None
    assert lag.first == lag.last
    assert lag.since == NOW.timestamp()
    assert pace_of(lag) is None
