"""Processor assets: materialising one deploys it, and proves that it works on every partition.

Invariants:
    - The processor runs under the supervisor, never under the run; the run ends as soon as it is known to work.
"""

from collections.abc import Mapping

import dagster as dg

from assets import checks, keys
from assets.ports import Cluster, Lifecycle
from infra.kafka.topics import Topics
from processors.lifecycle import provision
from processors.lifecycle.deployment import DeploymentResult, Progress, Rollout, deploy, what_is_missing
from processors.registration import ProcessorDefinition

HEALTHY = "healthy"
ALL_ASSIGNED = "all_partitions_assigned"
#: The slots of a processor on one machine.
SLOTS = ("0",)


class DeployConfig(dg.Config):
    """How long a deployment may take."""

    timeout_s: float = 120.0


def rollout_of(definition: ProcessorDefinition, topics: Topics, lifecycle: Lifecycle) -> Rollout:
    """How a processor is meant to run now: its version, and the partitions that its inputs have."""
    names = [spec.name for spec in definition.topology.inputs]
    facts = topics.describe(names)
    return Rollout(
        processor=definition.name,
        code_version=definition.topology.code_version,
        slots=SLOTS,
        inputs={name: facts[name].partitions for name in names if name in facts},
        environment=lifecycle.environment(),
        project=lifecycle.project,
    )


def processor_asset(definition: ProcessorDefinition) -> dg.AssetsDefinition:
    """The asset of one deployed processor."""
    topology = definition.topology
    key = keys.processor_key(definition.name)

    @dg.asset(
        key=key,
        deps=[
            *(keys.topic_key(spec.name) for spec in topology.inputs),
            *(keys.changelog_key(definition.name, spec.store) for spec in topology.changelogs),
        ],
        description=definition.description or f"The processor {definition.name}.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"python", "rocksdb"},
        pool="deploys",
        tags=keys.tags(keys.PROCESSORS),
        code_version=topology.code_version,
        metadata={"definition": definition.target, "stores": [store.name for store in topology.stores]},
        check_specs=[
            dg.AssetCheckSpec(HEALTHY, asset=key, blocking=True, description="Every instance runs this version."),
            dg.AssetCheckSpec(
                ALL_ASSIGNED, asset=key, blocking=True, description="Each input partition has a restored task."
            ),
        ],
    )
    def deploy_processor(
        context: dg.AssetExecutionContext,
        config: DeployConfig,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        topics = cluster.topics()
        plan = provision.plan(topology, provision.read_facts(topics, topology))
        if not topology.changelogs:
            provision.apply(plan, topics)
            checks.settled_facts(topics, topology)
        rollout = rollout_of(definition, topics, lifecycle)
        said: list[str] = []

        def tell(progress: Progress) -> None:
            now = progress.sentence.rsplit(" after ", 1)[0]
            if said[-1:] != [now]:
                said.append(now)
                context.log.info(progress.sentence)

        done = deploy(
            rollout, lifecycle.world, timeout_s=config.timeout_s, who=f"dagster run {context.run.run_id}", progress=tell
        )
        return dg.MaterializeResult(
            metadata=_describe(done), check_results=_judge(key, rollout, done), data_version=_version(done)
        )

    return deploy_processor


def _version(done: DeploymentResult) -> dg.DataVersion:
    return dg.DataVersion(f"{done.code_version}-{max(int(each.started_at) for each in done.statuses.values())}")


def _describe(done: DeploymentResult) -> Mapping[str, dg.MetadataValue]:
    restores = [
        float(task.restore["seconds"])  # type: ignore[attr-defined]
        for status in done.statuses.values()
        for task in status.tasks
        if getattr(task, "restore", None)
    ]
    return {
        "deploy_seconds": dg.MetadataValue.float(round(done.seconds, 3)),
        "instances": dg.MetadataValue.int(len(done.statuses)),
        "instances_started": dg.MetadataValue.int(len(done.started)),
        "restore_seconds": dg.MetadataValue.float(round(max(restores, default=0.0), 3)),
        "tasks": dg.MetadataValue.int(sum(len(status.tasks) for status in done.statuses.values())),
        "pids": dg.MetadataValue.text(", ".join(str(status.pid) for status in done.statuses.values())),
        "deployed_version": dg.MetadataValue.text(done.code_version),
    }


def _judge(key: dg.AssetKey, rollout: Rollout, done: DeploymentResult) -> list[dg.AssetCheckResult]:
    sick = {slot: status.phase for slot, status in done.statuses.items() if status.phase != "running"}
    missing = what_is_missing(rollout.inputs, done.statuses)
    return [
        dg.AssetCheckResult(
            asset_key=key,
            check_name=HEALTHY,
            passed=not sick and bool(done.statuses),
            description="; ".join(f"slot {slot} is {phase}" for slot, phase in sick.items()),
            metadata={"instances": len(done.statuses), "instances_sick": len(sick)},
        ),
        dg.AssetCheckResult(
            asset_key=key,
            check_name=ALL_ASSIGNED,
            passed=not missing and bool(rollout.inputs),
            description=", ".join(f"{topic}[{partition}] is not worked on" for topic, partition in missing),
            metadata={"partitions": sum(rollout.inputs.values()), "partitions_missing": len(missing)},
        ),
    ]
