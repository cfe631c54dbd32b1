"""Divides Dagster's run queue into lanes, so that urgent runs (recovery, stop, dry runs) never wait for long runs.

Each run gets the name of its lane as a tag, and ``dagster.yaml`` limits the concurrent runs of each lane. A single
limit for all runs would also delay recovery: four long snapshots could block the recovery of a killed worker.

    recovery   runs of ``recover_processor``
    urgent     dry runs; stop, rollback and adoption
    verb       the other verbs, except those that may take hours
    long       backfill, restore
    (none)     runs that need a Dagster pool, such as snapshots and deployments: the pool limits them
    shared     all other runs: checks, observations, upkeep, and jobs of the project

Invariants:
    - Every run passes ``submit_run``, whether a sensor, schedule, person, backfill or Dagster command launches it. So
      the limits always apply.
    - A run has at most one lane. A run that needs a pool has no lane, because Dagster counts a run that waits for its
      pool against the limit of its lane. Such runs would block other runs of the lane that could start.
    - Only one run at a time changes a processor (``CHANGES_TAG``). A second run waits in the queue, because Holdfast's
      registry would refuse it while the first run holds the processor. Runs of the lanes ``recovery`` and ``urgent`` do
      not wait: the registry refuses them at once, and the error names the holder. A run that changes several processors
      has no such tag, because a tag has one value. A project's job names its processor by the tag ``processor``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import dagster as dg
from dagster import DagsterRun

from holdfast.assets import keys
from holdfast.assets.keys import PROCESSOR_TAG

#: Name of the job that each recovery run executes.
RECOVERY = "recover_processor"
#: Tag of the jobs that carry out verbs (changes such as deploy or clear). The tag's value is ``lifecycle``.
KIND_TAG = "holdfast/kind"
#: The run tag whose value is the run's lane (the part of the queue that has its own limit of concurrent runs).
QUEUE_TAG = "holdfast/queue"
#: The run tag with the processor that the run changes. ``dagster.yaml`` allows one run at a time for each value.
CHANGES_TAG = "holdfast/changes"

Lane = Literal["recovery", "urgent", "verb", "long", "shared"]

#: Jobs of short verbs (stop, rollback, ...) that an operator may need while other verbs run.
_URGENT = frozenset({"stop_processor", "rollback_processor", "adopt_processor"})
#: Jobs of verbs (such as backfill) that may run for hours.
_LONG = frozenset({"backfill_store", "restore_state"})


class ProcessorRunCoordinator(dg.QueuedRunCoordinator):
    """Dagster's ``QueuedRunCoordinator``; it also tags each run with its lane (part of the queue) and processor."""

    def submit_run(self, context: dg.SubmitRunContext) -> DagsterRun:
        """Add the tags to the run, then put the run into the queue."""
        run = context.dagster_run
        if tags := tags_of(run):
            self._instance.add_run_tags(run.run_id, tags)
        return super().submit_run(context)


def tags_of(run: DagsterRun) -> dict[str, str]:
    """The tags to add to a queued run: its lane (part of the queue), its processor, and ``CHANGES_TAG``.

    Runs of the lanes ``recovery`` and ``urgent`` do not get ``CHANGES_TAG``, because they must not wait for other runs.
    """
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
    """The lane (part of the queue) of a run, derived from its job, config and pools. None if a pool limits the run.

    ``is_verb`` is True if the job carries out a verb, for example ``stop``.
    """
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
    """The processor that a run changes, derived from its job, config and selected assets.

    Empty if the run changes no processor or several processors.
    """
    acting = [config for config in _configs(run_config) if job == RECOVERY or config.get("dry_run") is False]
    found = {str(config["processor"]) for config in acting if config.get("processor")}
    found |= {name for each in assets if (name := keys.changed_processor(each))}
    return next(iter(found)) if len(found) == 1 else ""


def _configs(run_config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the config of each op in a run config, without the ops' names."""
    ops = run_config.get("ops") or {}
    return [(op.get("config") if isinstance(op, Mapping) else None) or {} for op in ops.values()]
