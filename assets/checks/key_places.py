"""The check `keys_partitioned_alike` of each processor with state; the nightly schedule also runs this check."""

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.ports import Cluster
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine import same_partitioner
from holdfast.processors.engine.provisioning import read_facts
from holdfast.processors.engine.topology import Topology

KEYS_ALIKE = "keys_partitioned_alike"


def key_places_check_keys(definition: ProcessorDefinition) -> list[dg.AssetCheckKey]:
    """The key of the check that ``key_places_check`` defines; empty for a processor without state."""
    if not definition.topology.stores:
        return []
    return [dg.AssetCheckKey(keys.processor_key(definition.name), KEYS_ALIKE)]


def key_places_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Defines the check that all inputs which share state use the same partitioner, judged by their newest keys."""

    @dg.asset_check(
        asset=keys.processor_key(definition.name),
        name=KEYS_ALIKE,
        description="The newest keys of all inputs that share state lie where one partitioner puts them, so that the "
        "messages of a key meet in one task.",
    )
    def keys_partitioned_alike(cluster: dg.ResourceParam[Cluster]) -> dg.AssetCheckResult:
        return key_places_result(definition.topology, cluster.topics()).result()

    return keys_partitioned_alike


def key_places_result(topology: Topology, topics: Topics) -> CheckResult:
    """The result of the check, computed from the newest records of the topics.

    The severity is that of a worker's start: an error if the worker would refuse to start, a warning if it would only
    log a warning.
    """
    facts = read_facts(topics, topology)
    judged = same_partitioner.judged_topics(topology, facts)
    sampled = topics.newest_keys(judged)
    found = same_partitioner.judge(topology, facts, sampled)
    seen = {topic: len(frozenset().union(*of.values())) for topic, of in sampled.items()}
    count = sum(seen.values())
    return CheckResult(
        keys.processor_key(topology.processor),
        KEYS_ALIKE,
        not found,
        " ".join(each.sentence for each in found)
        or f"The {count:,} newest keys of {len(judged)} topics with several partitions show one partitioner.",
        "the messages of a key are in one task",
        " ".join(dict.fromkeys(each.action for each in found)),
        warns=not any(each.is_refused for each in found),
        metadata={"topics": len(judged), "keys": count},
    )
