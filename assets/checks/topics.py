"""The checks of topics and changelogs. A sensor reports them every 15 s; they can also run on demand.

Invariants:
    - ``processors.lifecycle.health.topics`` decides each check and writes its text. This module only converts these
      decisions to check results.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult, check_of_each
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.inspection.hanging_transactions import OpenTransaction
from holdfast.infra.kafka.inspection.inspection import REQUEST_TIMEOUT_S, Inspector
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.topology import ChangelogSpec, Topology
from holdfast.processors.lifecycle.deploy.marking import behind
from holdfast.processors.lifecycle.health import topics as topic_health
from holdfast.processors.lifecycle.health.topics import CONFIG_MATCHES, Finding, Look
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.recovery import rediscovery

#: The checks of a source topic: name -> description.
OF_TOPICS = {
    topic_health.OFFSETS_WITHIN_LOG: "The topic still has every record that its processors have not processed.",
    topic_health.PARTITION_COUNT: "The topic has as many partitions as the state that was built from it.",
}
#: The sentence that each check shows when it passes.
PASSED = {
    CONFIG_MATCHES: "Changelog {topic} exists, has all its records and the config that state needs.",
    topic_health.NO_HANGING_TRANSACTION: "No transaction holds the last stable offset of changelog {topic}.",
    topic_health.OFFSETS_WITHIN_LOG: "All committed offsets are within the log of topic {topic}.",
    topic_health.PARTITION_COUNT: "Topic {topic} has {partitions} partitions; all state from it has as many.",
    topic_health.TOPIC_EXISTS: "Topic {topic} exists.",
}
#: An adoption is the entry of a running processor in an empty registry (database of deployments), after the registry
#: was lost. Adoptions are searched among this many newest actions of the registry.
ACTIONS_MAX = 1000
#: The description of the check of output and dead-letter topics.
EXISTS_SAYS = "The topic exists, so that its processors can write to it."
#: The name of a check: did a deploy record the processor in the registry (database of deployments)? The check warns
#: after the registry was lost. It fails if the registry was replaced by a backup without the newest deployment.
REGISTERED = "registered"
REGISTERED_SAYS = "The registry has the newest deployment of this processor, recorded by a deploy."


def key_of(finding: Finding) -> dg.AssetKey:
    """The key of the asset (changelog or topic) to which a finding belongs."""
    if finding.store:
        return keys.changelog_key(finding.processor, finding.store)
    return keys.topic_key(finding.topic)


def evaluation(finding: Finding) -> dg.AssetCheckEvaluation:
    """Converts a finding to the event that the sensor reports without a run."""
    return result_of(finding).evaluation(blocking=finding.check == CONFIG_MATCHES)


def registered(processor: str, adopted: str, old: Behind | None) -> CheckResult:
    """The result of the check that a deploy recorded the processor's newest deployment in Holdfast's registry.

    The registry is a database of deployments. After it was lost, a running processor can be adopted: it is entered into
    the empty registry without a deploy. ``adopted`` describes the adoption; it is empty if there was none. ``old`` is
    the finding that the registry lacks the newest deployment; None if it has the deployment.
    """
    key = keys.processor_key(processor)
    if old is not None:
        return CheckResult(key, REGISTERED, False, old.sentence, action=old.action)
    sentence = adopted or f"A deploy registered processor {processor}."
    return CheckResult(key, REGISTERED, not adopted, sentence, warns=True)


def look_at(
    watched: Sequence[Topology],
    topics: Topics,
    client_config: Mapping[str, Any],
    now: float,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Look:
    """Reads the facts of all topics of these processors and the offsets of their groups, with a few requests.

    Raises:
        HoldfastError: Kafka does not answer. If only the offsets of a group cannot be read, the group is left out.
    """
    with Inspector(topics.bootstrap, client_config, timeout_s=timeout_s) as inspector:
        committed = _committed(inspector, [each.processor for each in watched])
    facts = topics.describe([spec.name for each in watched for spec in each.topics()])
    logs = {log.topic.name for each in watched for log in each.changelogs}
    read = logs | {spec.name for each in watched for spec in each.inputs}
    partitions = {name: each.partitions for name, each in facts.items() if name in read}
    return Look(
        now=now,
        topics=facts,
        starts=topics.offsets_of_all(partitions, "start"),
        stable=topics.offsets_of_all({name: count for name, count in partitions.items() if name in logs}, "stable"),
        ends=topics.offsets_of_all(partitions, "end"),
        committed=committed,
    )


def open_on(
    places: Mapping[str, Sequence[int]], bootstrap: str, client_config: Mapping[str, Any]
) -> dict[Partition, tuple[OpenTransaction, ...]]:
    """Maps each partition to its open transactions; ``places`` maps topics to the partitions that are asked for.

    A topic that this client may not read is left out. After a broker did not answer, all remaining topics are left out,
    too, because each request would wait for its full timeout.
    """
    found: dict[Partition, tuple[OpenTransaction, ...]] = {}
    if not places:
        return found
    with suppress(HoldfastError), Inspector(bootstrap, client_config) as inspector:
        for topic, numbers in places.items():
            try:
                transactions = inspector.open_transactions(topic, numbers)
            except BrokerUnreachable:
                break
            except KafkaFailed:
                continue
            for each in transactions:
                found[each.partition] = (*found.get(each.partition, ()), each)
    return found


def watch_checks(definitions: Sequence[ProcessorDefinition]) -> list[dg.AssetChecksDefinition]:
    """The checks of topics, changelogs and recorded deployments, as Dagster checks that can run on demand."""
    changelogs = [_changelog_check(each) for each in definitions if each.topology.changelogs]
    return [*_topic_checks(definitions), *changelogs, *(_registered_check(each) for each in definitions)]


def adopted_now(lifecycle: Lifecycle) -> dict[str, str]:
    """Maps each processor that was adopted in the last hour to a description of the adoption.

    A processor is adopted if it runs and is entered into an empty registry without a deploy.
    """
    since = lifecycle.world.clock().timestamp() - rediscovery.TOLD_S
    actions = lifecycle.world.registry.actions(ACTIONS_MAX)
    found = [each for each in actions if each.verb == rediscovery.ADOPT and each.finished_at.timestamp() > since]
    return {each.subject: each.plan for each in found}


def _registered_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    key = keys.processor_key(definition.name)

    @dg.asset_check(asset=key, name=REGISTERED, description=REGISTERED_SAYS)
    def registered_check(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        adopted = adopted_now(lifecycle).get(definition.name, "")
        return registered(definition.name, adopted, behind(definition.name, lifecycle.world)).result()

    return registered_check


def _topic_checks(definitions: Sequence[ProcessorDefinition]) -> list[dg.AssetChecksDefinition]:
    readers: dict[str, list[Topology]] = {}
    for definition in definitions:
        for spec in definition.topology.inputs:
            readers.setdefault(spec.name, []).append(definition.topology)
    writers = topic_health.writers_of(each.topology for each in definitions)
    return [
        *(_topic_check(topic, reading) for topic, reading in sorted(readers.items())),
        *(_existence_check(topic, writing) for topic, writing in sorted(writers.items())),
    ]


def _existence_check(topic: str, writers: Sequence[Topology]) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=keys.topic_key(topic), name=topic_health.TOPIC_EXISTS, description=EXISTS_SAYS)
    def topic_exists(cluster: dg.ResourceParam[Cluster]) -> dg.AssetCheckResult:
        return result_of(topic_health.judge_existence(topic, writers, cluster.topics().describe([topic]))).result()

    return topic_exists


def _topic_check(topic: str, readers: Sequence[Topology]) -> dg.AssetChecksDefinition:
    key = keys.topic_key(topic)

    @dg.multi_asset_check(
        name=f"{keys.safe(topic)}_watch_checks",
        specs=[dg.AssetCheckSpec(name, asset=key, description=text) for name, text in OF_TOPICS.items()],
        can_subset=True,
    )
    def topic_checks(
        context: dg.AssetCheckExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> Iterable[dg.AssetCheckResult]:
        look = look_at(readers, cluster.topics(), cluster.client_config, lifecycle.world.clock().timestamp())
        wanted = {each.name for each in context.selected_asset_check_keys}
        for finding in (
            topic_health.judge_offsets(topic, [each.processor for each in readers], look, None),
            topic_health.judge_partitions(topic, readers, look),
        ):
            if finding.check in wanted:
                yield result_of(finding).result()

    return topic_checks


def _changelog_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    def results(
        context: dg.AssetCheckExecutionContext, chosen: Sequence[ChangelogSpec], cluster: Cluster, _: Lifecycle
    ) -> Iterator[CheckResult]:
        topics = cluster.topics()
        facts = topics.describe([spec.topic.name for spec in chosen])
        partitions = {name: each.partitions for name, each in facts.items()}
        stable, ends = topics.offsets_of_all(partitions, "stable"), topics.offsets_of_all(partitions, "end")
        places = {name: [n for n, at in each.items() if at < ends[name].get(n, at)] for name, each in stable.items()}
        behind = {name: numbers for name, numbers in places.items() if numbers}
        found = open_on(behind, cluster.bootstrap, cluster.client_config)
        for spec in chosen:
            name = spec.topic.name
            held = [
                topic_health.HeldPartition(place, stable[name][place.number], ends[name][place.number], stood_s, there)
                for place, there in sorted(found.items())
                if place.topic == name
                and (stood_s := max(each.open_for_s for each in there)) >= topic_health.HELD_S
                and place.number in stable[name]
            ]
            yield result_of(topic_health.judge_transactions(definition.name, spec, held))

    return check_of_each(
        f"{keys.safe(definition.name)}_transaction_checks",
        topic_health.NO_HANGING_TRANSACTION,
        "No transaction holds back the changelog: Kafka compacts it, and a restore reads it to its end.",
        {keys.changelog_key(definition.name, spec.store): spec for spec in definition.topology.changelogs},
        results,
    )


def _committed(inspector: Inspector, groups: Sequence[str]) -> dict[str, dict[Partition, int]]:
    """Maps groups to committed offsets: one request for all groups; if that fails, one request for each group."""
    try:
        return inspector.committed(groups)
    except HoldfastError:
        found: dict[str, dict[Partition, int]] = {}
        for group in groups:
            with suppress(HoldfastError):
                found |= inspector.committed([group])
        return found


def result_of(finding: Finding) -> CheckResult:
    """Converts a finding to the result of its check."""
    sentence = finding.sentence or PASSED[finding.check].format(topic=finding.topic, **finding.numbers)
    metadata: dict[str, Any] = {**finding.numbers, "topic": finding.topic}
    if finding.action:
        metadata["remedy"] = dg.MetadataValue.md(finding.action)
    return CheckResult(
        key_of(finding), finding.check, finding.passed, sentence, action=finding.action, metadata=metadata
    )
