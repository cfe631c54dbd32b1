"""The stream of one topic, and the steps that a user chains onto it.

A step is a node; ``apply`` and ``filter`` give back a new stream behind the new node, ``update`` and ``to_topic``
go on in place. A node with several children is a branch point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.processors.engine.dataframe.aggregation import Aggregation, Aggregator
from holdfast.processors.engine.dataframe.topic import Topic
from holdfast.processors.engine.state.keys import store_prefix
from holdfast.processors.engine.topology import StoreSpec

if TYPE_CHECKING:
    from holdfast.processors.engine.schema.types import StoreSchema

DEFAULT_STORE = "default"
AGGREGATE_STORE = "aggregate"


class StepInvalid(HoldfastError):
    """A step was declared in a way that can't run."""

    exit_code = EXIT_BAD_CONFIGURATION


_NOT_RENAMED: Mapping[str, str] = {}


@dataclass(slots=True)
class Node:
    """One step. ``store`` is set for stateful steps, ``topic`` for outputs, ``model`` where the step declares one."""

    kind: Literal["source", "apply", "update", "filter", "to_topic"]
    function: Callable[..., Any] | None = None
    store: str | None = None
    expand: bool = False
    metadata: bool = False
    topic: Topic | None = None
    #: What the values of the store are: see ``processors.engine.schema.models.schema_of``.
    model: Any = None
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

    def __init__(
        self,
        topic: Topic,
        source: Node | None = None,
        node: Node | None = None,
        renamed: Mapping[str, str] = _NOT_RENAMED,
    ) -> None:
        self.topic = topic
        self._renamed = renamed
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
        model: Any = None,
    ) -> StreamingDataFrame:
        """Replace each value by what ``func`` returns; with ``expand``, by each item of what it returns.

        Args:
            func: The function; see the class.
            stateful: Whether it gets the state of the message's key.
            expand: Whether it returns many.
            metadata: Whether it gets key, timestamp and headers.
            store: The store of its state.
            model: What the store's values are, for the typed columns of its table in the warehouse: a pydantic model
                (or another type) of every value; a mapping of state keys to models, ``"*"`` for all others; or
                ``"infer"``. One of the steps that share a store says it.

        Raises:
            StepInvalid: The store's name or the model can't be used.
        """
        kept = self._store(stateful, store)
        return self._then(Node("apply", func, kept, expand, metadata, model=_modelled(kept, model)))

    def update(
        self,
        func: Callable[..., Any],
        *,
        stateful: bool = False,
        metadata: bool = False,
        store: str = DEFAULT_STORE,
        model: Any = None,
    ) -> StreamingDataFrame:
        """Call ``func`` for its effect on the value or the state; its result is ignored. Works in place.

        ``model`` is as in ``apply``.
        """
        kept = self._store(stateful, store)
        return self._in_place(Node("update", func, kept, False, metadata, model=_modelled(kept, model)))

    def filter(
        self,
        func: Callable[..., Any],
        *,
        stateful: bool = False,
        metadata: bool = False,
        store: str = DEFAULT_STORE,
        model: Any = None,
    ) -> StreamingDataFrame:
        """Keep the values for which ``func`` returns something true; ``model`` is as in ``apply``."""
        kept = self._store(stateful, store)
        return self._then(Node("filter", func, kept, False, metadata, model=_modelled(kept, model)))

    def aggregate(
        self,
        columns: Mapping[str, Aggregator] | None = None,
        *,
        store: str = AGGREGATE_STORE,
        model: Any = None,
        **named: Aggregator,
    ) -> StreamingDataFrame:
        """Replace each value by the running aggregates of its key, as a dict with one entry for each column.

        Args:
            columns: Aggregators by the column's name, as in ``{"orders": Count(), "total": Sum("amount")}``.
            store: A store for this aggregation alone.
            model: A pydantic model with a field for columns whose type is not known from the computation: sums are
                taken for floating numbers, least, greatest and last values for texts. For the warehouse only.
            named: More columns, as in ``total=Sum("amount")``.

        Raises:
            AggregationInvalid: There are no columns, or some are no aggregators.
            StepInvalid: The store's name can't be used.
        """
        if isinstance(model, Aggregator):  # a column of that name
            named, model = {**named, "model": model}, None
        made = Aggregation({**(columns or {}), **named})
        return self._then(Node("apply", made, self._store(True, store), model=model))

    def to_topic(self, topic: Topic, key: Callable[[Any], Any] | None = None) -> StreamingDataFrame:
        """Send each value to ``topic``, with the message's own key or with ``key(value)``. Works in place."""
        return self._in_place(Node("to_topic", key, topic=topic))

    def print(self) -> StreamingDataFrame:
        """Print each value, to look at a stream while developing. Works in place."""
        return self.update(print)

    def _then(self, node: Node) -> StreamingDataFrame:
        self._node.children.append(node)
        return StreamingDataFrame(self.topic, self._source, node, self._renamed)

    def _store(self, stateful: bool, store: str) -> str | None:
        """The name that a step's store is kept under; None for a step without state."""
        if not stateful:
            return None
        renamed = next((new for new, old in self._renamed.items() if old == store), None)
        if renamed is not None:
            raise StepInvalid(
                f"A step uses store {store!r}, which goes on as {renamed!r} (renamed_stores).",
                action=f"Use store={renamed!r} in this step, too, or give it a store of another name.",
                store=store,
            )
        kept = self._renamed.get(store, store)
        try:
            store_prefix(kept)
        except ValueError as failure:
            raise StepInvalid(
                f"The store name {kept!r} can't be used: {failure}.", action="Give the store a short name.", store=kept
            ) from failure
        return kept

    def _in_place(self, node: Node) -> StreamingDataFrame:
        self._node.children.append(node)
        self._node = node
        return self


