"""Dagster's queue of runs, which gives each run that changes one processor the tag of that processor.

Invariants:
    - Every way to a run passes ``submit_run``: sensors, schedules, the launchpad, backfills, and Dagster's commands. So
      the limit of one run for each processor in ``dagster.yaml`` covers a run that a person launched.
    - Only runs that change a processor get it: recovery must not wait behind a snapshot, a check or a dry run.
    - The tag is a courtesy of the queue: a second run waits, instead of being refused by the registry. A run of
      several processors has no tag, because a tag has one value; only the registry keeps it apart.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
from dagster import DagsterRun
from dagster._core.run_coordinator import QueuedRunCoordinator, SubmitRunContext

from holdfast.assets import keys
from holdfast.assets.keys import PROCESSOR_TAG

#: Name of the job of recovery runs.
RECOVERY = "recover_processor"


class ProcessorRunCoordinator(QueuedRunCoordinator):
    """``QueuedRunCoordinator``, with the tag ``processor``."""

    def submit_run(self, context: SubmitRunContext) -> DagsterRun:
        """Put a run into the queue."""
        run = context.dagster_run
        name = processor_of(run.job_name, run.run_config, run.asset_selection or ())
        if name and not run.tags.get(PROCESSOR_TAG):
            self._instance.add_run_tags(run.run_id, {PROCESSOR_TAG: name})
        return super().submit_run(context)


def processor_of(job: str, run_config: Mapping[str, Any], assets: Iterable[dg.AssetKey]) -> str:
    """The one processor that a run changes, by its job, config and selected assets; empty for none and for several."""
    ops = run_config.get("ops") or {}
    configs = [(op.get("config") if isinstance(op, Mapping) else None) or {} for op in ops.values()]
    acting = [config for config in configs if job == RECOVERY or config.get("dry_run") is False]
    found = {str(config["processor"]) for config in acting if config.get("processor")}
    found |= {name for each in assets if (name := keys.changed_processor(each))}
    return next(iter(found)) if len(found) == 1 else ""
