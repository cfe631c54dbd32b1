"""The stream of one topic, and its steps as a tree of nodes.

``apply``, ``filter``, ``set_timestamp`` and windows return a new stream behind the new node; ``update`` and
``to_topic`` extend the stream. A node with several children is a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.dataframe.aggregation import Aggregation, Aggregator
from holdfast.processors.engine.dataframe.count_windows import CountSpec
from holdfast.processors.engine.dataframe.durations import milliseconds
from holdfast.processors.engine.dataframe.stream_windows import StreamWindows
from holdfast.processors.engine.dataframe.topic import Topic
from holdfast.processors.engine.dataframe.window_spec import WindowSpec
from holdfast.processors.engine.state.keys import store_prefix
from holdfast.processors.engine.state.stream_time import MAX_AHEAD_MS
from holdfast.processors.engine.topology import StoreSpec

if TYPE_CHECKING:
    from holdfast.processors.engine.schema.types import StoreSchema


class StepInvalid(BadConfiguration):
    """The declaration of a step can't run."""


_NOT_RENAMED: Mapping[str, str] = {}


@dataclass(slots=True)
class Node:
    """One step. A stateful step has a ``store``, an output a ``topic``; ``model`` is None unless declared.

    The ``function`` of a source is its ``timestamp_extractor``; a window has a ``window`` and a store of its own.
    """

    kind: Literal["source", "apply", "update", "filter", "to_topic", "set_timestamp", "window"]
    function: Callable[..., Any] | None = None
    store: str | None = None
    expand: bool = False
    metadata: bool = False
    topic: Topic | None = None
    #: Makes the headers of an output from its value; None sends the message's own.
    headers: Callable[[Any], Any] | None = None
    #: Whether the name of its store comes from the stream.
    unnamed: bool = False
    #: The model of the store's values, an argument of ``schema_of``.
    model: Any = None
    #: Where event times are given: how far ahead of the worker's clock they may be, in milliseconds.
    #: None for one behind a window, which moves no stream time.
    max_ahead_ms: int | None = MAX_AHEAD_MS
    window: WindowSpec | CountSpec | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def aggregation(self) -> Aggregation | None:
        """The step's built-in aggregation; None for a user function."""
        return self.function if isinstance(self.function, Aggregation) else None

    @property
    def asks_headers(self) -> bool:
        """Whether a window asks functions that get headers."""
        window = self.window
        return isinstance(window, WindowSpec) and (window.before_update or window.after_update) is not None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of this step."""
        if self.window is not None:
            return self.window.functions
        if isinstance(self.function, Aggregation):
            return self.function.functions
        return tuple(function for function in (self.function, self.headers) if function is not None)

    def walk(self) -> list[Node]:
        """This node and all nodes below it, parents first."""
        nodes = [self]
        for child in self.children:
            nodes.extend(child.walk())
        return nodes


class StreamingDataFrame(StreamWindows["StreamingDataFrame"]):
    """The stream of one input topic.

    A function gets ``(value)``, and with ``stateful`` also ``(value, state)``. With ``metadata`` it gets
    ``(value, key, timestamp, headers)``, and the state last.
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
        self._source = source or Node("source", topic.timestamp_extractor, max_ahead_ms=topic.max_ahead_ms)
        self._node = node or self._source
        self._behind_window = False

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
        store: str | None = None,
        model: Any = None,
    ) -> StreamingDataFrame:
        """Replaces each value by the result of ``func``; with ``expand``, by each item of the result.

        Args:
            func: The function, with the arguments that the class describes.
            stateful: Whether the function gets the state of the message's key.
            expand: Whether the function returns several values.
            metadata: Whether the function gets key, timestamp and headers.
            store: The store of the state. None takes the stream's own, which has the name of its topic: steps of one
                stream share it, steps of two streams share a store only if both name it.
            model: The model of the store's values, for typed columns in the warehouse: a pydantic model (or another
                type) of every value; a mapping of state keys to models, ``"*"`` for all other keys; or ``"infer"``.
                One of the steps that share a store declares it.

        Raises:
            StepInvalid: The store's name or the model can't be used.
        """
        kept = self._store(store, self.topic.name) if stateful else None
        return self._then(
            Node("apply", func, kept, expand, metadata, unnamed=store is None, model=_modelled(kept, model))
        )

    def update(
        self,
        func: Callable[..., Any],
        *,
        stateful: bool = False,
        metadata: bool = False,
        store: str | None = None,
        model: Any = None,
    ) -> StreamingDataFrame:
        """Calls ``func`` for its effect on the value or the state and ignores its result. Works in place.

        The arguments are those of ``apply``.
        """
        kept = self._store(store, self.topic.name) if stateful else None
        return self._in_place(
            Node("update", func, kept, False, metadata, unnamed=store is None, model=_modelled(kept, model))
        )

    def filter(
        self,
        func: Callable[..., Any],
        *,
        stateful: bool = False,
        metadata: bool = False,
        store: str | None = None,
        model: Any = None,
    ) -> StreamingDataFrame:
        """Keeps the values for which ``func`` returns a true value; the arguments are those of ``apply``."""
        kept = self._store(store, self.topic.name) if stateful else None
        return self._then(
            Node("filter", func, kept, False, metadata, unnamed=store is None, model=_modelled(kept, model))
        )

    def aggregate(
        self,
        columns: Mapping[str, Aggregator] | None = None,
        *,
        store: str | None = None,
        model: Any = None,
        **named: Aggregator,
    ) -> StreamingDataFrame:
        """Replaces each value by the running aggregates of its key: a dict with one entry for each column.

        Args:
            columns: Aggregators by the column's name, for example ``{"orders": Count(), "total": Sum("amount")}``.
            store: A store that no other step uses; None takes ``<topic>-aggregate``.
            model: A pydantic model with more exact types for the warehouse. Without it, the column of a sum is a
                double; the columns of min, max and last are text.
            named: More columns, for example ``total=Sum("amount")``.

        Raises:
            AggregationInvalid: There are no columns, or one is no aggregator.
            StepInvalid: The store's name can't be used.
        """
        if isinstance(model, Aggregator):  # a column with the name "model"
            named, model = {**named, "model": model}, None
        made = Aggregation({**(columns or {}), **named})
        kept = self._store(store, f"{self.topic.name}-aggregate")
        return self._then(Node("apply", made, kept, unnamed=store is None, model=model))

    def to_topic(
        self,
        topic: Topic,
        key: Callable[[Any], Any] | None = None,
        *,
        headers: Callable[[Any], Mapping[str, Any] | Sequence[tuple[str, Any]] | None] | None = None,
    ) -> StreamingDataFrame:
        """Sends each value to ``topic``, with the key, the headers and the timestamp of its message. Works in place.

        Args:
            topic: The output topic.
            key: Makes another key from the value.
            headers: Makes other headers from the value: names with bytes, texts or None. None sends no headers.
        """
        return self._in_place(Node("to_topic", key, topic=topic, headers=headers))

    def set_timestamp(self, func: Callable[[Any, Any, int, Any], int]) -> StreamingDataFrame:
        """Gives each message another event time, for all steps behind this one, windows and outputs included.

        Args:
            func: Returns milliseconds since 1970, from (value, key, timestamp, headers).
        """
        return self._then(Node("set_timestamp", func, metadata=True, max_ahead_ms=self._max_ahead_ms))

    @property
    def _max_ahead_ms(self) -> int | None:
        return None if self._behind_window else self.topic.max_ahead_ms

    def _windowed(self, spec: WindowSpec | CountSpec, unnamed: str, name: str | None) -> StreamingDataFrame:
        if self._behind_window:
            raise StepInvalid(
                "A window is behind another window of the same stream: results of a window have past event times.",
                action="Send the first window's results to a topic, and declare the second window on that topic.",
            )
        kept = self._store(name, f"{self.topic.name}-{unnamed}")
        made = self._then(Node("window", None, kept, unnamed=name is None, window=spec))
        made._behind_window = True
        return made

    def suppress(self, every: int | timedelta) -> StreamingDataFrame:
        """Sends a key's newest result at most so often. It comes first behind ``current()`` of a window by time.

        Args:
            every: Stream time between two results of a key at least, in milliseconds or as a timedelta. A result that
                comes earlier is held back. It is sent when the time is over, or a newer one of its key takes its place.

        Raises:
            DurationInvalid: ``every`` is out of range.
            StepInvalid: It does not come first behind ``current()`` of a window by time.
        """
        node, every_ms = self._node, milliseconds("every", every, least=1)
        spec = node.window
        if not isinstance(spec, WindowSpec) or spec.final or spec.every_ms is not None or node.children:
            raise StepInvalid(
                "`suppress` is not the first step behind `current()` of a window by time.",
                action="Write, for example, `sdf.tumbling_window(60_000).count().current().suppress(every=5_000)`.",
            )
        node.window = replace(spec, every_ms=every_ms)
        return self

    def print(self) -> StreamingDataFrame:
        """Prints each value, for development. Works in place."""
        return self.update(print)

    def _then(self, node: Node) -> StreamingDataFrame:
        self._node.children.append(node)
        made = StreamingDataFrame(self.topic, self._source, node, self._renamed)
        made._behind_window = self._behind_window
        return made

    def _store(self, store: str | None, unnamed: str) -> str:
        """The name under which a step's store is stored; ``unnamed`` for one without a name."""
        store = unnamed if store is None else store
        renamed = next((new for new, old in self._renamed.items() if old == store), None)
        if renamed is not None:
            raise StepInvalid(
                f"A step uses store {store!r}, which `renamed_stores` renames to {renamed!r}.",
                action=f"Write `store={renamed!r}` in this step, or another name.",
                store=store,
            )
        kept = self._renamed.get(store, store)
        try:
            store_prefix(kept)
        except ValueError as failure:
            raise StepInvalid(
                f"The store name {kept!r} can't be used: {failure}.",
                action="Change `store` to a name of 1 to 255 bytes.",
                store=kept,
            ) from failure
        return kept

    def _in_place(self, node: Node) -> StreamingDataFrame:
        self._node.children.append(node)
        self._node = node
        return self


