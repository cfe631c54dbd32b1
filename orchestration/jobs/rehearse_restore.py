"""The job that rehearses the restore of one partition, chosen by chance or named.

Invariants:
    - Nothing of the processor is stopped, so that the run does not take its turn among those that change it.
"""

import dagster as dg
from pydantic import Field

from holdfast.assets.rehearsals import open_rehearsals, publish
from holdfast.orchestration.resources import ClusterResource, LifecycleResource


class RehearseConfig(dg.Config):
    """Which task; without anything one of all that run, by chance, the same for one day."""

    processor: str = Field(default="", description="A processor; empty for any.")
    partition: int = Field(default=-1, description="A partition; -1 for any.")
    day: str = Field(default="", description="What chance goes by, a date as a rule; empty for today.")


@dg.op(description="Restore one partition into a scratch folder, time it, compare it with its owner, tell its assets.")
def rehearse_one(
    context: dg.OpExecutionContext,
    config: RehearseConfig,
    cluster: ClusterResource,
    lifecycle: LifecycleResource,
) -> None:
    """Rehearse; the run fails when what was restored is not what the owner has."""
    from holdfast.processors.lifecycle.health.rehearsal import as_document, choose

    opened = open_rehearsals(cluster, lifecycle)
    found = opened.candidates(config.processor or None, None if config.partition < 0 else config.partition)
    chosen = choose(found, config.day or lifecycle.world.clock().date().isoformat())
    if chosen is None:
        context.log.warning("No worker that has changelogs runs: nothing was rehearsed.")
        context.add_output_metadata({"rehearsed": "nothing"})
        return
    done = opened.rehearse(chosen, f"dagster run {context.run.run_id}")
    publish(context.instance, done, opened, lifecycle)
    context.log.info(done.sentence)
    context.add_output_metadata({"rehearsed": dg.MetadataValue.json(as_document(done))})
    if not done.equal:
        raise dg.Failure(description=done.sentence, allow_retries=False)


@dg.job(
    executor_def=dg.in_process_executor,
    description="Rehearse the restore of one partition: into a scratch folder, timed, compared with its owner.",
    tags={"dagster/max_retries": "0"},
)
def rehearse_restore() -> None:
    """See ``rehearse_one``."""
    rehearse_one()
