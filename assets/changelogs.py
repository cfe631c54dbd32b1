"""Changelog assets. Materialising a changelog asset creates and corrects the topics that its processor needs.

Invariants:
    - A run applies the plan of the verb ``provision``, and the materialisation's metadata explains the plan. The
      planner of the verb decides what changes; this module only applies the plan.
    - A refused plan changes nothing, and the step fails with the refusal's sentence and action.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks import topics as topic_checks
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.launched_by import actor_of
from holdfast.assets.pages.data_versions import LIVE
from holdfast.assets.pages.metadata import docs
from holdfast.assets.ports import Cluster, Lifecycle, Verbs
from holdfast.assets.run_log import progress_log, refusal
from holdfast.infra.kafka.records import TopicFacts
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.waiting import wait_until
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine import provisioning
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG, MIN_INSYNC
from holdfast.processors.engine.topology import ChangelogSpec, Topology
from holdfast.processors.lifecycle.health import topics as topic_health
from holdfast.processors.lifecycle.health.topics import CONFIG_MATCHES, Look
from holdfast.processors.lifecycle.plans.apply import ApplyInProgress, PlanStale, RecoveryInProgress
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Provision
from holdfast.processors.lifecycle.recovery.incidents import await_recovery

PARTITIONS_MATCH = "partitions_match_source"
#: Maximum number of attempts to apply the plan while another apply (execution of a plan) of the processor is open, and
#: seconds between two attempts.
LOOKS, LOOK_EVERY_S = 60, 1.0
#: Maximum seconds to wait until every broker knows a topic that was just created, and seconds between two checks.
SETTLE_S, SETTLE_CHECK_EVERY_S = 15.0, 0.2


def changelog_asset(definition: ProcessorDefinition, changelog: ChangelogSpec) -> dg.AssetsDefinition:
    """The Dagster asset of one store's changelog."""
    topology = definition.topology
    key = keys.changelog_key(definition.name, changelog.store)
    store = next(store for store in topology.stores if store.name == changelog.store)

    @dg.asset(
        key=key,
        deps=[keys.topic_key(name) for name in store.inputs],
        description=f"Compacted changelog of store {changelog.store}: every state update, of which Kafka keeps the "
        "newest per key. Materialising it creates and corrects the topics that the processor needs.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"kafka", "changelog"},
        pool="deploys",
        tags=keys.tags(keys.CHANGELOGS),
        metadata={
            "topic": changelog.topic.name,
            "dagster/uri": f"kafka://{changelog.topic.name}",
            **docs("changelogs.md"),
        },
        check_specs=[
            dg.AssetCheckSpec(
                CONFIG_MATCHES, asset=key, blocking=True, description="The topic exists and has the required config."
            ),
            dg.AssetCheckSpec(
                PARTITIONS_MATCH,
                asset=key,
                blocking=True,
                description="The topic has as many partitions as its inputs.",
            ),
        ],
    )
    def provision_changelog(
        context: dg.AssetExecutionContext, cluster: dg.ResourceParam[Cluster], lifecycle: dg.ResourceParam[Lifecycle]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:  # type: ignore[type-arg]
        topics = cluster.topics()
        verbs = lifecycle.verbs(actor_of(context.run))
        await_recovery(definition.name, lifecycle.world.registry, context.log.info)
        plan = provisioned(verbs, definition.name, context.log.info)
        if isinstance(plan.verdict, Refused):
            facts = topics.describe([spec.name for spec in topology.topics()])
            yield from (each.result() for each in judge_topic(definition, changelog, topics, facts))
            raise refusal(plan, plan.verdict)
        facts = _settled_facts(topics, topology)
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=_describe(facts[changelog.topic.name], plan),
            data_version=LIVE,
            check_results=[each.result() for each in judge_topic(definition, changelog, topics, facts)],
        )

    return provision_changelog


def provisioned(
    verbs: Verbs, processor: str, log: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> Plan:
    """Plan and apply the verb ``provision``, which creates topics; returns the plan. A refused plan is not applied.

    One run may materialise two changelogs of a processor at the same time. The second step then waits until the first
    step has applied its plan, and finds nothing left to do. ``log`` is called with the explanation and the progress.
    ``wait`` is the function that pauses between two attempts.

    Raises:
        ApplyInProgress: Another plan of the processor was being applied for ``LOOKS * LOOK_EVERY_S`` seconds.
        HoldfastError: A stage failed.
    """
    for left in reversed(range(LOOKS)):
        plan = verbs.plan(Provision(processor))
        log(explain(plan))
        if isinstance(plan.verdict, Refused):
            return plan
        try:
            verbs.apply(plan, tell=progress_log(log))
        except (ApplyInProgress, RecoveryInProgress, PlanStale) as busy:
            if not left:
                raise
            log(f"{busy.message} Waiting for it.")
            wait(LOOK_EVERY_S)
        else:
            return plan
    raise AssertionError("the last attempt returns or raises")


def _describe(facts: TopicFacts, plan: Plan) -> dict[str, Any]:
    entries = sorted(name for name in (*CHANGELOG_CONFIG, MIN_INSYNC) if name in facts.config)
    shown = "\n".join(f"| {name} | {facts.config[name]} |" for name in entries)
    return {
        "topic": facts.name,
        "topic_id": facts.topic_id,
        "partitions": facts.partitions,
        "replication": facts.replication,
        "stages_applied": len(plan.stages),
        "explanation": dg.MetadataValue.md(explain_markdown(plan)),
        "plan": plan.hash,
        "config": dg.MetadataValue.md(f"| entry | value |\n|---|---|\n{shown}"),
    }


def judge_topic(
    definition: ProcessorDefinition, changelog: ChangelogSpec, topics: Topics, facts: Mapping[str, TopicFacts]
) -> Iterator[CheckResult]:
    """Returns the results of the checks of one changelog; ``facts`` maps each topic of the processor to its properties.

    Raises:
        HoldfastError: Kafka does not answer.
    """
    name = changelog.topic.name
    _, expected = provisioning.resolve(definition.topology, facts)[name]
    seen = facts.get(name)
    starts = {} if seen is None else topics.offsets_of_all({name: seen.partitions}, "start")
    look = Look(time.time(), facts, starts)
    yield topic_checks.result_of(topic_health.judge_config(definition.name, changelog, expected, look, None))
    found = 0 if seen is None else seen.partitions
    refused = seen and provisioning.wrong_count("changelog", expected, seen, definition.topology)
    yield CheckResult(
        keys.changelog_key(definition.name, changelog.store),
        PARTITIONS_MATCH,
        found == expected.partitions,
        f"The changelog has {found} partitions, its inputs have {expected.partitions}.",
        "equal numbers",
        refused.action if refused else "",
        metadata={"partitions": found, "expected_partitions": expected.partitions or 0},
    )


def _settled_facts(topics: Topics, topology: Topology) -> dict[str, TopicFacts]:
    """Reads facts of all topics of a processor, by name; missing topics are left out.

    Waits at most ``SETTLE_S`` seconds until all topics exist.
    """
    names = [spec.name for spec in topology.topics()]
    facts: dict[str, TopicFacts] = {}

    def settled() -> bool:
        nonlocal facts
        facts = topics.describe(names)
        return len(facts) == len(set(names))

    wait_until(settled, SETTLE_S, every_s=SETTLE_CHECK_EVERY_S)
    return facts
