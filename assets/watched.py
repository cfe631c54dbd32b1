"""The checks that look at topics as they are: told by a sensor every half minute, and run on demand.

Invariants:
    - What is said is decided by ``processors.lifecycle.health.topics``; here it becomes a check's result, nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.inspection import REQUEST_TIMEOUT_S, Inspector, OpenTransaction
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics import Topics
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.health import topics as topic_health
from holdfast.processors.lifecycle.health.topics import CONFIG_MATCHES, Finding, Look
from holdfast.processors.lifecycle.recovery import rediscovery
from holdfast.processors.registration import ProcessorDefinition

#: The checks of a source topic, and what they say.
OF_TOPICS = {
    topic_health.OFFSETS_WITHIN_LOG: "Whatever its readers have still to process is in the topic.",
    topic_health.PARTITION_COUNT: "It has as many partitions as the state that was built from it.",
}
#: So many actions are looked through for adoptions: they are the first that a new registry has.
ACTIONS_MAX = 1000
#: The check of a processor that tells of a registry that was lost.
REGISTERED = "registered"
REGISTERED_SAYS = (
    "What it is meant to be was recorded when it was deployed, and not found out after the registry was lost."
)
HANGING_SAYS = "No transaction holds it, so that it is compacted and can be restored to its end."


def key_of(finding: Finding) -> dg.AssetKey:
    """The asset that a finding is about."""
    if finding.store:
        return keys.changelog_key(finding.processor, finding.store)
    return keys.topic_key(finding.topic)


def evaluation(finding: Finding) -> dg.AssetCheckEvaluation:
    """A finding as an event that needs no run."""
    return dg.AssetCheckEvaluation(
        asset_key=key_of(finding),
        check_name=finding.check,
        passed=finding.passed,
        metadata=_metadata(finding),
        severity=dg.AssetCheckSeverity.ERROR,
        description=finding.text,
        blocking=finding.check == CONFIG_MATCHES,
    )


def registered(processor: str, adopted: str) -> dg.AssetCheckEvaluation:
    """Whether a processor is recorded; ``adopted`` is what is to be told of one that was adopted, else empty."""
    return dg.AssetCheckEvaluation(
        asset_key=keys.processor_key(processor),
        check_name=REGISTERED,
        passed=not adopted,
        metadata={},
        severity=dg.AssetCheckSeverity.WARN,
        description=adopted,
        blocking=False,
    )


def look_at(
    watched: Sequence[Topology],
    topics: Topics,
    client_config: Mapping[str, Any],
    now: float,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Look:
    """The facts of all topics of these processors, and the offsets of their groups: a handful of requests.

    Raises:
        HoldfastError: Kafka can't be asked. Offsets of groups that it won't tell are left out.
    """
    names = [spec.name for each in watched for spec in (*each.inputs, *(log.topic for log in each.changelogs))]
    with Inspector(topics.bootstrap, client_config, timeout_s=timeout_s) as inspector:
        committed = _committed(inspector, [each.processor for each in watched])
    facts = topics.describe(names)
    partitions = {name: each.partitions for name, each in facts.items()}
    logs = {log.topic.name for each in watched for log in each.changelogs}
    return Look(
        now=now,
        topics=facts,
        starts=topics.offsets_of_all({name: count for name, count in partitions.items() if name not in logs}, "start"),
        stable=topics.offsets_of_all({name: count for name, count in partitions.items() if name in logs}, "stable"),
        ends=topics.offsets_of_all(partitions, "end"),
        committed=committed,
    )


def open_on(
    places: Mapping[str, Sequence[int]], bootstrap: str, client_config: Mapping[str, Any]
) -> dict[Partition, tuple[OpenTransaction, ...]]:
    """The transactions that are open on these partitions (topic -> numbers); none where the brokers won't tell."""
    found: dict[Partition, tuple[OpenTransaction, ...]] = {}
    if not places:
        return found
    try:
        with Inspector(bootstrap, client_config) as inspector:
            for topic, numbers in places.items():
                for each in inspector.open_transactions(topic, numbers):
                    found[each.partition] = (*found.get(each.partition, ()), each)
    except HoldfastError:
        return found
    return found


