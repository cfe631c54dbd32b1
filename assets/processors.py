"""Processor assets. Materialising one deploys the processor and checks that it processes every partition.

Invariants:
    - A run applies the plan of the verb ``deploy``, and the materialisation's metadata explains the plan. A refused
      plan changes nothing.
    - The supervisor runs the processor. The Dagster run ends as soon as every partition has a running task.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.launched_by import actor_of
from holdfast.assets.pages.data_versions import LIVE
from holdfast.assets.pages.metadata import docs
from holdfast.assets.pages.pictures import processor_picture
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.assets.rollouts import deployed_rollout, rollout_of
from holdfast.assets.run_log import progress_log, refusal
from holdfast.infra.errors import HoldfastError
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.topology_drawing import drawing_of
from holdfast.processors.lifecycle.deploy.deployment import DeploymentResult, wait_ready, what_is_missing
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.lifecycle.recovery.incidents import await_recovery

HEALTHY = "healthy"
ALL_ASSIGNED = "all_partitions_assigned"


class DeployConfig(dg.Config):
    """The config of a run that deploys: timeout, stores that it may delete, and the plan's hash as a confirmation."""

    timeout_s: float = Field(default=120.0, description="Seconds until the deployment must process every partition.")
    dropped: list[str] = Field(default_factory=list, description="Stores whose state this deployment deletes.")
    confirm: str = Field(default="", description="The plan's hash; required where the plan deletes state.")


def inputs_of(definition: ProcessorDefinition) -> list[dg.AssetKey]:
    """The keys of the assets that the asset of a processor depends on: its topics and its changelogs."""
    topology = definition.topology
    return [
        *map(keys.topic_key, topology.read()),
        *(keys.changelog_key(definition.name, spec.store) for spec in topology.changelogs),
    ]


def processor_asset(definition: ProcessorDefinition) -> dg.AssetsDefinition:
    """The Dagster asset of one processor. Materialising it deploys the version that the project's files define."""
    topology = definition.topology
    key = keys.processor_key(definition.name)

    @dg.asset(
        key=key,
        deps=inputs_of(definition),
        description=definition.description or f"The processor {definition.name}.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"python", "rocksdb"},
        pool="deploys",
        tags=keys.tags(keys.PROCESSORS),
        code_version=topology.code_version,
        metadata={
            "definition": definition.target,
            "stores": [store.name for store in topology.stores],
            "inputs": [spec.name for spec in topology.inputs],
            "outputs": [spec.name for spec in topology.outputs],
            "topology": dg.MetadataValue.md(f"```\n{drawing_of(topology)}\n```"),
            **docs("runbook.md"),
        },
        check_specs=[
            dg.AssetCheckSpec(HEALTHY, asset=key, blocking=True, description="Every instance runs this version."),
            dg.AssetCheckSpec(
                ALL_ASSIGNED, asset=key, blocking=True, description="Each input partition has a task that runs."
            ),
        ],
    )
    def deploy_processor(
        context: dg.AssetExecutionContext,
        config: DeployConfig,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg]
        verbs = lifecycle.verbs(actor_of(context.run))
        await_recovery(definition.name, lifecycle.world.registry, context.log.info)
        plan = verbs.plan(Deploy(definition.name, config.timeout_s, tuple(config.dropped)))
        explanation: dict[str, Any] = {"explanation": dg.MetadataValue.md(explain_markdown(plan)), "plan": plan.hash}
        context.log.info(explain(plan))
        if isinstance(plan.verdict, Refused):
            raise refusal(plan, plan.verdict)
        try:
            verbs.apply(plan, confirmed=config.confirm or None, tell=progress_log(context.log.info))
        except HoldfastError as failed:
            # A failed check result is yielded, so that the check's page shows the error. Without a result, the page
            # would show only "did not run".
            yield CheckResult(key, HEALTHY, False, failed.message, action=failed.action).result()
            raise dg.Failure(description=str(failed), metadata=explanation, allow_retries=False) from failed
        rollout = rollout_of(definition, cluster.topics(), lifecycle)
        done = verbs.deployed or _as_it_runs(rollout, lifecycle, config.timeout_s)
        yield dg.MaterializeResult(
            metadata={**_describe(done), **explanation},
            check_results=[each.result() for each in judge_rollout(rollout, done)],
            data_version=LIVE,
        )

    return deploy_processor


