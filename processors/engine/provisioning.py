"""Compares the topics that a processor needs with the topics of the cluster, and creates or repairs them.

``read_facts`` reads the cluster. The pure function ``plan`` decides the stages, and ``apply`` carries them out.

Invariants:
    - Nothing is deleted or reduced: a wrong partition count is refused, and a retention above the standard is kept.
    - A starting worker does not change an existing changelog. Only ``holdfast apply provision`` repairs a changelog's
      configuration that endangers state.
    - The replication of a changelog is chosen at its creation, from the number of brokers, and is never changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import KeysOf, TopicFacts, TopicSpec
from holdfast.infra.log import get_logger
from holdfast.processors.engine.changelog.config import (
    ENTRIES,
    MIN_INSYNC,
    REPARTITION_ENTRIES,
    Entry,
    drift,
    durability,
    kept_longer,
    min_insync,
    reason_for,
)
from holdfast.processors.engine.changelog.names import CHANGELOG_SUFFIX
from holdfast.processors.engine.table_topics import forgetful, table_warnings
from holdfast.processors.engine.topology import RepartitionSpec, Topology

_log = get_logger("application")

#: The role of input topics that other programs write.
SOURCE = "source topic"
_CAUSES_OF_MISSING = {
    "changelog": "changelog-missing",
    SOURCE: "source-missing",
    "repartition topic": "source-missing",
    "global table": "source-missing",
}


class TopicWorld(Protocol):
    """The requests to Kafka's admin interface that provisioning needs."""

    def ping(self) -> int:
        """Returns the number of brokers."""

    def names(self) -> Sequence[str]:
        """Returns the names of all topics that this client is allowed to see."""

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """Returns the actual properties of those topics in ``names`` that exist."""

    def create(self, spec: TopicSpec) -> bool:
        """Creates a topic. Returns False if the topic already exists."""

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Sets the configuration entries in ``config``. All other entries of the topic stay unchanged."""

    def newest_keys(self, partitions: Mapping[str, int]) -> Mapping[str, KeysOf]:
        """Returns, for each topic, the message keys of its newest records.

        ``partitions`` has the number of partitions of each topic.
        """


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A stage of the plan that creates a missing topic."""

    spec: TopicSpec
    role: str
    #: The reasons for the topic's replication and configuration.
    reasons: tuple[str, ...] = ()
    #: If the topic is a missing input, the existing topic with the most similar name, because the input may be
    #: misspelled.
    nearest: str | None = None

    @property
    def is_input(self) -> bool:
        """Whether the processor only reads the topic. If such a topic is missing, its name may be misspelled."""
        return self.role == SOURCE

    def sentence(self) -> str:
        """Describes the stage as a sentence for the user."""
        meant = f": is {self.nearest} meant, which exists?" if self.nearest else ""
        empty = f"; it did not exist before{meant}" if self.is_input else ""
        copies = "the cluster's default" if self.spec.replication is None else str(self.spec.replication)
        config = ", ".join(f"{name}={value}" for name, value in self.spec.config.items()) or "cluster defaults"
        many = "" if self.spec.partitions == 1 else "s"
        shape = f"{self.spec.partitions} partition{many}, replication {copies}, {config}"
        return f"create {self.role} {self.spec.name}: {shape}{empty}"


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """A stage that sets configuration entries of an internal topic, so that Kafka keeps its records long enough."""

    topic: str
    seen: Mapping[str, str]
    expected: Mapping[str, str]
    #: The reason for each configuration entry.
    reasons: tuple[str, ...] = ()
    role: str = "changelog"

    def sentence(self) -> str:
        """Describes the stage as a sentence for the user."""
        parts = [f"{name} from {self.seen.get(name, 'unset')} to {value}" for name, value in self.expected.items()]
        return f"set on {self.role} {self.topic}: {'; '.join(parts)}"


Stage = CreateTopic | RepairConfig


