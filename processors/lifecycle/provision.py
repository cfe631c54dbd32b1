"""Provision: the topics that a processor needs, compared with those that are there.

Facts are read, a pure function decides, ``explain`` and ``apply`` consume the same stages.

Invariants:
    - Nothing is ever deleted or shrunk: retention and partition counts are refused, not changed.
    - A changelog that exists is adopted as it is; config that endangers state is repaired only by ``apply``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from infra.kafka.errors import TopicUnusable
from infra.kafka.records import TopicFacts, TopicSpec
from processors.topology import CHANGELOG_CONFIG, Topology

#: For sources, outputs and dead letters the cluster's own configuration is the team's business.
_GUARDED = tuple(CHANGELOG_CONFIG)


class TopicWorld(Protocol):
    """What provisioning needs of the cluster."""

    def describe(self, names: list[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""
        ...

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic; False when it was there."""
        ...

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set config entries."""
        ...


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic that is missing."""

    spec: TopicSpec
    role: str

    def sentence(self) -> str:
        """What this stage does."""
        copies = "the cluster's default" if self.spec.replication is None else str(self.spec.replication)
        config = ", ".join(f"{name}={value}" for name, value in self.spec.config.items()) or "cluster defaults"
        shape = f"{self.spec.partitions} partitions, replication {copies}, {config}"
        return f"create {self.role} {self.spec.name}: {shape}"


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """Set config entries of a changelog back to what state needs."""

    topic: str
    seen: Mapping[str, str]
    expected: Mapping[str, str]

    def sentence(self) -> str:
        """What this stage does."""
        parts = [f"{name} from {self.seen.get(name, 'unset')} to {value}" for name, value in self.expected.items()]
        return f"set on changelog {self.topic}: {'; '.join(parts)}"


