"""Jobs that change state by plan: clear, backfill, restore, compact, reposition, stop. A dry run by default.

Invariants:
    - Plan and apply are the lifecycle's; a job reads its config, shows the explanation, and applies.
    - A dry run changes nothing. A plan that deletes is applied only when ``confirm`` holds its hash.
    - When a run was killed, the next run with the same config resumes its apply.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, cast

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.compaction_check import compaction_results
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.telling import refusal, teller
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.jobs.failures import plain_failures
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

_TAGS = {"holdfast/kind": "lifecycle", "dagster/max_retries": "0"}


class Rewind(Enum):
    """Where the processor continues to read its input after a clear."""

    stay = "stay"
    earliest = "earliest"


class BackfillSource(Enum):
    """Source of a backfill."""

    local = "local"
    topic = "topic"
    table = "table"


class RestoreInput(Enum):
    """Where the processor continues to read its input after a restore from the warehouse."""

    snapshot = "snapshot"
    copied = "copied"
    earliest = "earliest"
    stay = "stay"


class RestoreSource(Enum):
    """Source of a restore."""

    newest = "newest"
    changelog = "changelog"


class VerbConfig(dg.Config):
    """Config of every verb's job."""

    processor: str = Field(description="Name of the processor.")
    dry_run: bool = Field(default=True, description="true: only print the plan. false: carry it out.")
    confirm: str = Field(
        default="", description="Hash of the plan, as the dry run printed it. Required when the plan deletes."
    )


class ClearConfig(VerbConfig):
    """Config of ``clear_state``: exactly one of ``keys``, ``prefix`` and ``everything``."""

    stores: list[str] = Field(default_factory=list, description="Only these stores; empty: all stores.")
    keys: list[str] = Field(default_factory=list, description="Delete these message keys (text).")
    prefix: str = Field(default="", description="Delete message keys that begin with this text.")
    everything: bool = Field(default=False, description="Delete all keys.")
    partitions: list[int] = Field(default_factory=list, description="Only these partitions; empty: all partitions.")
    rewind: Rewind = Field(
        default=Rewind.stay,
        description="Where the processor continues to read its input. stay: at the committed offsets. earliest: at the "
        "start of its topics.",
    )
    export: bool = Field(default=True, description="Write the keys to a file before they are deleted.")

    def request(self) -> Clear:
        """The clear that this config asks for.

        Raises:
            RequestInvalid: None or several of ``keys``, ``prefix`` and ``everything`` are set.
        """
        ways = "Set exactly one of `keys`, `prefix` and `everything`."
        selection = selection_of(self.keys, self.prefix or None, everything=self.everything, action=ways)
        partitions = tuple(sorted(set(self.partitions)))
        return Clear(self.processor, tuple(self.stores), selection, partitions, self.rewind.value, self.export)


class BackfillConfig(VerbConfig):
    """Config of ``backfill_store``: the store and its source."""

    store: str = Field(description="The store to fill.")
    source: BackfillSource = Field(
        description="local: write local state to the changelog. topic: rebuild the store from its source topics. "
        "table: fill the store from a table of the catalog."
    )
    from_available: bool = Field(
        default=False, description="With source topic: accept that the first records of the topics are deleted."
    )
    table: str = Field(default="", description="With source table: the table, as namespace.table.")
    key: str = Field(default="", description="With source table: the column that holds the message keys.")
    columns: list[str] = Field(
        default_factory=list, description="With source table: only these columns; empty: all columns."
    )

    def request(self) -> Backfill:
        """The backfill that this config asks for."""
        rest = (self.from_available, self.table, self.key, tuple(self.columns))
        return Backfill(self.processor, self.store, self.source.value, *rest)


class RestoreConfig(VerbConfig):
    """Config of ``restore_state``: from changelogs, or with ``at`` from the warehouse."""

    partitions: list[int] = Field(default_factory=list, description="Only these partitions; empty: all partitions.")
    source: RestoreSource = Field(
        default=RestoreSource.newest,
        description="newest: a checkpoint and the changelog's tail. changelog: the whole changelog.",
    )
    timeout_s: float = Field(default=600.0, gt=0, description="Seconds within which the processor must process again.")
    at: str = Field(
        default="", description="Restore from the warehouse: a tag, the id of a snapshot, or `latest`; empty: do not."
    )
    stores: list[str] = Field(default_factory=list, description="With at: only these stores; empty: all stores.")
    input: RestoreInput = Field(
        default=RestoreInput.snapshot,
        description="With at: where the processor continues to read its input. snapshot: at the snapshot's offsets. "
        "copied: at the same records in copied topics. earliest: at the start of the topics. stay: at the committed "
        "offsets.",
    )

    def request(self) -> Restore:
        """The restore that this config asks for."""
        partitions, stores = tuple(sorted(set(self.partitions))), tuple(self.stores)
        rest = (self.timeout_s, stores, self.at or None)
        return Restore(self.processor, partitions, self.source.value, *rest, self.input.value)


