"""Changelog assets: materialising one provisions what its processor needs, and says what it did.

Invariants:
    - What is done is the plan of the verb ``provision``, explained in the materialisation; nothing is decided here.
    - A refused plan changes nothing, and the step fails with the refusal's own words.
"""

import time
from collections.abc import Callable, Iterator, Mapping

import dagster as dg

from holdfast.assets import checks, keys
from holdfast.assets.ports import Cluster, Lifecycle, Verbs
from holdfast.assets.telling import teller
from holdfast.infra.kafka.records import TopicFacts, TopicSpec
from holdfast.processors.engine import required_topics
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG, MIN_INSYNC
from holdfast.processors.engine.topology import ChangelogSpec
from holdfast.processors.lifecycle.plans.apply import ApplyInProgress, PlanStale
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Provision
from holdfast.processors.registration import ProcessorDefinition

CONFIG_MATCHES = "config_matches_spec"
PARTITIONS_MATCH = "partitions_match_source"
#: Who finds another apply under way looks again so often, so many seconds apart.
LOOKS, LOOK_EVERY_S = 60, 1.0


def changelog_asset(definition: ProcessorDefinition, changelog: ChangelogSpec) -> dg.AssetsDefinition:
    """The asset of one store's changelog."""
    topology = definition.topology
    key = keys.changelog_key(definition.name, changelog.store)
    store = next(store for store in topology.stores if store.name == changelog.store)

    @dg.asset(
        key=key,
        deps=[keys.topic_key(name) for name in store.inputs],
        description=f"Compacted changelog of store {changelog.store}: every update of its state, newest per key kept. "
        "Materialising it creates and repairs the topics that the processor needs.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"kafka", "changelog"},
        pool="deploys",
        tags=keys.tags(keys.CHANGELOGS),
        code_version=topology.code_version,
        metadata={"topic": changelog.topic.name, "dagster/uri": f"kafka://{changelog.topic.name}"},
        check_specs=[
            dg.AssetCheckSpec(
                CONFIG_MATCHES, asset=key, blocking=True, description="The topic is compacted, as state needs it."
            ),
            dg.AssetCheckSpec(
                PARTITIONS_MATCH, asset=key, blocking=True, description="It has as many partitions as its inputs."
            ),
        ],
    )
    def provision_changelog(
        context: dg.AssetExecutionContext, cluster: dg.ResourceParam[Cluster], lifecycle: dg.ResourceParam[Lifecycle]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:  # type: ignore[type-arg]
        topics = cluster.topics()
        verbs = lifecycle.verbs(f"dagster run {context.run.run_id}")
        plan = provisioned(verbs, definition.name, context.log.info)
        if isinstance(plan.verdict, Refused):
            yield from _judge(definition, changelog, topics.describe([spec.name for spec in topology.topics()]))
            raise dg.Failure(
                description=f"{plan.verdict.sentence} What to do: {plan.verdict.action}",
                metadata={"explanation": dg.MetadataValue.md(explain_markdown(plan))},
                allow_retries=False,
            )
        facts = checks.settled_facts(topics, topology)
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=_describe(facts[changelog.topic.name], plan),
            check_results=list(_judge(definition, changelog, facts)),
        )

    return provision_changelog


def provisioned(
    verbs: Verbs, processor: str, log: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> Plan:
    """Provision a processor; what was planned, and carried out unless it is refused.

    The steps of two changelogs of one processor may run side by side in a run: who comes second waits for the first,
    and finds nothing left to do.

    Args:
        verbs: Plans and applies.
        processor: Its name.
        log: Told the explanation and the progress.
        wait: Waits for so many seconds.

    Raises:
        ApplyInProgress: Another apply of the processor was open for longer than a provisioning takes.
        HoldfastError: A stage failed.
    """
    for left in reversed(range(LOOKS)):
        plan = verbs.plan(Provision(processor))
        log(explain(plan))
        if isinstance(plan.verdict, Refused):
            return plan
        try:
            verbs.apply(plan, tell=teller(log))
        except (ApplyInProgress, PlanStale) as busy:
            if not left:
                raise
            log(f"{busy.message} Waiting for it.")
            wait(LOOK_EVERY_S)
        else:
            return plan
    raise AssertionError("the last look returns or raises")


def _describe(facts: TopicFacts, plan: Plan) -> dict[str, dg.MetadataValue]:
    shown = "\n".join(f"| {name} | {value} |" for name, value in sorted(_shown(facts).items()))
    return {
        "topic": dg.MetadataValue.text(facts.name),
        "topic_id": dg.MetadataValue.text(facts.topic_id),
        "partitions": dg.MetadataValue.int(facts.partitions),
        "replication": dg.MetadataValue.int(facts.replication),
        "stages_applied": dg.MetadataValue.int(len(plan.stages)),
        "explanation": dg.MetadataValue.md(explain_markdown(plan)),
        "plan": dg.MetadataValue.text(plan.hash),
        "config": dg.MetadataValue.md(f"| entry | value |\n|---|---|\n{shown}"),
    }


def _shown(facts: TopicFacts) -> Mapping[str, str]:
    return {name: facts.config[name] for name in (*CHANGELOG_CONFIG, MIN_INSYNC) if name in facts.config}


def _judge(
    definition: ProcessorDefinition, changelog: ChangelogSpec, facts: Mapping[str, TopicFacts]
) -> Iterator[dg.AssetCheckResult]:
    key = keys.changelog_key(definition.name, changelog.store)
    _, expected = required_topics.resolve(definition.topology, facts)[changelog.topic.name]
    seen = facts.get(changelog.topic.name)
    yield checks.config_result(key, CONFIG_MATCHES, expected, seen)
    yield _partitions_result(key, expected, seen)


def _partitions_result(key: dg.AssetKey, expected: TopicSpec, seen: TopicFacts | None) -> dg.AssetCheckResult:
    found = 0 if seen is None else seen.partitions
    passed = found == expected.partitions
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=PARTITIONS_MATCH,
        passed=passed,
        description="" if passed else f"It has {found} partitions, its inputs have {expected.partitions}.",
        metadata={"partitions": found, "expected_partitions": expected.partitions or 0},
    )
