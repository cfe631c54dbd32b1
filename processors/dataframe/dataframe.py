"""The stream of one topic, and the steps that a user chains onto it.

A step is a node; ``apply`` and ``filter`` give back a new stream behind the new node, ``update`` and ``to_topic``
go on in place. A node with several children is a branch point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from processors.dataframe.aggregation import Aggregation, Aggregator
from processors.dataframe.topic import Topic
from processors.state.keys import store_prefix

DEFAULT_STORE = "default"
AGGREGATE_STORE = "aggregate"


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

    @property
    def aggregation(self) -> Aggregation | None:
        """The built-in aggregation that this step is, if it is one."""
        return self.function if isinstance(self.function, Aggregation) else None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The users' functions in this step."""
        if isinstance(self.function, Aggregation):
            return self.function.functions
        return () if self.function is None else (self.function,)

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

    def aggregate(
        self, columns: Mapping[str, Aggregator] | None = None, *, store: str = AGGREGATE_STORE, **named: Aggregator
    ) -> StreamingDataFrame:
        """Replace each value by the running aggregates of its key, as a dict with one entry for each column.

        Args:
            columns: Aggregators by the column's name, as in ``{"orders": Count(), "total": Sum("amount")}``.
            store: A store for this aggregation alone.
            named: More columns, as in ``total=Sum("amount")``.

        Raises:
            AggregationInvalid: There are no columns, or some are no aggregators.
            StepInvalid: The store's name can't be used.
        """
        return self._then(Node("apply", Aggregation({**(columns or {}), **named}), _store(True, store)))

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


def aggregations_by_store(nodes: list[Node]) -> dict[str, Aggregation]:
    """The aggregation of each store that has one.

    Raises:
        StepInvalid: Another step uses the store of an aggregation.
    """
    users: dict[str, list[Node]] = {}
    for node in nodes:
        if node.store is not None:
            users.setdefault(node.store, []).append(node)
    found = {}
    for store, steps in users.items():
        aggregation = next((step.aggregation for step in steps if step.aggregation is not None), None)
        if aggregation is None:
            continue
        if len(steps) > 1:
            raise StepInvalid(
                f"The store {store!r} of an aggregation is used by {len(steps)} steps, expected that one alone.",
                action="Give each aggregation a store of its own, as in aggregate(..., store='totals').",
                store=store,
            )
        found[store] = aggregation
    return found