@dataclass(frozen=True, slots=True)
class Refusal:
    """A difference that provisioning can't repair, with the edit or command that repairs it."""

    topic: str
    sentence: str
    action: str
    #: The kind of the problem, by which automatic recovery chooses a remedy. Empty if recovery has no remedy for it.
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionPlan:
    """Stages to apply in order, and refusals. If there is a refusal, no stage is applied."""

    stages: tuple[Stage, ...]
    refusals: tuple[Refusal, ...]
    #: A sentence for each difference from the expected configuration that is accepted. Provisioning does not change
    #: this configuration.
    kept: tuple[str, ...] = ()

    def raise_refusals(self) -> None:
        """Raises TopicUnusable for the first refusal, if there is one."""
        for refusal in self.refusals:
            raise TopicUnusable(refusal.sentence, action=refusal.action, cause=refusal.cause, topic=refusal.topic)


def read_facts(topics: TopicWorld, topology: Topology) -> dict[str, TopicFacts]:
    """Reads the properties of the processor's topics from Kafka. A missing topic has no entry."""
    return topics.describe([spec.name for spec in topology.topics()])


def brokers_if_asked(topics: TopicWorld, topology: Topology, facts: Mapping[str, TopicFacts]) -> int | None:
    """Asks Kafka for the number of brokers if an internal topic is missing. Otherwise returns None without a request.

    The replication of a topic that is to be created depends on the number of brokers.
    """
    own = [*(each.topic.name for each in topology.changelogs), *(each.topic for each in topology.repartitions)]
    missing = any(name not in facts for name in own)
    return topics.ping() if missing else None


def others_if_asked(topics: TopicWorld, topology: Topology, facts: Mapping[str, TopicFacts]) -> Sequence[str]:
    """Asks Kafka for the names of all topics if an input is missing, to suggest one; otherwise returns no names."""
    return () if all(spec.name in facts for spec in topology.sources) else topics.names()


def resolve(
    topology: Topology, facts: Mapping[str, TopicFacts], brokers: int | None = None
) -> dict[str, tuple[str, TopicSpec]]:
    """Returns the role of each topic, and its specification: partition count, replication and configuration.

    If ``brokers`` (the number of brokers) is None, a missing changelog gets the replication of its inputs.
    """
    resolved: dict[str, tuple[str, TopicSpec]] = {}
    for spec in topology.sources:
        resolved[spec.name] = (SOURCE, _filled(spec, facts, 1))
    for grouped in topology.repartitions:
        resolved[grouped.topic] = ("repartition topic", _repartition_spec(grouped, topology, resolved, facts, brokers))
    widest = max((resolved[spec.name][1].partitions or 1 for spec in topology.inputs), default=1)
    for spec in topology.global_tables:
        resolved.setdefault(spec.name, ("global table", _filled(spec, facts, 1)))
    for spec in topology.outputs:
        resolved.setdefault(spec.name, ("output topic", _filled(spec, facts, widest)))
    if topology.dead_letter is not None:
        resolved.setdefault(topology.dead_letter.name, ("dead-letter topic", _filled(topology.dead_letter, facts, 1)))
    for changelog in topology.changelogs:
        store = next(store for store in topology.stores if store.name == changelog.store)
        count = max(resolved[name][1].partitions or 1 for name in store.inputs)
        inputs = max((resolved[name][1].replication or 0 for name in store.inputs if name in resolved), default=0)
        spec = _changelog_spec(changelog.topic, facts.get(changelog.topic.name), brokers, inputs)
        spec = TopicSpec(spec.name, count, spec.replication, spec.config)
        resolved[changelog.topic.name] = ("changelog", spec)
    return resolved


def _same_width(topology: Topology, counts: Mapping[str, int | None]) -> str:
    """Returns a text that suggests how to repair topics that share a store but have different partition counts."""
    widest = max(count for count in counts.values() if count is not None)
    if all(topology.is_repartition(name) for name in counts):
        return f"Write `partitions={widest}` in each `group_by` of these topics."
    others = ", ".join(name for name, count in counts.items() if count != widest)
    return (
        f"To join them, bring the stream of {others} to {widest} partitions, by the field that is its key: "
        f'`sdf.group_by("field", partitions={widest})`. Or give these topics the same number of partitions. Streams '
        "that are not joined can have a store each: `store=`."
    )