def watch_checks(definitions: Sequence[ProcessorDefinition]) -> list[dg.AssetChecksDefinition]:
    """The checks of source topics and changelogs, to be run on demand."""
    changelogs = [_changelog_check(each) for each in definitions if each.topology.changelogs]
    return [*_topic_checks(definitions), *changelogs, *(_registered_check(each) for each in definitions)]


def adopted_now(lifecycle: Lifecycle) -> dict[str, str]:
    """What is to be told of processors that were adopted a short while ago, by name."""
    since = lifecycle.world.clock().timestamp() - rediscovery.TOLD_S
    actions = lifecycle.world.registry.actions(ACTIONS_MAX)
    found = [each for each in actions if each.verb == rediscovery.ADOPT and each.finished_at.timestamp() > since]
    return {each.subject: each.plan for each in found}


def _registered_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    key = keys.processor_key(definition.name)

    @dg.asset_check(asset=key, name=REGISTERED, description=REGISTERED_SAYS)
    def registered_check(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        text = adopted_now(lifecycle).get(definition.name, "")
        return dg.AssetCheckResult(passed=not text, description=text, severity=dg.AssetCheckSeverity.WARN)

    return registered_check


def _topic_checks(definitions: Sequence[ProcessorDefinition]) -> list[dg.AssetChecksDefinition]:
    readers: dict[str, list[Topology]] = {}
    for definition in definitions:
        for spec in definition.topology.inputs:
            readers.setdefault(spec.name, []).append(definition.topology)
    return [_topic_check(topic, reading) for topic, reading in sorted(readers.items())]


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
            topic_health.judge_partitions(topic, readers, look.topics),
        ):
            if finding.check in wanted:
                yield _result(finding)

    return topic_checks


def _changelog_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    changelogs = {keys.changelog_key(definition.name, spec.store): spec for spec in definition.topology.changelogs}

    @dg.multi_asset_check(
        name=f"{keys.safe(definition.name)}_transaction_checks",
        specs=[
            dg.AssetCheckSpec(topic_health.NO_HANGING_TRANSACTION, asset=key, description=HANGING_SAYS)
            for key in changelogs
        ],
        can_subset=True,
    )
    def transaction_checks(
        context: dg.AssetCheckExecutionContext, cluster: dg.ResourceParam[Cluster]
    ) -> Iterable[dg.AssetCheckResult]:
        chosen = [changelogs[key.asset_key] for key in sorted(context.selected_asset_check_keys)]
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
            yield _result(topic_health.judge_transactions(definition.name, spec, held))

    return transaction_checks


def _committed(inspector: Inspector, groups: Sequence[str]) -> dict[str, dict[Partition, int]]:
    """All in one request; one by one where a group can't be told, so that it hides no other."""
    try:
        return inspector.committed(groups)
    except HoldfastError:
        found: dict[str, dict[Partition, int]] = {}
        for group in groups:
            try:
                found |= inspector.committed([group])
            except HoldfastError:
                continue
        return found


def _result(finding: Finding) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key_of(finding),
        check_name=finding.check,
        passed=finding.passed,
        description=finding.text,
        metadata=_metadata(finding),
    )


def _metadata(finding: Finding) -> dict[str, dg.MetadataValue]:
    shown: dict[str, dg.MetadataValue] = {
        name: dg.MetadataValue.int(value) if isinstance(value, int) else dg.MetadataValue.float(value)
        for name, value in finding.numbers.items()
    }
    shown["topic"] = dg.MetadataValue.text(finding.topic)
    if finding.action:
        shown["remedy"] = dg.MetadataValue.md(finding.action)
    return shown