def _as_it_runs(rollout: Rollout, lifecycle: Lifecycle, timeout_s: float) -> DeploymentResult:
    """Returns the result of a deploy with nothing to do. It describes the version that already runs."""
    version = rollout.code_version
    statuses = wait_ready(rollout, lifecycle.world, timeout_s=timeout_s, code_version=version)
    return DeploymentResult(rollout.processor, version, (), statuses, 0.0)


def _describe(done: DeploymentResult) -> Mapping[str, dg.MetadataValue]:
    statuses = list(done.statuses.values())
    picture = processor_picture(statuses)
    restores = [task.restore["seconds"] for status in statuses for task in status.tasks if task.restore]
    return {
        "deploy_seconds": dg.MetadataValue.float(round(done.seconds, 3)),
        "instances": dg.MetadataValue.int(len(done.statuses)),
        "instances_started": dg.MetadataValue.int(len(done.started)),
        "restore_seconds": dg.MetadataValue.float(round(max(restores, default=0.0), 3)),
        "tasks": dg.MetadataValue.int(sum(len(status.tasks) for status in done.statuses.values())),
        "deployed_version": dg.MetadataValue.text(done.code_version),
        **({"picture": dg.MetadataValue.md(picture)} if picture else {}),
    }


def judge_running(definition: ProcessorDefinition, cluster: Cluster, lifecycle: Lifecycle) -> list[CheckResult]:
    """The check results of a processor that is deployed and runs now; empty if any worker does not answer.

    Raises:
        HoldfastError: Kafka or Holdfast's registry does not answer.
    """
    rollout = deployed_rollout(definition.name, lambda _: definition, cluster.topics(), lifecycle)
    answers = {slot: lifecycle.world.statuses(definition.name, slot).status() for slot in rollout.slots}
    statuses = {slot: status for slot, status in answers.items() if status is not None}
    if len(statuses) < len(answers):
        return []
    return judge_rollout(rollout, DeploymentResult(definition.name, rollout.code_version, (), statuses, 0.0))


def judge_rollout(rollout: Rollout, done: DeploymentResult) -> list[CheckResult]:
    """The results of the checks ``healthy`` and ``all_partitions_assigned`` after a deployment."""
    key = keys.processor_key(rollout.processor)
    sick = {slot: status.phase for slot, status in done.statuses.items() if status.phase != "running"}
    others = {
        slot: status.code_version
        for slot, status in done.statuses.items()
        if status.code_version not in ("", done.code_version)
    }
    missing = what_is_missing(rollout.inputs, done.statuses)
    versions = ", ".join(f"slot {slot} ({version})" for slot, version in others.items())
    phases = ", ".join(f"slot {slot} ({phase})" for slot, phase in sick.items())
    instances, partitions = len(done.statuses), sum(rollout.inputs.values())
    healthy = CheckResult(
        key,
        HEALTHY,
        not sick and not others and instances > 0,
        f"Version {done.code_version}, instances: {instances}, not running: {phases or 'none'}, of another version: "
        f"{versions or 'none'}.",
        "at least one instance, each in phase running with this version",
        "Read `holdfast status` for what an instance waits for, then materialise this asset again. It replaces "
        "instances of another version.",
        metadata={"instances": instances, "instances_sick": len(sick), "instances_of_another_version": len(others)},
    )
    absent = ", ".join(f"{topic}[{partition}]" for topic, partition in missing)
    assigned = CheckResult(
        key,
        ALL_ASSIGNED,
        not missing and bool(rollout.inputs),
        f"No task processes {absent}." if missing else f"Input partitions: {partitions}, all with a running task.",
        f"a running task for each of {partitions} input partitions",
        "Wait until `holdfast status` shows no restore; if a task is still missing, materialise this asset again.",
        metadata={"partitions": partitions, "partitions_missing": len(missing)},
    )
    return [healthy, assigned]
