"""One Dagster job for each verb (clear, backfill, restore, stop, …). By default, a job is a dry run: it only plans.

Invariants:
    - A job reads its config, logs the plan's explanation, and applies the plan unless it is a dry run.
      ``processors.lifecycle`` makes the plan and carries it out.
    - A dry run changes nothing. A plan that deletes is applied only if ``confirm`` is the plan's hash.
    - After a killed run, the next run with the same config resumes the plan that the killed run was applying.
    - No job uses a Dagster pool, because a pool would also block dry runs. Instead, ``run_coordinator`` limits
      concurrent runs by their config.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.checks.compaction import compaction_results
from holdfast.assets.launched_by import actor_of
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.run_log import progress_log, refusal
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import load_settings
from holdfast.orchestration.jobs.failures import plain_failures
from holdfast.orchestration.resources import RegistryResource, build_resources
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.processors.lifecycle.plans.apply import Applied
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Backfill,
    Clean,
    Clear,
    Compact,
    Erase,
    OfInstallation,
    Replay,
    Reposition,
    Request,
    Restart,
    Restore,
    Rollback,
    Scale,
    Stop,
    selection_of,
)
from holdfast.processors.lifecycle.recovery.incidents import await_recovery

_TAGS = {"holdfast/kind": "lifecycle", "dagster/max_retries": "0"}


class PlanConfig(dg.Config):
    """The run config that the jobs of all verbs (kinds of change, such as clear) have in common."""

    dry_run: bool = Field(default=True, description="true: only print the plan. false: carry it out.")
    confirm: str = Field(
        default="", description="Hash of the plan, as the dry run printed it. Required when the plan deletes."
    )


class VerbConfig(PlanConfig):
    """The run config of a verb (kind of change, such as stop) that changes one processor."""

    processor: str = Field(description="Name of the processor.")


class CleanConfig(PlanConfig):
    """The run config of the job ``archive_orphans``: the orphans (resources without an owner) to archive."""

    only: list[str] = Field(
        default_factory=list, description="Only orphans that match KIND, NAME or KIND/NAME; empty: all orphans."
    )

    def request(self) -> Clean:
        """The ``Clean`` request that this config describes."""
        return Clean(tuple(self.only))


class ClearConfig(VerbConfig):
    """The run config of the job ``clear_state``; exactly one of ``keys``, ``prefix`` and ``everything`` must be set."""

    stores: list[str] = Field(default_factory=list, description="Only these stores; empty: all stores.")
    keys: list[str] = Field(default_factory=list, description="Delete these message keys (text).")
    prefix: str = Field(default="", description="Delete message keys that begin with this text.")
    everything: bool = Field(default=False, description="Delete all keys.")
    window: str = Field(
        default="",
        description="Delete only the windows that contain a time from START up to END: START..END, or START for one "
        "time. ISO 8601 in UTC, or milliseconds since 1970. Empty: no choice of windows.",
    )
    partitions: list[int] = Field(default_factory=list, description="Only these partitions; empty: all partitions.")
    rewind: Literal["stay", "earliest"] = Field(
        default="stay",
        description="Where the processor continues to read its input. stay: at the committed offsets. earliest: at the "
        "start of its topics.",
    )
    export: bool = Field(default=True, description="Write the keys to a file before they are deleted.")

    def request(self) -> Clear:
        """The ``Clear`` request that this config describes.

        Raises:
            RequestInvalid: Not exactly one of ``keys``, ``prefix`` and ``everything`` is set.
        """
        ways = "Set exactly one of `keys`, `prefix` and `everything`."
        selection = selection_of(
            self.keys, self.prefix or None, everything=self.everything, action=ways, window=self.window or None
        )
        partitions = tuple(sorted(set(self.partitions)))
        return Clear(self.processor, tuple(self.stores), selection, partitions, self.rewind, self.export)


class BackfillConfig(VerbConfig):
    """The run config of the job ``backfill_store``: the store to fill, and the source of the data."""

    store: str = Field(description="The store to fill.")
    source: Literal["local", "topic", "table"] = Field(
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
        """The ``Backfill`` request that this config describes."""
        rest = (self.from_available, self.table, self.key, tuple(self.columns))
        return Backfill(self.processor, self.store, self.source, *rest)


class RestoreConfig(VerbConfig):
    """The run config of the job ``restore_state``: restore from changelogs, or from the warehouse if ``at`` is set."""

    partitions: list[int] = Field(default_factory=list, description="Only these partitions; empty: all partitions.")
    source: Literal["newest", "changelog"] = Field(
        default="newest", description="newest: a checkpoint and the changelog's tail. changelog: the whole changelog."
    )
    timeout_s: float = Field(default=600.0, gt=0, description="Seconds within which the processor must process again.")
    at: str = Field(
        default="", description="Restore from the warehouse: a tag, the id of a snapshot, or `latest`; empty: do not."
    )
    stores: list[str] = Field(default_factory=list, description="With at: only these stores; empty: all stores.")
    input: Literal["snapshot", "copied", "earliest", "stay"] = Field(
        default="snapshot",
        description="With `at`: where the processor continues to read its input. `snapshot`: at the snapshot's "
        "offsets. `copied`: at the same records in copied topics. `earliest`: at the start of the topics. `stay`: at "
        "the committed offsets.",
    )

    file: str = Field(
        default="", description="Put the entries of this export file back, on the machine of the run; empty: do not."
    )

    def request(self) -> Restore:
        """The ``Restore`` request that this config describes."""
        partitions, stores = tuple(sorted(set(self.partitions))), tuple(self.stores)
        rest = (self.timeout_s, stores, self.at or None)
        return Restore(self.processor, partitions, self.source, *rest, self.input, self.file or None)


class EraseConfig(VerbConfig):
    """The run config of the job ``erase_key``. Dagster keeps the config of each run, so it also keeps the key."""

    key: str = Field(
        min_length=1,
        description="The message key (text). Dagster keeps this config with the run: delete the run afterwards, or use "
        "`holdfast erase PROCESSOR KEY`.",
    )

    def request(self) -> Erase:
        """The ``Erase`` request that this config describes."""
        return Erase(self.processor, self.key)


class ScaleConfig(VerbConfig):
    """The run config of the job ``scale_processor``: the number of workers after the change, and timeouts."""

    workers: int = Field(ge=1, description="Number of workers, each with its share of the partitions.")
    warm_s: float = Field(
        default=600.0, ge=0, description="Seconds in which workers may fetch the state of their tasks to come; 0: none."
    )
    timeout_s: float = Field(default=300.0, gt=0, description="Seconds within which every partition must be processed.")

    def request(self) -> Scale:
        """The ``Scale`` request that this config describes."""
        return Scale(self.processor, self.workers, self.warm_s, self.timeout_s)


class RollbackConfig(VerbConfig):
    """The run config of the job ``rollback_processor``: the release (deployed version) to return to."""

    to: str = Field(
        default="", description="The release or its version; empty: the one that worked before the present one."
    )

    def request(self) -> Rollback:
        """The ``Rollback`` request that this config describes."""
        return Rollback(self.processor, self.to)


def run_verb(context: dg.OpExecutionContext, config: PlanConfig, request: Request) -> None:
    """Plan the request and log the plan's explanation; apply the plan unless the config asks for a dry run."""
    with open_verbs(load_settings(), who=actor_of(context.run)) as verbs:
        tell = progress_log(context.log.info)
        if not (config.dry_run or isinstance(request, OfInstallation)):
            await_recovery(request.processor, verbs.registry, context.log.info)
        begun = None if config.dry_run else verbs.begun(request)
        if begun is not None:
            context.log.info(f"Resuming apply {begun.id}, which was broken off after {len(begun.done)} stage(s).")
            done = verbs.resume(begun.id, tell=tell)
        else:
            plan = verbs.plan(request)
            _show(context, plan, dry_run=config.dry_run)
            if isinstance(plan.verdict, Refused):
                raise refusal(plan, plan.verdict)
            if config.dry_run:
                return
            done = verbs.apply(plan, confirmed=config.confirm or None, tell=tell)
        _report(context, done)
        _check(context, verbs, request)


