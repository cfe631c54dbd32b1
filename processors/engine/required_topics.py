"""Provision: the topics that a processor needs, compared with those that are there.

Facts are read, a pure function decides, ``explain`` and ``apply`` consume the same stages.

Invariants:
    - Nothing is ever deleted or shrunk: partition counts are refused, and what keeps records longer is left.
    - A changelog that exists is adopted as it is; config that endangers state is repaired only by ``apply``.
    - How many copies there are is decided when a changelog is created, from the cluster's brokers; never changed later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import TopicFacts, TopicSpec
from holdfast.processors.engine.changelog.config import (
    MIN_INSYNC,
    drift,
    durability,
    kept_longer,
    min_insync,
    reason_for,
)
from holdfast.processors.engine.topology import Topology


class TopicWorld(Protocol):
    """What provisioning needs of the cluster."""

    def ping(self) -> int:
        """The number of brokers."""
        ...

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
    #: Why its copies and its configuration are what they are.
    reasons: tuple[str, ...] = ()

    def sentence(self) -> str:
        """What this stage does."""
        copies = "the cluster's default" if self.spec.replication is None else str(self.spec.replication)
        config = ", ".join(f"{name}={value}" for name, value in self.spec.config.items()) or "cluster defaults"
        many = "" if self.spec.partitions == 1 else "s"
        shape = f"{self.spec.partitions} partition{many}, replication {copies}, {config}"
        return f"create {self.role} {self.spec.name}: {shape}"


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """Set config entries of a changelog back to what state needs."""

    topic: str
    seen: Mapping[str, str]
    expected: Mapping[str, str]
    #: Why each of the entries is what it is.
    reasons: tuple[str, ...] = ()

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
    #: The kind of fault, where it is one of those that recovery knows.
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionPlan:
    """Stages in order, and what stands against them; nothing is applied while there are refusals."""

    stages: tuple[Stage, ...]
    refusals: tuple[Refusal, ...]
    #: What differs from what is asked for and is left so, each a sentence.
    kept: tuple[str, ...] = ()

    def raise_refusals(self) -> None:
        """Raise the first refusal.

        Raises:
            TopicUnusable: There is one.
        """
        for refusal in self.refusals:
            raise TopicUnusable(refusal.sentence, action=refusal.action, cause=refusal.cause, topic=refusal.topic)


def read_facts(topics: TopicWorld, topology: Topology) -> dict[str, TopicFacts]:
    """The facts of every topic of a processor that exists."""
    return topics.describe([spec.name for spec in topology.topics()])


def brokers_if_asked(topics: TopicWorld, topology: Topology, facts: Mapping[str, TopicFacts]) -> int | None:
    """The number of brokers when it decides something: when a changelog is to be created. None otherwise."""
    missing = any(changelog.topic.name not in facts for changelog in topology.changelogs)
    return topics.ping() if missing else None


def resolve(
    topology: Topology, facts: Mapping[str, TopicFacts], brokers: int | None = None
) -> dict[str, tuple[str, TopicSpec]]:
    """Every topic with its role and with open counts filled in: name -> (role, spec).

    Args:
        topology: What is needed.
        facts: What is there.
        brokers: How many brokers there are; None leaves the copies of a new changelog to its inputs.
    """
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
        inputs = max((resolved[name][1].replication or 0 for name in store.inputs if name in resolved), default=0)
        spec = _changelog_spec(changelog.topic, facts.get(changelog.topic.name), brokers, inputs)
        spec = TopicSpec(spec.name, count, spec.replication, spec.config)
        resolved[changelog.topic.name] = ("changelog", spec)
    return resolved


def plan(topology: Topology, facts: Mapping[str, TopicFacts], brokers: int | None = None) -> ProvisionPlan:
    """Decide what to create and repair, and what to refuse; for the arguments see ``resolve``."""
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
                    "Give these topics one partition count, or each stream its own store.",
                    "source-repartitioned",
                )
            )
    for name, (role, spec) in resolved.items():
        seen = facts.get(name)
        if role == "changelog":
            refusals.extend(_insync_refusals(spec, seen))
        if seen is None:
            stages.append(CreateTopic(spec, role, _reasons(spec, brokers) if role == "changelog" else ()))
            continue
        if spec.partitions is not None and seen.partitions != spec.partitions and role in ("changelog", "source topic"):
            refusals.append(_count_refusal(role, spec, seen))
        if role == "changelog":
            mended = drift(spec.config, seen.config)
            if mended:
                told = {key: seen.config.get(key, "unset") for key in mended}
                stages.append(RepairConfig(name, told, mended, _why(mended)))
            kept.extend(_kept(spec, seen))
    return ProvisionPlan(tuple(stages), tuple(refusals), tuple(kept))


def explain(decided: ProvisionPlan) -> str:
    """The plan as lines of text; ``nothing to do`` when there is none."""
    lines: list[str] = []
    for stage in decided.stages:
        lines += [f"- {stage.sentence()}", *(f"  - {reason}" for reason in stage.reasons)]
    lines += [f"- left as it is: {sentence}" for sentence in decided.kept]
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


def check_before_start(
    topology: Topology, facts: Mapping[str, TopicFacts], *, may_create: bool, brokers: int | None = None
) -> ProvisionPlan:
    """What a starting processor insists on: shapes are right, and what is missing may be created.

    Raises:
        TopicUnusable: A topic is missing and may not be created, has the wrong partition count, or a changelog's
            configuration would lose state.
    """
    decided = plan(topology, facts, brokers)
    decided.raise_refusals()
    for stage in decided.stages:
        if isinstance(stage, RepairConfig) and stage.seen.get("cleanup.policy", "compact") != "compact":
            raise TopicUnusable(
                f"Changelog {stage.topic} has cleanup.policy={stage.seen['cleanup.policy']}, expected compact: "
                "Kafka would delete state.",
                action=f"Materialise the changelog asset to repair it, or set cleanup.policy=compact on {stage.topic}.",
                cause="changelog-altered",
                topic=stage.topic,
                seen=stage.seen["cleanup.policy"],
                expected="compact",
            )
        if isinstance(stage, CreateTopic) and not may_create:
            raise TopicUnusable(
                f"The {stage.role} {stage.spec.name} is not there, and this processor may not create topics.",
                action=f"Have it created ({stage.sentence()}), or set auto_create_topics=True.",
                cause={"changelog": "changelog-missing", "source topic": "source-missing"}.get(stage.role, ""),
                topic=stage.spec.name,
                store=_store_of(topology, stage.spec.name),
            )
    return ProvisionPlan(tuple(stage for stage in decided.stages if isinstance(stage, CreateTopic)), ())


def _store_of(topology: Topology, topic: str) -> str | None:
    return next((spec.store for spec in topology.changelogs if spec.topic.name == topic), None)


def _filled(spec: TopicSpec, facts: Mapping[str, TopicFacts], partitions: int) -> TopicSpec:
    seen = facts.get(spec.name)
    if seen is None:
        return TopicSpec(spec.name, spec.partitions or partitions, spec.replication, spec.config)
    return TopicSpec(spec.name, spec.partitions or seen.partitions, spec.replication or seen.replication, spec.config)


def _changelog_spec(spec: TopicSpec, seen: TopicFacts | None, brokers: int | None, inputs: int) -> TopicSpec:
    """Copies and the copies that a commit waits for: of a new changelog by the brokers, of an old one by its own."""
    if seen is not None:
        least = min_insync(seen.replication)
        told = seen.config.get(MIN_INSYNC, "")
        fine = told.isdecimal() and least <= int(told) <= seen.replication
        return TopicSpec(spec.name, None, seen.replication, {MIN_INSYNC: told if fine else str(least), **spec.config})
    if brokers is None:
        return TopicSpec(spec.name, None, inputs or None, spec.config)
    chosen = durability(brokers, inputs)
    return TopicSpec(spec.name, None, chosen.replication, {MIN_INSYNC: str(chosen.min_insync), **spec.config})


def _insync_refusals(spec: TopicSpec, seen: TopicFacts | None) -> list[Refusal]:
    asked, copies = spec.config.get(MIN_INSYNC, "0"), spec.replication
    if copies is None or int(asked) <= copies:
        return []
    has = "would have" if seen is None else "has"
    return [
        Refusal(
            spec.name,
            f"Changelog {spec.name} is asked for {MIN_INSYNC}={asked}, but {has} {copies} copies: no write would pass.",
            f"Ask for {MIN_INSYNC}={copies} or less in changelog_config, or give it more copies.",
        )
    ]


def _reasons(spec: TopicSpec, brokers: int | None) -> tuple[str, ...]:
    copies = (
        ()
        if brokers is None or spec.replication is None
        else (
            f"replication {spec.replication}, {MIN_INSYNC} {spec.config.get(MIN_INSYNC)}: "
            f"{durability(brokers, spec.replication).why}",
        )
    )
    return (*copies, *_why(spec.config))


def _why(config: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={value}: {reason_for(name)}" for name, value in config.items() if reason_for(name))


def _kept(spec: TopicSpec, seen: TopicFacts) -> list[str]:
    return [
        f"{name} of {spec.name} is {told}, {value} would do; what keeps more is never shortened by itself"
        for name, (told, value) in kept_longer(spec.config, seen.config).items()
    ]


def _count_refusal(role: str, spec: TopicSpec, seen: TopicFacts) -> Refusal:
    if role == "changelog":
        return Refusal(
            spec.name,
            f"Changelog {spec.name} has {seen.partitions} partitions, its store's inputs have {spec.partitions}: "
            "keys and their state would part.",
            f"Delete {spec.name} if its state can be rebuilt, or give the inputs {seen.partitions} partitions.",
            "source-repartitioned",
        )
    return Refusal(
        spec.name,
        f"Source topic {spec.name} has {seen.partitions} partitions, the application declares {spec.partitions}.",
        f"Declare num_partitions={seen.partitions} for {spec.name}, or leave the count out.",
    )