Stage = CreateTopic | RepairConfig


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that provisioning will not change by itself."""

    topic: str
    sentence: str
    action: str


@dataclass(frozen=True, slots=True)
class ProvisionPlan:
    """Stages in order, and what stands against them; nothing is applied while there are refusals."""

    stages: tuple[Stage, ...]
    refusals: tuple[Refusal, ...]

    def raise_refusals(self) -> None:
        """Raise the first refusal.

        Raises:
            TopicUnusable: There is one.
        """
        for refusal in self.refusals:
            raise TopicUnusable(refusal.sentence, action=refusal.action, topic=refusal.topic)


def read_facts(topics: TopicWorld, topology: Topology) -> dict[str, TopicFacts]:
    """The facts of every topic of a processor that exists."""
    return topics.describe([spec.name for spec in topology.topics()])


def resolve(topology: Topology, facts: Mapping[str, TopicFacts]) -> dict[str, tuple[str, TopicSpec]]:
    """Every topic with its role and with open counts filled in: name -> (role, spec)."""
    resolved: dict[str, tuple[str, TopicSpec]] = {}
    for spec in topology.inputs:
        resolved[spec.name] = ("source topic", _filled(spec, facts, 1))
    widest = max((resolved[spec.name][1].partitions or 1 for spec in topology.inputs), default=1)
    for spec in topology.outputs:
        resolved.setdefault(spec.name, ("output topic", _filled(spec, facts, widest)))
    if topology.dead_letter is not None:
        resolved.setdefault(topology.dead_letter.name, ("dead-letter topic", _filled(topology.dead_letter, facts, 1)))
    for changelog in topology.changelogs:
        store = next(store for store in topology.stores if store.name == changelog.store)
        count = max(resolved[name][1].partitions or 1 for name in store.inputs)
        replication = max((resolved[name][1].replication or 0 for name in store.inputs if name in resolved), default=0)
        resolved[changelog.topic.name] = (
            "changelog",
            TopicSpec(changelog.topic.name, count, replication or None, changelog.topic.config),
        )
    return resolved


def plan(topology: Topology, facts: Mapping[str, TopicFacts]) -> ProvisionPlan:
    """Decide what to create and repair, and what to refuse."""
    stages: list[Stage] = []
    refusals: list[Refusal] = []
    resolved = resolve(topology, facts)
    for store in topology.stores:
        counts = {name: resolved[name][1].partitions for name in store.inputs}
        if len(set(counts.values())) > 1:
            refusals.append(
                Refusal(
                    store.inputs[0],
                    f"Store {store.name} is shared by topics with different partition counts: {counts}.",
                    "Give these topics one partition count, or each stream its own store.",
                )
            )
    for name, (role, spec) in resolved.items():
        seen = facts.get(name)
        if seen is None:
            stages.append(CreateTopic(spec, role))
            continue
        if spec.partitions is not None and seen.partitions != spec.partitions and role in ("changelog", "source topic"):
            refusals.append(_count_refusal(role, spec, seen))
        if role == "changelog":
            drift = {key: value for key, value in spec.config.items() if seen.config.get(key) != value}
            if drift:
                stages.append(RepairConfig(name, {key: seen.config.get(key, "unset") for key in drift}, drift))
    return ProvisionPlan(tuple(stages), tuple(refusals))


def explain(decided: ProvisionPlan) -> str:
    """The plan as lines of text; ``nothing to do`` when there is none."""
    lines = [f"- {stage.sentence()}" for stage in decided.stages]
    lines += [f"- REFUSED: {refusal.sentence} {refusal.action}" for refusal in decided.refusals]
    return "\n".join(lines) or "nothing to do"


def apply(decided: ProvisionPlan, topics: TopicWorld) -> None:
    """Carry the stages out; each is harmless when done twice.

    Raises:
        TopicUnusable: The plan has refusals; nothing was changed.
    """
    decided.raise_refusals()
    for stage in decided.stages:
        match stage:
            case CreateTopic(spec=spec):
                topics.create(spec)
            case RepairConfig(topic=topic, expected=expected):
                topics.alter(topic, expected)


def check_before_start(topology: Topology, facts: Mapping[str, TopicFacts], *, may_create: bool) -> ProvisionPlan:
    """What a starting processor insists on: shapes are right, and what is missing may be created.

    Raises:
        TopicUnusable: A topic is missing and may not be created, has the wrong partition count, or a changelog's
            configuration would lose state.
    """
    decided = plan(topology, facts)
    decided.raise_refusals()
    for stage in decided.stages:
        if isinstance(stage, RepairConfig) and stage.seen.get("cleanup.policy", "compact") != "compact":
            raise TopicUnusable(
                f"Changelog {stage.topic} has cleanup.policy={stage.seen['cleanup.policy']}, expected compact: "
                "Kafka would delete state.",
                action=f"Materialise the changelog asset to repair it, or set cleanup.policy=compact on {stage.topic}.",
                topic=stage.topic,
                seen=stage.seen["cleanup.policy"],
                expected="compact",
            )
        if isinstance(stage, CreateTopic) and not may_create:
            raise TopicUnusable(
                f"The {stage.role} {stage.spec.name} is not there, and this processor may not create topics.",
                action=f"Have it created ({stage.sentence()}), or set auto_create_topics=True.",
                topic=stage.spec.name,
            )
    return ProvisionPlan(tuple(stage for stage in decided.stages if isinstance(stage, CreateTopic)), ())


def _filled(spec: TopicSpec, facts: Mapping[str, TopicFacts], partitions: int) -> TopicSpec:
    seen = facts.get(spec.name)
    if seen is None:
        return TopicSpec(spec.name, spec.partitions or partitions, spec.replication, spec.config)
    return TopicSpec(spec.name, spec.partitions or seen.partitions, spec.replication or seen.replication, spec.config)


def _count_refusal(role: str, spec: TopicSpec, seen: TopicFacts) -> Refusal:
    if role == "changelog":
        return Refusal(
            spec.name,
            f"Changelog {spec.name} has {seen.partitions} partitions, its store's inputs have {spec.partitions}: "
            "keys and their state would part.",
            f"Delete {spec.name} if its state can be rebuilt, or give the inputs {seen.partitions} partitions.",
        )
    return Refusal(
        spec.name,
        f"Source topic {spec.name} has {seen.partitions} partitions, the application declares {spec.partitions}.",
        f"Declare num_partitions={seen.partitions} for {spec.name}, or leave the count out.",
    )
