"""Describes the topics and stores of a processor's version (its shape). Holdfast's registry keeps it with each release.

Topology ──shape_of──► Shape ──as_document──► the registry's column ──from_document──► Shape
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.topology import (
    ChangelogSpec,
    RepartitionSpec,
    SourceLog,
    StoreSpec,
    Topology,
    subtopologies_of,
)


class StoreShape(msgspec.Struct, frozen=True):
    """A store's kind, codec, columns, inputs and ``changelog`` topic.

    The names of the store's tasks begin with ``task_group``.

    ``restored_from`` is the source topic of a table that has no changelog of its own. ``meaning`` has one text for each
    step argument on which the state depends, so that a deploy detects a change. It is None if an earlier version of
    Holdfast, without this field, recorded the shape. ``retracts`` is whether the store belongs to a ``group_by`` of a
    table, which takes a changed row out of its former group.
    """

    name: str
    kind: str
    codec: str
    format_version: int
    columns: tuple[str, ...]
    inputs: tuple[str, ...]
    task_group: str
    changelog: str | None
    restored_from: str | None = None
    meaning: tuple[str, ...] | None = None
    retracts: bool = False


class Shape(msgspec.Struct, frozen=True):
    """A version's topics and stores; ``inputs`` maps each input topic to its number of partitions."""

    code_version: str
    inputs: dict[str, int]
    outputs: tuple[str, ...]
    stores: tuple[StoreShape, ...]
    repartitions: tuple[RepartitionSpec, ...] = ()

    def store(self, name: str) -> StoreShape | None:
        """The store with this name; None if the version has no such store."""
        return next((store for store in self.stores if store.name == name), None)


def shape_of(topology: Topology, partitions: Mapping[str, int]) -> Shape:
    """Describes the topics and stores of a topology; ``partitions`` maps input topics to their number of partitions."""
    groups = {store: sub.name for sub in topology.subtopologies for store in sub.stores}
    changelogs = {spec.store: spec.topic.name for spec in topology.changelogs}
    tables = {log.store: log.topic for log in topology.source_logs}
    stores = tuple(
        StoreShape(
            store.name,
            store.kind,
            store.codec,
            store.format_version,
            tuple(store.columns),
            tuple(sorted(store.inputs)),
            groups.get(store.name, ""),
            changelogs.get(store.name),
            tables.get(store.name),
            store.meaning,
            store.retracts,
        )
        for store in topology.stores
    )
    inputs = {spec.name: partitions[spec.name] for spec in topology.inputs if spec.name in partitions}
    outputs = tuple(spec.name for spec in topology.outputs)
    return Shape(topology.code_version, inputs, outputs, stores, topology.repartitions)


def topology_of(processor: str, shape: Shape) -> Topology:
    """Makes a topology from a recorded shape, for planners that need only names. Its topics have no configuration."""
    inputs = tuple(TopicSpec(name, count) for name, count in shape.inputs.items())
    kept = shape.stores
    stores = tuple(
        StoreSpec(s.name, s.inputs, s.kind, s.codec, s.format_version, s.columns, retracts=s.retracts) for s in kept
    )
    changelogs = tuple(ChangelogSpec(s.name, TopicSpec(s.changelog)) for s in kept if s.changelog is not None)
    logs = tuple(SourceLog(s.name, s.restored_from) for s in kept if s.restored_from is not None)
    outputs = tuple(TopicSpec(name) for name in shape.outputs)
    groups = subtopologies_of(tuple(shape.inputs), stores)
    version, grouped = shape.code_version, shape.repartitions
    return Topology(
        processor, inputs, outputs, None, stores, changelogs, groups, version, repartitions=grouped, source_logs=logs
    )


def as_document(shape: Shape) -> dict[str, Any]:
    """Converts a shape to a JSON document."""
    document: dict[str, Any] = msgspec.to_builtins(shape)
    for store in document["stores"]:
        if not store["retracts"]:  # False is left out, because documents of earlier Holdfast versions lack the field
            store.pop("retracts")
    return document


def from_document(document: Mapping[str, Any]) -> Shape:
    """Converts a JSON document to a shape.

    Raises:
        msgspec.ValidationError: The document is not a shape.
    """
    return msgspec.convert(dict(document), Shape)