def _check(context: dg.OpExecutionContext, verbs: Verbs, request: Request) -> None:
    """After a plan was applied, check the changelogs and report the results to Dagster.

    A failed check never fails the run.
    """
    if isinstance(request, OfInstallation):
        return
    try:
        definition = verbs.definition(request.processor)
    # If the definition can't be imported, only a warning is logged, because verbs such as rollback work without the
    # definition.
    except HoldfastError as failed:
        context.log.warning(f"The plan is applied, but the changelogs could not be checked: {failed}")
        return
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
    of_installation = isinstance(done.plan.request, OfInstallation)
    context.log_event(
        dg.AssetObservation(
            keys.orphans_key() if of_installation else keys.processor_key(done.plan.processor),
            description=f"{done.plan.verb}: {done.plan.verdict.sentence}",
            metadata={
                "verb": done.plan.verb,
                "plan": done.plan.hash,
                "stages": dg.MetadataValue.md(done.text),
                "apply_seconds": round(done.seconds, 3),
            },
        )
    )


class _Job(NamedTuple):
    """Describes the job of one verb (kind of change): name, purpose, and the config class that makes the request.

    The default class ``VerbConfig`` is for verbs whose only argument is the processor.
    """

    name: str
    purpose: str
    config: type[PlanConfig] = VerbConfig


