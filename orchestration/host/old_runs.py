"""Which of Dagster's runs are old enough to delete: facts in, decision out.

Deleting a run deletes its events, and with them the history of the assets that it materialised. From these events
Dagster shows the newest materialisation and check of an asset, and which time partitions exist.

Invariants:
    - A run that has not ended stays, and so does one that an open incident or an open apply needs.
    - The run with the newest materialisation, observation or check of an asset stays, whatever its age.
    - The newest run and the run with the newest event stay: SQLite gives the number of a deleted last row to the next
      row, and sensors would take that one for a row that they have read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from holdfast.infra.settings import UpkeepSettings


@dataclass(frozen=True, slots=True)
class OldRun:
    """A run. ``ended_at`` is seconds since 1970, None before its end."""

    run_id: str
    succeeded: bool
    ended_at: float | None
    materialised: bool = False
    #: Whether an open incident, an open apply, or the state of an asset needs it.
    needed: bool = False


def to_delete(runs: Iterable[OldRun], keep: UpkeepSettings, now: float) -> tuple[str, ...]:
    """The ids of the runs that are older than the settings keep them, and that nothing needs."""
    return tuple(
        run.run_id
        for run in runs
        if run.ended_at is not None and not run.needed and now - run.ended_at > _kept_s(run, keep)
    )


def _kept_s(run: OldRun, keep: UpkeepSettings) -> float:
    if not run.succeeded:
        days = max(keep.failed_runs_days, keep.runs_days)
    else:
        days = max(keep.asset_runs_days, keep.runs_days) if run.materialised else keep.runs_days
    return timedelta(days=days).total_seconds()