def plan(
    topology: Topology,
    facts: Mapping[str, TopicFacts],
    brokers: int | None = None,
    others: Sequence[str] = (),
) -> ProvisionPlan:
    """Plans the topics to create and the configuration to repair, or the refusals.

    ``brokers`` is the number of brokers, or None. ``others`` has the names of existing topics: the name of a missing
    input may be a misspelling of an existing name.
    """
    stages: list[Stage] = []
    refusals: list[Refusal] = []
    kept: list[str] = []
    resolved = resolve(topology, facts, brokers)
    for store in topology.stores:
        counts = {name: resolved[name][1].partitions for name in store.inputs}
        if len(set(counts.values())) > 1:
            refusals.append(
                Refusal(
                    store.inputs[0],
                    f"Store {store.name} is shared by topics with different partition counts: {counts}.",
                    _same_width(topology, counts),
                    "source-repartitioned",
                )
            )
    refusals.extend(Refusal(*each, "bad-configuration") for each in forgetful(topology, facts))
    for name, (role, spec) in resolved.items():
        seen = facts.get(name)
        own = role in ("changelog", "repartition topic")
        if own:
            refusals.extend(_insync_refusals(role, spec, seen))
        if seen is None:
            reasons = _reasons(role, spec, brokers) if own else ()
            stages.append(CreateTopic(spec, role, reasons, _nearest(name, others) if role == SOURCE else None))
            continue
        if spec.partitions is not None and seen.partitions != spec.partitions and (own or role == SOURCE):
            refusals.append(wrong_count(role, spec, seen, topology))
        if own:
            repaired = drift(spec.config, seen.config, _entries(role))
            if repaired:
                former = {key: seen.config.get(key, "unset") for key in repaired}
                stages.append(RepairConfig(name, former, repaired, _why(repaired, role), role))
            kept.extend(_kept(spec, seen) if role == "changelog" else ())
    return ProvisionPlan(tuple(stages), tuple(refusals), tuple(kept))


def apply(decided: ProvisionPlan, topics: TopicWorld) -> None:
    """Applies all stages; raises TopicUnusable if the plan has a refusal. It is safe to apply a stage twice."""
    decided.raise_refusals()
    for stage in decided.stages:
        match stage:
            case CreateTopic(spec=spec):
                topics.create(spec)
            case RepairConfig(topic=topic, expected=expected):
                topics.alter(topic, expected)


def check_before_start(
    topology: Topology,
    facts: Mapping[str, TopicFacts],
    *,
    may_create: bool,
    brokers: int | None = None,
    others: Sequence[str] = (),
) -> ProvisionPlan:
    """Returns a plan that creates the missing topics of a starting worker.

    Raises:
        TopicUnusable: A topic is missing and may not be created, a partition count is wrong, or a changelog has a
            configuration that would lose state.
    """
    decided = plan(topology, facts, brokers, others)
    decided.raise_refusals()
    for stage in decided.stages:
        if isinstance(stage, RepairConfig) and topology.is_repartition(stage.topic):
            raise _shortens(stage, topology.processor)
        if isinstance(stage, RepairConfig) and stage.seen.get("cleanup.policy", "compact") != "compact":
            raise TopicUnusable(
                f"Changelog {stage.topic} has cleanup.policy={stage.seen['cleanup.policy']}, expected compact: "
                "Kafka would delete state.",
                action=f"Run `holdfast apply provision {topology.processor}`, or set `cleanup.policy=compact` on "
                f"{stage.topic}.",
                cause="changelog-altered",
                topic=stage.topic,
                seen=stage.seen["cleanup.policy"],
                expected="compact",
            )
        if isinstance(stage, CreateTopic) and not may_create:
            raise TopicUnusable(
                f"The {stage.role} {stage.spec.name} is not there, and this processor may not create topics.",
                action=f"Run `holdfast apply provision {topology.processor}` ({stage.sentence()}). A program "
                "that calls `Application.run()` may set `auto_create_topics=True` instead.",
                cause=_CAUSES_OF_MISSING.get(stage.role, "output-missing"),
                topic=stage.spec.name,
                store=topology.store_of(stage.spec.name),
            )
    return ProvisionPlan(tuple(stage for stage in decided.stages if isinstance(stage, CreateTopic)), ())


