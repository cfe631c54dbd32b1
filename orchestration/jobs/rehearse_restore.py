"""The job that restores one partition as a test (rehearsal). The config names the partition, or it is chosen at random.

Invariants:
    - A rehearsal stops no worker. So its run has no ``processor`` tag, and does not wait for runs that change the
      processor.
"""

import dagster as dg
from pydantic import Field

from holdfast.assets.checks.rehearsals import open_rehearsals, publish
from holdfast.assets.launched_by import actor_of
from holdfast.orchestration.resources import ClusterResource, LifecycleResource


class RehearseConfig(dg.Config):
    """The run config of the job ``rehearse_restore``. By default, all runs of a day use the same random partition."""

    processor: str = Field(default="", description="Name of the processor; empty: a random one.")
    partition: int = Field(default=-1, description="Partition number; -1: a random one.")
    day: str = Field(default="", description="Seed of the random choice, usually a date; empty: today.")


@dg.op(
    description="Restore one partition into a scratch folder, time it, compare it with the worker, update the checks."
)
def rehearse_one(
    context: dg.OpExecutionContext, config: RehearseConfig, cluster: ClusterResource, lifecycle: LifecycleResource
) -> None:
    """Restore one partition into a scratch folder; the run fails if the state differs from the worker's state."""
    from holdfast.processors.lifecycle.health.rehearsal import as_document, choose

    rehearsals = open_rehearsals(cluster, lifecycle)
    candidates = rehearsals.candidates(config.processor or None, None if config.partition < 0 else config.partition)
    chosen = choose(candidates, config.day or lifecycle.world.clock().date().isoformat())
    if chosen is None:
        context.log.warning("No worker with a changelog runs, so nothing was rehearsed.")
        context.add_output_metadata({"rehearsed": "nothing"})
        return
    done = rehearsals.rehearse(chosen, actor_of(context.run))
    publish(context.instance, done, rehearsals, lifecycle)
    context.log.info(done.sentence)
    context.add_output_metadata({"rehearsed": dg.MetadataValue.json(as_document(done))})
    if not done.equal:
        raise dg.Failure(description=done.sentence, allow_retries=False)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Restore one partition into a scratch folder, time it, and compare it with the worker's state.",
    tags={"dagster/max_retries": "0"},
)
def rehearse_restore() -> None:
    """The Dagster job that restores one partition as a test; its only op is ``rehearse_one``."""
    rehearse_one()
