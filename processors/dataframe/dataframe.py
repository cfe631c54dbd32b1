"""The stream of one topic, and the steps that a user chains onto it.

A step is a node; ``apply`` and ``filter`` give back a new stream behind the new node, ``update`` and ``to_topic``
go on in place. A node with several children is a branch point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from processors.dataframe.topic import Topic
from processors.state.keys import store_prefix

DEFAULT_STORE = "default"


class StepInvalid(HoldfastError):
    """A step was declared in a way that can't run."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(slots=True)
class Node:
    """One step. ``store`` is set for stateful steps, ``topic`` for outputs."""

    kind: Literal["source", "apply", "update", "filter", "to_topic"]
    function: Callable[..., Any] | None = None
    store: str | None = None
    expand: bool = False
    metadata: bool = False
    topic: Topic | None = None
    children: list[Node] = field(default_factory=list)

    def walk(self) -> list[Node]:
        """This node and all below it, parents first."""
        nodes = [self]
        for child in self.children:
            nodes.extend(child.walk())
        return nodes


class StreamingDataFrame:
    """The stream of one input topic.

    Functions get ``(value)``, or ``(value, state)`` when ``stateful``; with ``metadata`` they get
    ``(value, key, timestamp, headers)`` and then the state.
    """

    def __init__(self, topic: Topic, source: Node | None = None, node: Node | None = None) -> None:
        self.topic = topic
        self._source = source or Node("source")
        self._node = node or self._source

    @property
    def source(self) -> Node:
        """The root of all steps on this topic."""
        return self._source

    def apply(
        self,
        func: Callable[..., Any],
        *,
        stateful: bool = False,
        expand: bool = False,
        metadata: bool = False,
        store: str = DEFAULT_STORE,
    ) -> StreamingDataFrame:
        """Replace each value by what ``func`` returns; with ``expand``, by each item of what it returns."""
        return self._then(Node("apply", func, _store(stateful, store), expand, metadata))

    def update(
        self, func: Callable[..., Any], *, stateful: bool = False, metadata: bool = False, store: str = DEFAULT_STORE
    ) -> StreamingDataFrame:
        """Call ``func`` for its effect on the value or the state; its result is ignored. Works in place."""
        return self._in_place(Node("update", func, _store(stateful, store), False, metadata))

    def filter(
        self, func: Callable[..., Any], *, stateful: bool = False, metadata: bool = False, store: str = DEFAULT_STORE
    ) -> StreamingDataFrame:
        """Keep the values for which ``func`` returns something true."""
        return self._then(Node("filter", func, _store(stateful, store), False, metadata))

    def to_topic(self, topic: Topic, key: Callable[[Any], Any] | None = None) -> StreamingDataFrame:
        """Send each value to ``topic``, with the message's own key or with ``key(value)``. Works in place."""
        return self._in_place(Node("to_topic", key, topic=topic))

    def print(self) -> StreamingDataFrame:
        """Print each value, to look at a stream while developing. Works in place."""
        return self.update(print)

    def _then(self, node: Node) -> StreamingDataFrame:
        self._node.children.append(node)
        return StreamingDataFrame(self.topic, self._source, node)

    def _in_place(self, node: Node) -> StreamingDataFrame:
        self._node.children.append(node)
        self._node = node
        return self


def _store(stateful: bool, store: str) -> str | None:
    if not stateful:
        return None
    try:
        store_prefix(store)
    except ValueError as failure:
        raise StepInvalid(
            f"The store name {store!r} can't be used: {failure}.", action="Give the store a short name.", store=store
        ) from failure
    return store