def prepare(topics: TopicWorld, topology: Topology, *, may_create: bool) -> Mapping[str, TopicFacts]:
    """Creates the missing topics of a starting processor, if that is allowed; returns all its topics' properties."""
    facts = read_facts(topics, topology)
    _log.info(f"topics required by application {topology.processor!r}:")
    brokers = brokers_if_asked(topics, topology, facts)
    for name, (role, spec) in resolve(topology, facts, brokers).items():
        _log.info(
            f"  {role} {name}",
            partitions=spec.partitions,
            replication=spec.replication or "cluster default",
            config=dict(spec.config) or "cluster default",
            there=name in facts,
        )
    others = others_if_asked(topics, topology, facts)
    missing = check_before_start(topology, facts, may_create=may_create, brokers=brokers, others=others)
    apply(missing, topics)
    for stage in missing.stages:
        if isinstance(stage, CreateTopic) and stage.is_input:
            _log.warning(
                "the input topic did not exist: it is created, and empty",
                topic=stage.spec.name,
                **({"is_meant_perhaps": stage.nearest} if stage.nearest else {}),
            )
    facts = read_facts(topics, topology) if missing.stages else facts
    for warning in table_warnings(topology, facts):
        _log.warning(warning)
    return facts


def _nearest(name: str, others: Sequence[str]) -> str | None:
    """Returns the existing topic with the most similar name; None if no name is similar.

    Changelogs are left out, because they are never inputs.
    """
    near = difflib.get_close_matches(name, [each for each in others if not each.endswith(CHANGELOG_SUFFIX)], 1)
    return near[0] if near else None


def _filled(spec: TopicSpec, facts: Mapping[str, TopicFacts], partitions: int) -> TopicSpec:
    seen = facts.get(spec.name)
    if seen is None:
        return TopicSpec(spec.name, spec.partitions or partitions, spec.replication, spec.config)
    return TopicSpec(spec.name, spec.partitions or seen.partitions, spec.replication or seen.replication, spec.config)


def _changelog_spec(spec: TopicSpec, seen: TopicFacts | None, brokers: int | None, inputs: int) -> TopicSpec:
    """Adds replication and min.insync.replicas to a changelog's specification. An existing topic keeps its own."""
    if seen is not None:
        least = min_insync(seen.replication)
        present = seen.config.get(MIN_INSYNC, "")
        fine = present.isdecimal() and least <= int(present) <= seen.replication
        insync = present if fine else str(least)
        return TopicSpec(spec.name, None, seen.replication, {MIN_INSYNC: insync, **spec.config})
    if brokers is None:
        return TopicSpec(spec.name, None, inputs or None, spec.config)
    chosen = durability(brokers, inputs)
    return TopicSpec(spec.name, None, chosen.replication, {MIN_INSYNC: str(chosen.min_insync), **spec.config})


def _repartition_spec(
    grouped: RepartitionSpec,
    topology: Topology,
    resolved: Mapping[str, tuple[str, TopicSpec]],
    facts: Mapping[str, TopicFacts],
    brokers: int | None,
) -> TopicSpec:
    """Returns the specification of a repartition topic, with its partition count and its replication."""
    spec = next(each for each in topology.inputs if each.name == grouped.topic)
    beside = [name for name in topology.subtopology_of(grouped.topic).inputs if not topology.is_repartition(name)]
    known = [resolved[name][1] for name in (beside or grouped.sources)]
    count = _partitions_of(grouped, topology, resolved, frozenset())
    copies = max((each.replication or 0 for each in known), default=0)
    made = _changelog_spec(spec, facts.get(spec.name), brokers, copies)
    return TopicSpec(spec.name, count, made.replication, made.config)


def _partitions_of(
    grouped: RepartitionSpec,
    topology: Topology,
    resolved: Mapping[str, tuple[str, TopicSpec]],
    seen: frozenset[str],
) -> int:
    """Returns the partition count of a repartition topic; ``seen`` has topics whose counts are being computed.

    The rules are tried in this order until a rule gives a count: (1) the count declared for this topic; (2) the largest
    count of source topics that share a store with it; (3) the largest declared count of repartition topics that share a
    store with it; (4) the largest count of the source topics whose messages reach this topic.
    """
    declared = {each.name: each.partitions for each in topology.inputs if topology.is_repartition(each.name)}
    if (own := declared[grouped.topic]) is not None:
        return own
    together = topology.subtopology_of(grouped.topic).inputs
    plain = [resolved[name][1].partitions or 1 for name in together if not topology.is_repartition(name)]
    given = [count for name in together if (count := declared.get(name)) is not None]
    if plain or given:
        return max(plain or given)
    seen |= set(together)
    by_topic = {each.topic: each for each in topology.repartitions}
    found = [1]
    for source in (source for name in together for source in by_topic[name].sources):
        if not topology.is_repartition(source):
            found.append(resolved[source][1].partitions or 1)
        elif source not in seen:
            found.append(_partitions_of(by_topic[source], topology, resolved, seen))
    return max(found)