def described_stores(nodes: list[Node], users: Mapping[str, Sequence[str]]) -> tuple[StoreSpec, ...]:
    """The stores of an application: what its steps make of them.

    Args:
        nodes: All steps.
        users: By store, the topics whose streams use it.

    Raises:
        StepInvalid: Steps that share a store do not fit to each other.
        SchemaInvalid: A model can't be made into columns.
    """
    aggregations, schemas = aggregations_by_store(nodes), schemas_by_store(nodes)
    return tuple(
        StoreSpec(
            store, tuple(topics), "aggregation", columns=aggregations[store].describe(), schema=schemas.get(store)
        )
        if store in aggregations
        else StoreSpec(store, tuple(topics), schema=schemas.get(store))
        for store, topics in users.items()
    )


def _modelled(store: str | None, model: Any) -> Any:
    """The model of a step.

    Raises:
        StepInvalid: The step has no store.
    """
    if model is not None and store is None:
        raise StepInvalid(
            f"A step without state has the model {model!r}.", action="Add stateful=True, or take the model away."
        )
    return model


def schemas_by_store(nodes: list[Node]) -> dict[str, StoreSchema]:
    """The typed columns of each store that has any.

    Raises:
        StepInvalid: Steps that share a store have different models.
        SchemaInvalid: A model can't be made into columns.
    """
    told: dict[str, Node] = {}
    for node in nodes:
        if node.store is None or (node.model is None and node.aggregation is None):
            continue
        other = told.setdefault(node.store, node)
        if other.model != node.model:
            raise StepInvalid(
                f"Steps that share store {node.store!r} have different models: {other.model!r} and {node.model!r}.",
                action="Give the model in one of the steps.",
                store=node.store,
            )
    if not told:
        return {}
    from holdfast.processors.engine.dataframe.aggregate_columns import (
        aggregate_schema,  # which is for descriptions, not for running
    )
    from holdfast.processors.engine.schema.models import schema_of

    return {
        store: schema_of(node.model) if node.aggregation is None else aggregate_schema(node.aggregation, node.model)
        for store, node in told.items()
    }


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
