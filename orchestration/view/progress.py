"""Progress texts for a user who waits for a Dagster run. Pure functions of the run and of all unfinished runs.

Invariants:
    - ``Progress.state`` changes only if the run's state changes. Texts with times are in ``Progress.now``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

#: Statuses in which a run occupies its slots in Dagster's pools.
UNDER_WAY = frozenset({"STARTING", "STARTED", "CANCELING"})
WAITING = frozenset({"NOT_STARTED", "QUEUED"})
#: Maximum number of blocking runs that a text names; the remaining runs are counted.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A run, as Dagster's webserver reports it; times are seconds since 1970."""

    run_id: str
    status: str
    created_at: float
    started_at: float | None = None
    #: The assets that the run materialises, as text; the name of its job if it materialises none.
    what: str = ""
    #: The Dagster pools that the run's steps need; None if Dagster does not report the pools.
    pools: frozenset[str] | None = None
    #: The last message in the run's log.
    said: str = ""

    @property
    def short(self) -> str:
        """The first 8 characters of the run's id, as Dagster's UI shows them."""
        return self.run_id[:8]


@dataclass(frozen=True, slots=True)
class Progress:
    """Two texts: ``state`` is printed as a new line when it changes; ``now`` is overwritten every second."""

    state: str
    now: str = field(default="", compare=False)


def progress(run: SeenRun, others: Sequence[SeenRun], now: float, *, daemon_runs: bool = True) -> Progress:
    """The progress texts for a run; ``others`` are all unfinished runs, ``now`` is seconds since 1970.

    ``daemon_runs`` is whether Dagster's daemon runs, without which no queued run starts.
    """
    if run.status in WAITING:
        return _queued(run, others, now, daemon_runs=daemon_runs)
    if run.status == "STARTING":
        return Progress(f"run {run.short} starts: its process loads the definitions")
    since = run.started_at or run.created_at
    said = run.said.splitlines()[0][:100] if run.said else "no message yet"
    return Progress(f"run {run.short} is {run.status.lower()}", f"for {_time(now - since)}: {said}")


def _queued(run: SeenRun, others: Sequence[SeenRun], now: float, *, daemon_runs: bool) -> Progress:
    before, waited = blockers(run, others), f"for {_time(now - run.created_at)}"
    more = f" and {len(before) - _NAMED} more" if len(before) > _NAMED else ""
    named = ", ".join(f"run {each.short} ({each.what or 'a job'}; {_age(each, now)})" for each in before[:_NAMED])
    behind = f"{waited}, behind {named}{more}" if before else waited
    if not daemon_runs:
        return Progress(
            f"run {run.short} is queued, and Dagster's daemon does not run: start it: `holdfast up`", behind
        )
    if not before:
        return Progress(f"run {run.short} is queued: Dagster's daemon starts it next", behind)
    pools = sorted(_shared(run, before))
    why = f": each needs the pool {', '.join(pools)}, which one run has at a time" if pools else ""
    # The ages of runs are left out of ``state``, because they change each second.
    runs = ", ".join(f"{each.short} ({each.what or 'a job'})" for each in before[:_NAMED])
    return Progress(f"run {run.short} is queued behind {runs}{more}{why}", behind)


def blockers(run: SeenRun, others: Sequence[SeenRun]) -> list[SeenRun]:
    """The unfinished runs that a queued run waits for, oldest first.

    These are the runs in progress and the older queued runs. If the run's pools are known, only runs that need one of
    these pools count.
    """
    earlier = [
        each
        for each in others
        if each.run_id != run.run_id and (each.status in UNDER_WAY or each.created_at <= run.created_at)
    ]
    if run.pools:
        earlier = [each for each in earlier if each.pools is None or each.pools & run.pools]
    return sorted(earlier, key=lambda each: each.created_at)


def _shared(run: SeenRun, before: Collection[SeenRun]) -> frozenset[str]:
    return frozenset(pool for each in before for pool in (each.pools or ()) if pool in (run.pools or ()))


def _age(run: SeenRun, now: float) -> str:
    if run.started_at is not None:
        return f"started {_time(now - run.started_at)} ago"
    return f"queued for {_time(now - run.created_at)}"


def _time(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s" if seconds < 600 else f"{seconds / 60:.0f} minutes"