def _shortens(stage: RepairConfig, processor: str) -> TopicUnusable:
    """The error for a repartition topic whose retention may delete messages before workers have processed them."""
    seen = ", ".join(f"{name}={stage.seen[name]}" for name in stage.expected)
    expected = ", ".join(f"{name}={value}" for name, value in stage.expected.items())
    return TopicUnusable(
        f"Repartition topic {stage.topic} has {seen}, expected {expected}: Kafka could delete messages that are not "
        "processed yet, or change their times.",
        action=f"Run `holdfast apply provision {processor}`, which sets it.",
        topic=stage.topic,
        seen=seen,
        expected=expected,
    )


def _insync_refusals(role: str, spec: TopicSpec, seen: TopicFacts | None) -> list[Refusal]:
    asked, copies = spec.config.get(MIN_INSYNC, "0"), spec.replication
    if copies is None or int(asked) <= copies:
        return []
    has = "would have" if seen is None else "has"
    return [
        Refusal(
            spec.name,
            f"{role.capitalize()} {spec.name} is configured with {MIN_INSYNC}={asked}, but {has} {copies} copies: "
            "every write would fail.",
            f"Set `{MIN_INSYNC}` to {copies} or less in `changelog_config`, or raise the topic's replication.",
        )
    ]


def _reasons(role: str, spec: TopicSpec, brokers: int | None) -> tuple[str, ...]:
    if brokers is None or spec.replication is None:
        return _why(spec.config, role)
    copies = f"replication {spec.replication}, {MIN_INSYNC} {spec.config.get(MIN_INSYNC)}"
    return (f"{copies}: {durability(brokers, spec.replication).why}", *_why(spec.config, role))


def _why(config: Mapping[str, str], role: str) -> tuple[str, ...]:
    reasons = ((name, value, reason_for(name, _entries(role))) for name, value in config.items())
    return tuple(f"{name}={value}: {reason}" for name, value, reason in reasons if reason)


def _entries(role: str) -> Mapping[str, Entry]:
    return ENTRIES if role == "changelog" else REPARTITION_ENTRIES


def _kept(spec: TopicSpec, seen: TopicFacts) -> list[str]:
    return [
        f"{name} of {spec.name} is {present}, {value} would be enough; a value that keeps more is not changed"
        for name, (present, value) in kept_longer(spec.config, seen.config).items()
    ]


def wrong_count(role: str, spec: TopicSpec, seen: TopicFacts, topology: Topology) -> Refusal:
    """The refusal for a topic whose partition count differs from the expected count."""
    if role == "repartition topic":
        step = next(each.step for each in topology.repartitions if each.topic == spec.name)
        declare = f"Declare `partitions={seen.partitions}` in `group_by`; or stop" if step == "group_by" else "Stop"
        return Refusal(
            spec.name,
            f"Repartition topic {spec.name} has {seen.partitions} partitions, expected {spec.partitions}: keys would "
            "not be where their state is.",
            f"{declare} the processor, delete the topic, and build the state again: `holdfast apply clear "
            f"{topology.processor} --all --rewind earliest`.",
            "source-repartitioned",
        )
    if role == "changelog":
        name, wide = topology.processor, seen.partitions > (spec.partitions or 0)
        rebuild = f"`holdfast apply clear {name} --all --rewind earliest`; outputs are sent again."
        fill = f"`holdfast apply backfill {name} --store {topology.store_of(spec.name)} --from local`"
        return Refusal(
            spec.name,
            f"Changelog {spec.name} has {seen.partitions} partitions, its store's inputs have {spec.partitions}: "
            "messages would not find the state of their keys.",
            f"Create it again from local state: {fill}. If local state is lost, rebuild it: {rebuild}"
            if wide
            else f"Rebuild the state: {rebuild}",
            "changelog-repartitioned" if wide else "source-repartitioned",
        )
    return Refusal(
        spec.name,
        f"Source topic {spec.name} has {seen.partitions} partitions, the application declares {spec.partitions}.",
        f"Declare `num_partitions={seen.partitions}` for {spec.name}, or leave `config` out.",
    )
