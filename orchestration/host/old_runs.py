"""Decides which of Dagster's runs are old enough to be deleted. Pure functions.

Deleting a run also deletes its events. From these events Dagster shows an asset's newest materialisation, its check
results and its existing time partitions.

Invariants:
    - A run that has not ended, or that an open incident or an unfinished execution of a plan needs, is kept.
    - The run with the newest materialisation, observation or check of an asset is kept, whatever its age.
    - The newest run and the run with the newest event are kept. Otherwise SQLite would give the number of the deleted
      last row to the next new row. Sensors have already read this number, and would skip the new row.
"""

# tidy: allow-crumb because the module is one pure decision

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from holdfast.infra.settings import UpkeepSettings


@dataclass(frozen=True, slots=True)
class OldRun:
    """The facts about a run from which its deletion is decided. ``ended_at`` is seconds since 1970, None if it runs."""

    run_id: str
    succeeded: bool
    ended_at: float | None
    materialised: bool = False
    #: Whether the run is needed by an open incident, an open apply (executed plan), or Dagster's view of an asset.
    needed: bool = False


def to_delete(runs: Iterable[OldRun], keep: UpkeepSettings, now: float) -> tuple[str, ...]:
    """The ids of ended runs that are not needed and exceed the maximum age in ``keep``; ``now``: seconds since 1970."""
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
