"""Detects a lag that does not shrink, and estimates how many workers would catch up, and when.

Invariants:
    - The functions are pure. The recovery sensor keeps one ``Lag`` object per processor, and passes it to ``next_lag``.
    - Rates belong to the present workers. After a restart, or a change of the number of workers, the measurement starts
      again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.recovery.ages import AHEAD_S

#: Minimum lag that is reported, in records.
LAG_RECORDS = 100_000
#: Seconds for which a lag must not shrink before it is reported.
LAG_S = 300.0
#: A lag counts as shrunk if it is below this fraction of the lag that was recorded first.
SHRUNK = 0.95
#: Minimum seconds of measurement before rates are used.
MEASURED_S = 60.0
#: Target seconds for catching up. The smallest number of workers that meets the target is proposed.
#: If no number of workers meets the target, the largest useful number is proposed.
CATCH_UP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Two sums over all input partitions at one time: the workers' positions (``read``) and the end offsets (``end``).

    ``at`` is seconds since 1970. ``workers`` is the number of workers with tasks. ``tasks`` is the number of tasks, and
    so the maximum number of workers.
    """

    read: int
    end: int
    at: float
    workers: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Lag:
    """A processor's lag in records, and the time since which the lag has not shrunk (seconds since 1970).

    ``first`` and ``last`` are two measurements, and rates are computed from their difference. Both are None if the end
    offset of an input is unknown.
    """

    records: int
    since: float
    first: Flow | None = None
    last: Flow | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Arriving records per second, processed records per second, and the numbers of workers and tasks."""

    arriving: float
    processed: float
    workers: int
    tasks: int


def next_lag(before: Lag | None, statuses: Sequence[ProcessorStatus], now: datetime) -> Lag | None:
    """The lag that the caller keeps for its next check; None if the lag is below ``LAG_RECORDS`` records.

    ``before`` is the result of the last check.
    """
    lags = [at.lag for status in statuses for task in status.tasks for at in task.inputs.values()]
    records = sum(lag for lag in lags if lag is not None)
    if records < LAG_RECORDS:
        return None
    flow = _flow(statuses, now.timestamp())
    ahead = before is not None and before.since > now.timestamp() + AHEAD_S
    if before is None or ahead or records < before.records * SHRUNK:
        return Lag(records, now.timestamp(), flow, flow)
    return replace(before, first=before.first if _continues(before.first, flow) else flow, last=flow)


def is_lasting(lag: Lag, now: datetime) -> bool:
    """Whether a lag has not shrunk for ``LAG_S`` seconds."""
    return now.timestamp() - lag.since >= LAG_S


def pace_of(lag: Lag) -> Pace | None:
    """The rates of a lag; None if they were not measured for long enough, or if nothing was processed."""
    first, last = lag.first, lag.last
    if first is None or last is None or last.at - first.at < MEASURED_S or last.read <= first.read:
        return None
    seconds = last.at - first.at
    return Pace((last.end - first.end) / seconds, (last.read - first.read) / seconds, last.workers, last.tasks)


def enough_workers(pace: Pace, records: int) -> tuple[int, float] | None:
    """The smallest number of workers, above the present one, that would process ``records`` within ``CATCH_UP_S``.

    The second number of the result is the seconds that these workers need. If no number of workers is fast enough, the
    largest useful number is returned. The result is None if more workers do not help. Each additional worker is assumed
    to process as much as the present average worker.
    """
    each, found = pace.processed / max(1, pace.workers), None
    for workers in range(pace.workers + 1, pace.tasks + 1):
        gain = workers * each - pace.arriving
        if gain > 0:
            found = workers, records / gain
            if found[1] <= CATCH_UP_S:
                break
    return found


def lagging_words(lag: Lag, processor: str, now: datetime) -> tuple[str, str]:
    """Two texts about a lasting lag: the text of the check with the next action, and the command for that action."""
    pace, seen = pace_of(lag), lag.records if lag.last is None else max(lag.records, lag.last.end - lag.last.read)
    text = f"at least {seen:,} records wait, and the lag has not shrunk for {now.timestamp() - lag.since:.0f} s."
    if pace is None:
        return (
            f"{text} What to do: compare lag, commits and state size on this page; then give the topic more partitions "
            "or make the function cheaper.",
            "",
        )
    crew = "1 worker processes" if pace.workers == 1 else f"{pace.workers} workers process"
    text += f" {pace.arriving:,.0f} records/s arrive, and {crew} {pace.processed:,.0f} records/s."
    enough = enough_workers(pace, seen)
    if enough is None:
        most = "has" if pace.workers >= pace.tasks else f"would not keep up with {pace.tasks} workers: it has"
        return (
            f"{text} The processor {most} {pace.tasks} tasks, and no task can have two workers. What to do: give the "
            "topic more partitions or make the function cheaper.",
            "",
        )
    workers, seconds = enough
    by = datetime.fromtimestamp(now.timestamp() + seconds, UTC)
    command = f"holdfast scale {processor} {workers}"
    return (
        f"{text} {workers} workers would catch up by {by:%Y-%m-%d %H:%M}Z, if the machine has the cores for them. What "
        f"to do: `{command}`.",
        command,
    )


def _flow(statuses: Sequence[ProcessorStatus], now: float) -> Flow | None:
    tasks = [task for status in statuses for task in status.tasks]
    places = [(at.position, at.end) for task in tasks for at in task.inputs.values()]
    known = [(position, end) for position, end in places if position is not None and end is not None]
    if not known or len(known) < len(places):
        return None
    workers = sum(bool(status.tasks) for status in statuses)
    return Flow(sum(position for position, _ in known), sum(end for _, end in known), now, workers, len(tasks))


def _continues(first: Flow | None, flow: Flow | None) -> bool:
    """Whether ``flow`` was measured with the same workers as ``first``, so that rates can be computed from both."""
    return (
        first is not None
        and flow is not None
        and (first.workers, first.tasks) == (flow.workers, flow.tasks)
        and first.read <= flow.read
        and first.end <= flow.end
    )