#: Maps each class of request to its job. Provision and deploy have no job, because the materialisation of an asset
#: carries them out. Put-back (a deleted topic is created again) has no job, because only a person may request it, by a
#: command.
_JOBS: Mapping[type[Request], _Job] = {
    Clear: _Job("clear_state", "Delete state in the local stores and in the changelog.", ClearConfig),
    Erase: _Job(
        "erase_key",
        "Delete every copy of one message key, prove that each is gone, and record a certificate.",
        EraseConfig,
    ),
    Backfill: _Job(
        "backfill_store",
        "Fill a changelog from local state, or a store from its source topics or from a table.",
        BackfillConfig,
    ),
    Restore: _Job(
        "restore_state", "Rebuild local state from the changelogs, or all state from the warehouse.", RestoreConfig
    ),
    Compact: _Job("compact_stores", "Rewrite the local stores of a processor without overwritten and deleted entries."),
    Reposition: _Job(
        "reposition_input",
        "Set the group's offsets to the position of the state, where the two do not belong together.",
    ),
    Scale: _Job(
        "scale_processor", "Run the deployed version of a processor in another number of workers.", ScaleConfig
    ),
    Stop: _Job("stop_processor", "Stop a processor until it is deployed again."),
    Restart: _Job("restart_processor", "Stop a processor, and start the deployed release again."),
    Rollback: _Job(
        "rollback_processor", "Run an earlier release of a processor with the present state.", RollbackConfig
    ),
    Replay: _Job(
        "replay_dead_letters",
        "Send the messages of a processor's dead letters again to their topics, and delete these letters.",
    ),
    Adopt: _Job("adopt_processor", "Record the newest deployment in a registry that was replaced by an older copy."),
    Clean: _Job(
        "archive_orphans",
        "Archive resources that no registered store owns; delete those archived longer ago than the grace period.",
        CleanConfig,
    ),
}


def _verb_job(verb: Callable[..., Request], job: _Job) -> dg.JobDefinition:
    """The Dagster job of a verb (kind of change): one op makes the request from the config and carries it out."""
    name, purpose, config_type = job

    @dg.op(
        name=f"{name.partition('_')[0]}_one",
        description=f"Plan: {purpose} Apply the plan unless `dry_run` is true.",
    )
    def carry_out(context: dg.OpExecutionContext, config: config_type) -> None:  # type: ignore[valid-type]
        asked: Any = config
        with plain_failures():
            run_verb(context, asked, verb(asked.processor) if config_type is VerbConfig else asked.request())

    @dg.job(name=name, executor_def=dg.in_process_executor, description=f"{purpose} A dry run by default.", tags=_TAGS)
    def verb_job() -> None:
        carry_out()

    return verb_job


#: Maps each class of request in ``_JOBS`` to its Dagster job.
JOB_OF: Mapping[type[Request], dg.JobDefinition] = {verb: _verb_job(verb, job) for verb, job in _JOBS.items()}
VERB_JOBS = tuple(JOB_OF.values())