def run_verb(context: dg.OpExecutionContext, config: VerbConfig, ask: Callable[[], Request]) -> None:
    """Plan the request and show its explanation; apply the plan unless this is a dry run.

    Raises:
        dagster.Failure: The plan is refused, or a stage failed. The description has the error and its action.
    """
    with plain_failures():
        _run_verb(context, config, ask())


def _run_verb(context: dg.OpExecutionContext, config: VerbConfig, request: Request) -> None:
    with open_verbs(load_settings(), who=f"dagster run {context.run.run_id}") as verbs:
        begun = None if config.dry_run else verbs.begun(request)
        if begun is not None:
            context.log.info(f"Resuming apply {begun.id}, which was broken off after {len(begun.done)} stage(s).")
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
    """Check the changelogs after a change and report the results on their assets. Never fails the run."""
    resources = build_resources()
    cluster, lifecycle = cast(Cluster, resources["cluster"]), cast(Lifecycle, resources["lifecycle"])
    try:
        changelogs = definition.topology.changelogs
        for found in compaction_results(definition.name, changelogs, cluster, lifecycle, warn=context.log.warning):
            metadata = {**found.metadata, "after_run": context.run.run_id}
            context.instance.report_runless_asset_event(replace(found, metadata=metadata).evaluation())
    except HoldfastError as failed:
        context.log.warning(f"The plan is applied, but the changelogs could not be checked: {failed}")
    finally:
        cast(RegistryResource, resources["lifecycle"]).close()


def _show(context: dg.OpExecutionContext, plan: Plan, *, dry_run: bool) -> None:
    how = ""
    if dry_run and plan.changes:
        confirm = f" and `confirm: {plan.hash}`" if plan.destructive else ""
        how = f"\n\nThis was a dry run. To apply it, launch the job with `dry_run: false`{confirm}."
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


def _verb_job(
    name: str, op_name: str, config_type: type[VerbConfig], request: Callable[[Any], Request], purpose: str
) -> dg.JobDefinition:
    """A job with one op, whose config is ``config_type``; ``request`` makes a request from it."""

    @dg.op(name=op_name, description=f"Plan: {purpose} Apply the plan unless `dry_run` is true.", pool="deploys")
    def carry_out(context: dg.OpExecutionContext, config: config_type) -> None:  # type: ignore[valid-type]
        run_verb(context, cast(VerbConfig, config), lambda: request(config))

    @dg.job(name=name, executor_def=dg.in_process_executor, description=f"{purpose} A dry run by default.", tags=_TAGS)
    def verb_job() -> None:
        carry_out()

    return verb_job


#: One job for each verb that has no asset of its own; provision and deploy are materialisations.
VERB_JOBS = (
    _verb_job(
        *("clear_state", "clear_one", ClearConfig, ClearConfig.request),
        "Delete state in the local stores and in the changelog.",
    ),
    _verb_job(
        *("backfill_store", "backfill_one", BackfillConfig, BackfillConfig.request),
        "Fill a changelog from local state, or a store from its source topics or from a table.",
    ),
    _verb_job(
        *("restore_state", "restore_one", RestoreConfig, RestoreConfig.request),
        "Rebuild local state from the changelogs, or all state from the warehouse.",
    ),
    _verb_job(
        *("compact_stores", "compact_one", VerbConfig, lambda config: Compact(config.processor)),
        "Rewrite the local stores of a processor without overwritten and deleted entries.",
    ),
    _verb_job(
        *("reposition_input", "reposition_one", VerbConfig, lambda config: Reposition(config.processor)),
        "Set the group's offsets to the position of the state, where the two do not belong together.",
    ),
    _verb_job(
        *("stop_processor", "stop_one", VerbConfig, lambda config: Stop(config.processor)),
        "Stop a processor until it is deployed again.",
    ),
)