def described_stores(nodes: list[Node], users: Mapping[str, Sequence[str]]) -> tuple[StoreSpec, ...]:
    """The descriptions of an application's stores; ``users`` has by store the topics whose streams use it.

    Raises:
        StepInvalid: Steps that share a store contradict each other.
        SchemaInvalid: A model can't become columns.
    """
    aggregations, schemas = aggregations_by_store(nodes), schemas_by_store(nodes)
    described = []
    for store, topics in users.items():
        if len(topics) > 1 and any(node.unnamed for node in nodes if node.store == store):
            raise StepInvalid(
                f"Store {store!r} is the unnamed store of one stream, and a step of another stream has the same store; "
                f"the streams are {', '.join(topics)}.",
                action=f"Write `store={store!r}` in the steps of both streams to share it, or choose another name.",
                store=store,
            )
        made = aggregations.get(store)
        kind, columns = ("key-value", ()) if made is None else (kind_of(made), made.describe())
        described.append(StoreSpec(store, tuple(topics), kind, columns=columns, schema=schemas.get(store)))
    return tuple(described)


def _modelled(store: str | None, model: Any) -> Any:
    if model is not None and store is None:
        raise StepInvalid(
            f"A step without state has the model {model!r}; only a stateful step has a store.",
            action="Add `stateful=True`, or take `model` out.",
        )
    return model


