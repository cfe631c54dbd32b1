"""Jobs that change state by plan: clear, backfill, restore, compact, stop; a dry run unless a run's config says no.

Invariants:
    - Deciding and doing are the lifecycle's own; a job reads its config, shows the explanation, and applies.
    - A dry run changes nothing. What deletes is done only when ``confirm`` holds the hash that a dry run showed.
    - A run that was ended in the middle is gone on with by the next run of the same config.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Literal, cast

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.checks import compaction_results
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.telling import refusal, teller
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.resources import RegistryResource, build_resources
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.lifecycle.plans.apply import Applied
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Compact,
    Reposition,
    Request,
    Restore,
    Stop,
    selection_of,
)
from holdfast.processors.registration import ProcessorDefinition

#: Verbs change a processor one after the other, whoever launches them.
_TAGS = {"holdfast/kind": "lifecycle", "dagster/max_retries": "0"}


class Rewind(Enum):
    """Where input is read from after a clear."""

    stay = "stay"
    earliest = "earliest"


class BackfillSource(Enum):
    """What a backfill reads."""

    local = "local"
    topic = "topic"
    table = "table"


class RestoreInput(Enum):
    """Where input is read on from after a restore from the warehouse."""

    snapshot = "snapshot"
    copied = "copied"
    earliest = "earliest"
    stay = "stay"


class RestoreSource(Enum):
    """What a restore reads."""

    newest = "newest"
    changelog = "changelog"


class VerbConfig(dg.Config):
    """What every verb is told."""

    processor: str = Field(description="The processor's name.")
    dry_run: bool = Field(default=True, description="Only show what would be done.")
    confirm: str = Field(default="", description="The hash that the dry run showed; needed where something is deleted.")


class ClearConfig(VerbConfig):
    """Which state to delete."""

    stores: list[str] = Field(default_factory=list, description="The stores; empty for all.")
    keys: list[str] = Field(default_factory=list, description="Message keys, as text.")
    prefix: str = Field(default="", description="Message keys that begin so.")
    everything: bool = Field(default=False, description="All keys.")
    partitions: list[int] = Field(default_factory=list, description="Only these partitions; empty for all.")
    rewind: Rewind = Field(default=Rewind.stay, description="Where input is read from afterwards.")
    export: bool = Field(default=True, description="Write the keys to a file before they are deleted.")


class BackfillConfig(VerbConfig):
    """Which store to fill, and from what."""

    store: str = Field(description="The store.")
    source: BackfillSource = Field(description="local: fill its changelog; topic: build it anew; table: from a table.")
    from_available: bool = Field(
        default=False, description="Build it from what the topics still have, where their beginning is gone."
    )
    table: str = Field(default="", description="The table of the catalog, as namespace.table.")
    key: str = Field(default="", description="The table's column that has the message keys.")
    columns: list[str] = Field(default_factory=list, description="Only these columns of the table; empty for all.")


class RestoreConfig(VerbConfig):
    """Which local state to build anew."""

    partitions: list[int] = Field(default_factory=list, description="Only these partitions; empty for all.")
    source: RestoreSource = Field(
        default=RestoreSource.newest, description="newest: checkpoint and tail; changelog: all of it."
    )
    timeout_s: float = Field(default=600.0, gt=0, description="Until it has to work again, seconds.")
    at: str = Field(default="", description="From the warehouse: a tag, a snapshot's id, or latest; empty for not.")
    stores: list[str] = Field(default_factory=list, description="With at: the stores; empty for all.")
    input: RestoreInput = Field(
        default=RestoreInput.snapshot,
        description="With at, where input is read on: where the snapshot stood; the same in copied topics; all that is "
        "there; where it stands.",
    )


def request_to_clear(config: ClearConfig) -> Clear:
    """The request that a run's config is.

    Raises:
        RequestInvalid: The keys are named in no way, or in two.
    """
    ways = "Set one of keys, prefix and everything."
    selection = selection_of(config.keys, config.prefix or None, everything=config.everything, action=ways)
    rewind: Literal["stay", "earliest"] = "earliest" if config.rewind is Rewind.earliest else "stay"
    partitions = tuple(sorted(set(config.partitions)))
    return Clear(config.processor, tuple(config.stores), selection, partitions, rewind, config.export)


def run_verb(context: dg.OpExecutionContext, config: VerbConfig, ask: Callable[[], Request]) -> None:
    """Show the plan of a request, and carry it out unless this is a dry run.

    Raises:
        dagster.Failure: It could not be done, or may not; told in the error's own words, without the way there.
    """
    try:
        _run_verb(context, config, ask())
    except HoldfastError as failed:
        fields = {name: str(value) for name, value in failed.fields.items()}
        raise dg.Failure(description=str(failed), metadata=fields, allow_retries=False) from None


def _run_verb(context: dg.OpExecutionContext, config: VerbConfig, request: Request) -> None:
    with open_verbs(load_settings(), who=f"dagster run {context.run.run_id}") as verbs:
        begun = None if config.dry_run else verbs.begun(request)
        if begun is not None:
            context.log.info(f"Going on with apply {begun.id}, which was broken off after {len(begun.done)} stage(s).")
            _report(context, verbs.resume(begun.id, tell=teller(context.log.info)))
            _check(context, verbs.definition(request.processor))
            return
        plan = verbs.plan(request)
        _show(context, plan, dry_run=config.dry_run)
        if isinstance(plan.verdict, Refused):
            raise refusal(plan, plan.verdict)
        if not config.dry_run:
            done = verbs.apply(plan, confirmed=config.confirm or None, tell=teller(context.log.info))
            _report(context, done)
            _check(context, verbs.definition(request.processor))


def _check(context: dg.OpExecutionContext, definition: ProcessorDefinition) -> None:
    """Look at the changelogs as they are after a change; the results stand on their assets. It never fails the run."""
    resources = build_resources()
    cluster, lifecycle = cast(Cluster, resources["cluster"]), cast(Lifecycle, resources["lifecycle"])
    try:
        changelogs = definition.topology.changelogs
        for found in compaction_results(definition.name, changelogs, cluster, lifecycle, warn=context.log.warning):
            metadata = {**found.metadata, "after_run": context.run.run_id}
            context.instance.report_runless_asset_event(replace(found, metadata=metadata).evaluation())
    except HoldfastError as failed:
        context.log.warning(f"What was asked is done, but its changelogs could not be checked: {failed}")
    finally:
        cast(RegistryResource, resources["lifecycle"]).close()


def _show(context: dg.OpExecutionContext, plan: Plan, *, dry_run: bool) -> None:
    how = ""
    if dry_run and plan.changes:
        confirm = f" and confirm: {plan.hash}" if plan.destructive else ""
        how = f"\n\nThis was a dry run. To do it, launch the job again with dry_run: false{confirm}."
    context.log.info(explain(plan) + how)
    context.add_output_metadata(
        {
            "explanation": dg.MetadataValue.md(explain_markdown(plan) + how),
            "plan": plan.hash,
            "changes": plan.changes,
            "destructive": plan.destructive,
            "stages": len(plan.stages),
            "keys": plan.keys if plan.keys is not None else -1,
            "dry_run": dry_run,
        }
    )


def _report(context: dg.OpExecutionContext, done: Applied) -> None:
    context.log.info(done.text)
    context.log_event(
        dg.AssetObservation(
            keys.processor_key(done.plan.processor),
            description=f"{done.plan.verb}: {done.plan.verdict.sentence}",
            metadata={
                "verb": done.plan.verb,
                "plan": done.plan.hash,
                "stages": dg.MetadataValue.md(done.text),
                "apply_seconds": round(done.seconds, 3),
            },
        )
    )


@dg.op(description="Plan the deletion of state; do it unless this is a dry run.", pool="deploys")
def clear_one(context: dg.OpExecutionContext, config: ClearConfig) -> None:
    """Clear."""
    run_verb(context, config, lambda: request_to_clear(config))


@dg.op(description="Plan a backfill; do it unless this is a dry run.", pool="deploys")
def backfill_one(context: dg.OpExecutionContext, config: BackfillConfig) -> None:
    """Backfill."""
    sources: dict[BackfillSource, Literal["local", "topic", "table"]] = {
        BackfillSource.local: "local",
        BackfillSource.topic: "topic",
        BackfillSource.table: "table",
    }
    source, columns = sources[config.source], tuple(config.columns)
    rest = (config.from_available, config.table, config.key, columns)
    run_verb(context, config, lambda: Backfill(config.processor, config.store, source, *rest))


@dg.op(description="Plan a restore; do it unless this is a dry run.", pool="deploys")
def restore_one(context: dg.OpExecutionContext, config: RestoreConfig) -> None:
    """Restore."""
    source: Literal["newest", "changelog"] = "changelog" if config.source is RestoreSource.changelog else "newest"
    partitions = tuple(sorted(set(config.partitions)))
    inputs: dict[RestoreInput, Literal["snapshot", "copied", "earliest", "stay"]] = {
        RestoreInput.snapshot: "snapshot",
        RestoreInput.copied: "copied",
        RestoreInput.earliest: "earliest",
        RestoreInput.stay: "stay",
    }
    stores, at = tuple(config.stores), config.at or None
    rest = (config.timeout_s, stores, at, inputs[config.input])
    run_verb(context, config, lambda: Restore(config.processor, partitions, source, *rest))


@dg.op(description="Plan a compaction of local stores; do it unless this is a dry run.", pool="deploys")
def compact_one(context: dg.OpExecutionContext, config: VerbConfig) -> None:
    """Compact."""
    run_verb(context, config, lambda: Compact(config.processor))


@dg.op(description="Plan where input is read on; do it unless this is a dry run.", pool="deploys")
def reposition_one(context: dg.OpExecutionContext, config: VerbConfig) -> None:
    """Reposition."""
    run_verb(context, config, lambda: Reposition(config.processor))


@dg.op(description="Plan a stop; do it unless this is a dry run.", pool="deploys")
def stop_one(context: dg.OpExecutionContext, config: VerbConfig) -> None:
    """Stop."""
    run_verb(context, config, lambda: Stop(config.processor))


def _job(name: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    @dg.job(name=name, executor_def=dg.in_process_executor, description=description, tags=_TAGS)
    def verb_job() -> None:
        op()

    return verb_job


clear_state = _job("clear_state", clear_one, "Delete state, locally and in the changelog. A dry run by default.")
backfill_store = _job(
    "backfill_store",
    backfill_one,
    "Fill a changelog from local state, or a store from its source topics or from a table. A dry run by default.",
)
restore_state = _job(
    "restore_state", restore_one, "Build local state anew, or all state from the warehouse. A dry run by default."
)
compact_stores = _job("compact_stores", compact_one, "Rewrite the local stores of a processor. A dry run by default.")
reposition_input = _job(
    "reposition_input",
    reposition_one,
    "Read input on from where the state stands, where the group's offsets don't belong to it. A dry run by default.",
)
stop_processor = _job("stop_processor", stop_one, "Stop a processor until it is deployed again. A dry run by default.")

#: All of them, for the table of contents.
VERB_JOBS = (clear_state, backfill_store, restore_state, compact_stores, reposition_input, stop_processor)
