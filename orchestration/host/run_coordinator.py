"""Dagster's queue of runs, with lanes: recovery, stop, rollback and dry runs wait for nothing that takes long.

Each run gets its lane as a tag, and ``dagster.yaml`` has a limit for each lane. A limit of all runs together would hold
for recovery, too: four snapshots would keep every killed worker down.

    recovery   runs of ``recover_processor``
    urgent     dry runs; stop, rollback and adoption
    verb       the other verbs, except those that may take hours
    long       backfill, restore
    (none)     runs that need a pool, as snapshots and deployments: their pool is their limit
    shared     all others: checks, observations, upkeep, and jobs of the project

Invariants:
    - Every way to a run passes ``submit_run``: sensors, schedules, the launchpad, backfills, and Dagster's commands. So
      the limits cover a run that a person launched.
    - A run is in one lane. A run that needs a pool has none: Dagster counts a run that waits for its pool against the
      limit of its tag, and so would keep other runs waiting that could start.
    - One run at a time changes a processor (``CHANGES_TAG``); a second one waits, instead of being refused by the
      registry. Runs of the lanes ``recovery`` and ``urgent`` don't: the registry alone keeps them apart, which says at
      once who holds the processor. A run of several processors has no such tag, because a tag has one value. A job of
      the project says by the tag ``processor`` which one it changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import dagster as dg
from dagster import DagsterRun

from holdfast.assets import keys
from holdfast.assets.keys import PROCESSOR_TAG

#: Name of the job of recovery runs.
RECOVERY = "recover_processor"
#: Tag of the verbs' jobs; its value is ``lifecycle``.
KIND_TAG = "holdfast/kind"
#: Run tag: the lane.
QUEUE_TAG = "holdfast/queue"
#: Run tag: the processor that a run changes, one run at a time.
CHANGES_TAG = "holdfast/changes"

Lane = Literal["recovery", "urgent", "verb", "long", "shared"]

#: Jobs of verbs that are short, and that an operator needs while others run.
_URGENT = frozenset({"stop_processor", "rollback_processor", "adopt_processor"})
#: Jobs of verbs that may take hours.
_LONG = frozenset({"backfill_store", "restore_state"})


class ProcessorRunCoordinator(dg.QueuedRunCoordinator):
    """``QueuedRunCoordinator``, with the tags of the lane and of the processor."""

    def submit_run(self, context: dg.SubmitRunContext) -> DagsterRun:
        """Put a run into the queue."""
        run = context.dagster_run
        if tags := tags_of(run):
            self._instance.add_run_tags(run.run_id, tags)
        return super().submit_run(context)


def tags_of(run: DagsterRun) -> dict[str, str]:
    """The tags that a run gets in the queue."""
    pools = run.run_op_concurrency.all_pools if run.run_op_concurrency else None
    lane = lane_of(run.job_name, run.run_config, pools or (), is_verb=run.tags.get(KIND_TAG) == "lifecycle")
    given = run.tags.get(PROCESSOR_TAG, "")
    name = given or processor_of(run.job_name, run.run_config, run.asset_selection or ())
    tags: dict[str, str] = {} if lane is None else {QUEUE_TAG: lane}
    if name and not given:
        tags[PROCESSOR_TAG] = name
    if name and lane not in ("recovery", "urgent"):
        tags[CHANGES_TAG] = name
    return tags


def lane_of(job: str, run_config: Mapping[str, Any], pools: Iterable[str] = (), *, is_verb: bool) -> Lane | None:
    """The lane of a run, by its job, config and pools; None for a run whose pool is its limit."""
    if job == RECOVERY:
        return "recovery"
    if any(pools):
        return None
    if not is_verb:
        return "shared"
    acts = any(config.get("dry_run") is False for config in _configs(run_config))
    if not acts or job in _URGENT:
        return "urgent"
    return "long" if job in _LONG else "verb"


def processor_of(job: str, run_config: Mapping[str, Any], assets: Iterable[dg.AssetKey]) -> str:
    """The one processor that a run changes, by its job, config and selected assets; empty for none and for several."""
    acting = [config for config in _configs(run_config) if job == RECOVERY or config.get("dry_run") is False]
    found = {str(config["processor"]) for config in acting if config.get("processor")}
    found |= {name for each in assets if (name := keys.changed_processor(each))}
    return next(iter(found)) if len(found) == 1 else ""


def _configs(run_config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config of each op."""
    ops = run_config.get("ops") or {}
    return [(op.get("config") if isinstance(op, Mapping) else None) or {} for op in ops.values()]
