"""Changelog assets: materialising one provisions what its processor needs, and says what it did.

Invariants:
    - Planning is processors.lifecycle.provision's; nothing is decided here.
    - A plan with refusals changes nothing, and the step fails with the refusal's own words.
"""

from collections.abc import Iterator, Mapping

import dagster as dg

from assets import checks, keys
from assets.ports import Cluster
from infra.kafka.records import TopicFacts, TopicSpec
from processors.lifecycle import provision
from processors.registration import ProcessorDefinition
from processors.topology import ChangelogSpec

CONFIG_MATCHES = "config_matches_spec"
PARTITIONS_MATCH = "partitions_match_source"


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
        context: dg.AssetExecutionContext, cluster: dg.ResourceParam[Cluster]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:  # type: ignore[type-arg]
        topics = cluster.topics()
        plan = provision.plan(topology, provision.read_facts(topics, topology))
        explanation = provision.explain(plan)
        context.log.info(f"Plan for {definition.name}:\n{explanation}")
        if plan.refusals:
            yield from _judge(definition, changelog, topics.describe([spec.name for spec in topology.topics()]))
            raise dg.Failure(
                description=f"Nothing was changed:\n{explanation}",
                metadata={"explanation": dg.MetadataValue.md(explanation)},
                allow_retries=False,
            )
        provision.apply(plan, topics)
        facts = checks.settled_facts(topics, topology)
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=_describe(facts[changelog.topic.name], explanation, len(plan.stages)),
            check_results=list(_judge(definition, changelog, facts)),
        )

    return provision_changelog


def _describe(facts: TopicFacts, explanation: str, stages: int) -> dict[str, dg.MetadataValue]:
    shown = "\n".join(f"| {name} | {value} |" for name, value in sorted(_shown(facts).items()))
    return {
        "topic": dg.MetadataValue.text(facts.name),
        "topic_id": dg.MetadataValue.text(facts.topic_id),
        "partitions": dg.MetadataValue.int(facts.partitions),
        "replication": dg.MetadataValue.int(facts.replication),
        "stages_applied": dg.MetadataValue.int(stages),
        "explanation": dg.MetadataValue.md(explanation),
        "config": dg.MetadataValue.md(f"| entry | value |\n|---|---|\n{shown}"),
    }


def _shown(facts: TopicFacts) -> Mapping[str, str]:
    names = ("cleanup.policy", "min.compaction.lag.ms", "delete.retention.ms", "segment.bytes", "min.insync.replicas")
    return {name: facts.config[name] for name in names if name in facts.config}


def _judge(
    definition: ProcessorDefinition, changelog: ChangelogSpec, facts: Mapping[str, TopicFacts]
) -> Iterator[dg.AssetCheckResult]:
    key = keys.changelog_key(definition.name, changelog.store)
    _, expected = provision.resolve(definition.topology, facts)[changelog.topic.name]
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
