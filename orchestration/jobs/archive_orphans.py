"""The job that archives orphans, and deletes those whose grace is over; a dry run unless a run's config says no.

Invariants:
    - A dry run changes nothing. Anything else is done only when ``confirm`` holds the hash that a dry run showed.
"""

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.telling import teller
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.resources import ClusterResource, LifecycleResource


class OrphansConfig(dg.Config):
    """Which orphans, and whether it is meant."""

    dry_run: bool = Field(default=True, description="Only show what would be done.")
    confirm: str = Field(default="", description="The hash that the dry run showed.")
    only: list[str] = Field(default_factory=list, description="Only these: KIND, NAME or KIND/NAME; empty for all.")


@dg.op(description="Plan what is archived and deleted of what nobody owns; do it unless this is a dry run.")
def archive_one(
    context: dg.OpExecutionContext, config: OrphansConfig, cluster: ClusterResource, lifecycle: LifecycleResource
) -> None:
    """Archive, and delete."""
    try:
        _archive(context, config, cluster, lifecycle)
    except HoldfastError as failed:
        fields = {name: str(value) for name, value in failed.fields.items()}
        raise dg.Failure(description=str(failed), metadata=fields, allow_retries=False) from None


def _archive(
    context: dg.OpExecutionContext, config: OrphansConfig, cluster: ClusterResource, lifecycle: LifecycleResource
) -> None:
    from holdfast.assets.orphan_cleaning import open_cleaning
    from holdfast.processors.lifecycle.orphans.plan import explain

    who = f"dagster run {context.run.run_id}"
    cleaning = open_cleaning(load_settings(), lifecycle.world.registry, cluster.topics(), who)
    if config.dry_run:
        plan = cleaning.plan(config.only)
        how = f"This was a dry run. To do it, launch the job again with dry_run: false and confirm: {plan.hash}."
        text = explain(plan, how if plan.steps else "")
        context.log.info(text)
        context.add_output_metadata(
            {
                "explanation": dg.MetadataValue.md(f"```\n{text}\n```"),
                "plan": plan.hash,
                "steps": len(plan.steps),
                "destructive": plan.destructive,
                "dry_run": True,
            }
        )
        return
    done = cleaning.apply(config.confirm, config.only, teller(context.log.info))
    text = "\n".join(done) or "There is nothing left to do."
    context.log.info(text)
    context.log_event(dg.AssetObservation(keys.orphans_key(), description=text, metadata={"plan": config.confirm}))
    context.add_output_metadata({"steps": len(done), "plan": config.confirm, "dry_run": False})


@dg.job(
    executor_def=dg.in_process_executor,
    description="Archive what no registered store owns, and delete what was archived a grace period ago. A dry run by "
    "default.",
    tags={"dagster/max_retries": "0"},
)
def archive_orphans() -> None:
    """See ``archive_one``."""
    archive_one()
