"""What an application is made of, as frozen data: the one description that everything else derives from.

Provisioning, deployment, assets, checks and the start-up lines all read this; nobody else counts partitions
or names changelogs. A *subtopology* is a set of input topics whose streams share stores; a *task* is one
partition of one subtopology.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from infra.kafka.records import TopicSpec

__all__ = ["ChangelogSpec", "StoreSpec", "Subtopology", "TopicSpec", "Topology"]

#: Why each entry: compact keeps the newest value of each key; the lag keeps the last hour whole, so that an
#: exact range can still be read by a snapshot; tombstones live a day, longer than any restore may take.
CHANGELOG_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "3600000",
    "delete.retention.ms": "86400000",
}


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A named store; ``inputs`` are the topics whose streams use it, ``columns`` those of a built-in aggregation."""

    name: str
    inputs: tuple[str, ...]
    kind: str = "key-value"
    codec: str = "json"
    format_version: int = 1
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangelogSpec:
    """The changelog of one store; its partition count is that of the store's inputs."""

    store: str
    topic: TopicSpec


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Input topics that share stores, and so are processed together, partition by partition."""

    name: str
    inputs: tuple[str, ...]
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """A processor, described."""

    processor: str
    inputs: tuple[TopicSpec, ...]
    outputs: tuple[TopicSpec, ...]
    dead_letter: TopicSpec | None
    stores: tuple[StoreSpec, ...]
    changelogs: tuple[ChangelogSpec, ...]
    subtopologies: tuple[Subtopology, ...]
    code_version: str = field(default="")

    def changelog_of(self, store: str) -> TopicSpec | None:
        """The changelog topic of a store; None when the application keeps none."""
        return next((spec.topic for spec in self.changelogs if spec.store == store), None)

    def written(self) -> list[str]:
        """The topics that the processor writes to."""
        dead_letter = [] if self.dead_letter is None else [self.dead_letter]
        specs = [*self.outputs, *dead_letter, *(changelog.topic for changelog in self.changelogs)]
        return [spec.name for spec in specs]

    def subtopology_of(self, topic: str) -> Subtopology:
        """The subtopology that reads an input topic."""
        return next(sub for sub in self.subtopologies if topic in sub.inputs)

    def topics(self) -> tuple[TopicSpec, ...]:
        """Every topic that the processor needs."""
        extra = () if self.dead_letter is None else (self.dead_letter,)
        return (*self.inputs, *self.outputs, *extra, *(spec.topic for spec in self.changelogs))


def subtopologies_of(inputs: tuple[str, ...], stores: tuple[StoreSpec, ...]) -> tuple[Subtopology, ...]:
    """Group input topics that share a store, directly or through others."""
    groups: list[set[str]] = [{topic} for topic in inputs]
    for store in stores:
        touched = [group for group in groups if group & set(store.inputs)]
        merged = set().union(*touched)
        groups = [group for group in groups if group not in touched] + [merged]
    result = []
    for group in groups:
        ordered = tuple(topic for topic in inputs if topic in group)
        used = tuple(store.name for store in stores if set(store.inputs) & group)
        result.append(Subtopology(name="+".join(ordered), inputs=ordered, stores=used))
    return tuple(sorted(result, key=lambda sub: inputs.index(sub.inputs[0])))


def code_version_of(topology: Topology, code: str) -> str:
    """A short hash of the description and of the functions' code: it changes when a deployment is due."""
    described = asdict(topology)
    described.pop("code_version")
    text = json.dumps(described, sort_keys=True, default=str) + code
    return hashlib.sha256(text.encode()).hexdigest()[:12]
