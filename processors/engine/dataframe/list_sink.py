"""Collects a stream's results in a list: the class ``ListSink``, and the steps behind ``app.run(collect=True)``."""

from __future__ import annotations

from collections import UserList
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.dataframe.sinks import Sunk
from holdfast.processors.engine.sinks.sink import BaseSink
from holdfast.processors.engine.steps.node import Node, steps_of


class ListSink(BaseSink, UserList[Any]):
    """A sink that is a list of the committed values. Use it only in development, because the list is never emptied.

    Args:
        items: The first items of the list.
        metadata: Whether each value gets the fields ``_key``, ``_timestamp``, ``_headers``, ``_topic``, ``_partition``
            and ``_offset``. A value that is no object becomes the field ``value``.
    """

    def __init__(self, items: Iterable[Any] | None = None, *, metadata: bool = False) -> None:
        BaseSink.__init__(self)
        UserList.__init__(self, items)
        self._metadata = metadata

    def add(
        self, value: Any, key: Any, timestamp: int, headers: Headers, topic: str, partition: int, offset: int
    ) -> None:
        """Appends one value."""
        made = value if isinstance(value, dict) else {"value": value}
        if self._metadata:
            place = {"_topic": topic, "_partition": partition, "_offset": offset}
            made = {"_key": key, "_timestamp": timestamp, "_headers": headers, **place, **made}
        self.append(made)

    def flush(self) -> None:
        """Does nothing, because ``add`` has already stored the values."""


class _Collected(Sunk):
    """The step that collects results while ``collected`` runs. It does not change the processor's version."""

    def describe(self) -> str:
        """Returns an empty text, so that the step does not change the processor's version."""
        return ""


@contextmanager
def collected(frames: Mapping[str, Any], into: ListSink | None) -> Iterator[None]:
    """Adds the results of the streams' last steps to the list ``into`` while the ``with`` block runs.

    If ``into`` is None, no results are collected.
    """
    leaves = (
        []
        if into is None
        else [
            node
            for node in steps_of(each.source for each in frames.values())
            if not node.children and not _goes_on(node)
        ]
    )
    nodes = [Node("update", _Collected(into), metadata=True, in_place=False) for _ in leaves if into is not None]
    for leaf, node in zip(leaves, nodes, strict=True):
        leaf.children.append(node)
    try:
        yield
    finally:
        for leaf, node in zip(leaves, nodes, strict=True):
            leaf.children.remove(node)


def _goes_on(node: Node) -> bool:
    """Whether the step writes to a repartition topic. Further steps process its values, so they are not results."""
    return node.topic is not None and node.topic.repartitions