def schemas_by_store(nodes: list[Node]) -> dict[str, StoreSchema]:
    """The typed columns of each store with a model or an aggregation; raises as ``described_stores``."""
    modelled: dict[str, Node] = {}
    for node in nodes:
        if node.store is None or (node.model is None and node.aggregation is None):
            continue
        other = modelled.setdefault(node.store, node)
        if other.model != node.model:
            raise StepInvalid(
                f"Steps that share store {node.store!r} have different models: {other.model!r} and {node.model!r}.",
                action="Keep `model` in one of these steps.",
                store=node.store,
            )
    if not modelled:
        return {}
    # Descriptions need these modules, workers do not.
    from holdfast.processors.engine.dataframe.aggregate_columns import aggregate_schema
    from holdfast.processors.engine.schema.models import schema_of

    return {
        store: schema_of(node.model) if node.aggregation is None else aggregate_schema(node.aggregation, node.model)
        for store, node in modelled.items()
    }


def kind_of(made: Aggregation | WindowSpec | CountSpec) -> str:
    """The kind of a store of an aggregation or of windows."""
    if isinstance(made, CountSpec):
        return "count-window"
    return "window" if isinstance(made, WindowSpec) else "aggregation"


def aggregations_by_store(nodes: list[Node]) -> dict[str, Aggregation | WindowSpec | CountSpec]:
    """The aggregation or window of each store of one; raises StepInvalid if another step uses the same store."""
    users: dict[str, list[Node]] = {}
    for node in nodes:
        if node.store is not None:
            users.setdefault(node.store, []).append(node)
    found = {}
    for store, steps in users.items():
        alone = [step.aggregation or step.window for step in steps]
        aggregation = next((made for made in alone if made is not None), None)
        if aggregation is None:
            continue
        if len(steps) > 1:
            what = "an aggregation" if isinstance(aggregation, Aggregation) else "a window"
            raise StepInvalid(
                f"The store {store!r} of {what} is used by {len(steps)} steps, expected one.",
                action="Give each aggregation and each window a store of its own: `aggregate(..., store='totals')`, "
                "`tumbling_window(..., name='hours')`.",
                store=store,
            )
        found[store] = aggregation
    return found
