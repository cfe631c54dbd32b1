"""A stream of messages of one or more topics. Its steps form a tree of nodes.

``apply``, ``filter``, ``process``, ``set_timestamp`` and windows return a new stream that begins after the new node.
``update`` and ``to_topic`` add their node to the stream itself. A node with several children is a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.processors.engine.aggregates.aggregation import Aggregation, Aggregator, Field
from holdfast.processors.engine.aggregates.recent import REMEMBER, DropDuplicates, MovingAverage
from holdfast.processors.engine.dataframe.calls import StreamCalls
from holdfast.processors.engine.dataframe.groups import StreamGroups, Streams
from holdfast.processors.engine.dataframe.outputs import StreamOutputs
from holdfast.processors.engine.expressions.methods import StreamColumns
from holdfast.processors.engine.joins.methods import StreamJoins
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.steps.checked_arguments import (
    StepInvalid,
    check_function,
    check_step_function,
    check_text,
)
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.meaning import field_or_function, functions_of, lines_of
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.processing import Processing
from holdfast.processors.engine.steps.step import StoreForm
from holdfast.processors.engine.steps.store_options import StoreOptions, declare, own_store
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.windows.counts import CountSpec
from holdfast.processors.engine.windows.methods import StreamWindows
from holdfast.processors.engine.windows.spec import WindowSpec, window_of

_NOT_RENAMED: Mapping[str, str] = {}


class StreamingDataFrame(
    StreamWindows["StreamingDataFrame"],
    StreamJoins["StreamingDataFrame"],
    StreamGroups["StreamingDataFrame"],
    StreamCalls["StreamingDataFrame"],
    StreamColumns["StreamingDataFrame"],
    StreamOutputs["StreamingDataFrame"],
):
    """A stream of the messages of one topic, or of several topics after ``concat``.

    A user function is called with ``(value)``, or with ``(value, state)`` if the step has ``stateful=True``. With
    ``metadata=True``, it is called with ``(value, key, timestamp, headers)``, followed by the state if it is stateful.
    """

    def __init__(
        self,
        topic: Topic,
        source: Node | None = None,
        node: Node | None = None,
        renamed: Mapping[str, str] = _NOT_RENAMED,
        declared: dict[str, StoreOptions] | None = None,
        groups: Streams[StreamingDataFrame] | None = None,
    ) -> None:
        self.topic = topic
        self._renamed = renamed
        #: The declarations made with ``app.store``. All streams of an application share the same dict.
        self.declared: dict[str, StoreOptions] = {} if declared is None else declared
        #: All streams of the application, by topic; None if the stream belongs to no application.
        self._groups = groups
        self._source = source or Node("source", topic.timestamp_extractor, max_ahead_ms=self._arrives_ahead_ms)
        #: The nodes to which the next step is added: one node, or one node of each concatenated stream.
        self._tails: tuple[Node, ...] = (node or self._source,)
        #: The topics that the stream's messages come from.
        self._topics: tuple[str, ...] = (topic.label,)
        self._behind_window = False
        #: The name of the table whose changed rows are the stream's messages; empty if this is not a stream of changes.
        self._changes_of = ""
        #: The class of the values, until a step changes the values. None if the values are not instances of a class.
        self._model: Any = topic.formats.model if node is None else None
        #: Whether ``concat`` merged several streams, of which at least one has instances of a class as values.
        self._mixed = False

    @property
    def has_instances(self) -> bool:
        """Whether values may be instances of a class that the topic's argument ``value=`` gives."""
        return self._model is not None or self._mixed

    @property
    def source(self) -> Node:
        """The root of the tree of steps on this topic."""
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
        """Replaces each value by the result of ``func``. With ``expand``, replaces it by each item of the result.

        Args:
            func: The function. The docstring of the class describes its arguments.
            stateful: Whether the function gets the state of the message's key.
            expand: Whether the function returns several values, as an iterable.
            metadata: Whether the function gets key, timestamp and headers.
            store: The name of the store for the state. None means the stream's own store, which is named like its
                topic. All steps of one stream share this store. Steps of two streams share a store only if both name
                it.
            model: The model of the store's values, which gives typed columns in the warehouse. A pydantic model (or
                another type) for every value; or a mapping of state keys to models, with ``"*"`` for all other keys; or
                ``"infer"``. If several steps share a store, one of them declares the model.

        Raises:
            StepInvalid: The function takes other arguments, or the store's name or the model is invalid.
        """
        check_step_function(func, "apply", stateful=stateful, metadata=metadata)
        kept = self._store(store, self._stem) if stateful else None
        return self._then(
            Node("apply", func, kept, expand, metadata, unnamed=self._is_unnamed(store), model=_modelled(kept, model))
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
        """Calls ``func`` to change the value or the state; its result is ignored.

        The step is added to this stream itself.

        The arguments have the same meaning as in ``apply``.
        """
        check_step_function(func, "update", stateful=stateful, metadata=metadata)
        kept = self._store(store, self._stem) if stateful else None
        return self._in_place(
            Node("update", func, kept, False, metadata, unnamed=self._is_unnamed(store), model=_modelled(kept, model))
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
        """Keeps only values for which ``func`` returns a true value. The arguments are the same as in ``apply``."""
        check_step_function(func, "filter", stateful=stateful, metadata=metadata)
        kept = self._store(store, self._stem) if stateful else None
        return self._then(
            Node("filter", func, kept, False, metadata, unnamed=self._is_unnamed(store), model=_modelled(kept, model))
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
            columns: An aggregator for each column name, for example ``{"orders": Count(), "total": Sum("amount")}``.
            store: The name of a store that no other step uses; None means ``<topic>-aggregate``.
            model: A pydantic model that gives more exact column types in the warehouse. Without a model, a sum is a
                double, and min, max and last are text.
            named: More columns, for example ``total=Sum("amount")``.

        Raises:
            AggregationInvalid: There is no column, or a column is not an aggregator.
            StepInvalid: The store's name is invalid.
        """
        if isinstance(model, Aggregator):  # a column may have the name "model", so ``model`` may be an aggregator
            named, model = {**named, "model": model}, None
        made = Aggregation({**(columns or {}), **named})
        kept = self._store(store, f"{self._stem}-aggregate")
        means = lines_of("aggregate", kept, of=functions_of(made.columns))
        return self._then(Node("apply", made, kept, unnamed=self._is_unnamed(store), model=model, meaning=means))

    def process(self, processor: Callable[[], Any], *, store: str | None = None) -> StreamingDataFrame:
        """Replaces each value by the values that a processor object emits. The object's timers can also emit values.

        Args:
            processor: A class with the method ``on_message(value, context)``, and with ``on_timer(name, time,
                context)`` if it sets timers. Or a function without arguments that returns an object with these methods.
                Each task has a separate object.
            store: The name of the store for state and timers; None means ``<topic>-process``.

        Raises:
            ProcessorInvalid: ``processor`` is not such a class or function.
            StepInvalid: The store's name is invalid.
        """
        kept = self._store(store, f"{self._stem}-process")
        made = Processing(processor)
        return self._then(Node("apply", made, kept, expand=True, metadata=True, unnamed=self._is_unnamed(store)))

    def drop_duplicates(
        self,
        by: Field = None,
        *,
        within: int | timedelta,
        store: str | None = None,
        remember: int | timedelta = REMEMBER,
    ) -> StreamingDataFrame:
        """Keeps the first of equal messages of a key, and drops its duplicates. Time advances for each key separately.

        A message that is at least ``within`` older than the newest message of its key is late, and is dropped, too.

        Args:
            by: The part that is compared: a field's name, a function of the value, or None for the whole value.
            within: The time for which duplicates are dropped, counted from the event time of the first message. In
                milliseconds or as a timedelta.
            store: The store's name; None means ``<topic>-duplicates``.
            remember: The stream time for which a key without messages is remembered; at least ``within``. Default 1
                day.

        Raises:
            AggregationInvalid: ``by`` is neither a field nor a function.
            DurationInvalid: ``within`` or ``remember`` is out of range.
        """
        made, kept = DropDuplicates(by, within, remember), self._store(store, f"{self._stem}-duplicates")
        declare(self.declared, made.options(kept), argument="store")
        means = lines_of("drop_duplicates", kept, by="the whole value" if by is None else field_or_function(by))
        return self._then(Node("filter", made, kept, unnamed=self._is_unnamed(store), meaning=means))

    def moving_average(
        self,
        of: Field,
        over: int | timedelta,
        into: str | None = None,
        *,
        store: str | None = None,
        remember: int | timedelta = REMEMBER,
    ) -> StreamingDataFrame:
        """Adds the average of a key's newest numbers to each value. The values must be objects (dicts).

        Args:
            of: The number: a field's name, or a function of the value.
            over: How many of a key's newest messages are averaged. Or a timedelta: all messages are averaged whose
                event time is less than this before the key's newest event time.
            into: The field that gets the average; None means ``<of>_average``.
            store: The store's name; None means ``<topic>-<into>``.
            remember: Only with a timedelta: the stream time for which a key without messages is remembered. Default 1
                day.

        Raises:
            AggregationInvalid: An argument is invalid.
        """
        made = MovingAverage(of, over, into, remember)
        kept = self._store(store, f"{self._stem}-{made.into}")
        declare(self.declared, made.options(kept), argument="store")
        means = lines_of("moving_average", kept, of=field_or_function(of))
        return self._then(Node("apply", made, kept, metadata=True, unnamed=self._is_unnamed(store), meaning=means))

    def set_timestamp(self, func: Callable[[Any, Any, int, Any], int]) -> StreamingDataFrame:
        """Gives each message another event time, which all later steps use, including windows and outputs.

        Args:
            func: A function of (value, key, timestamp, headers) that returns milliseconds since 1970.
        """
        check_function(func, "`set_timestamp`", ("value", "key", "timestamp", "headers"))
        return self._then(Node("set_timestamp", func, metadata=True, max_ahead_ms=self._max_ahead_ms))

    def set_headers(self, func: Callable[[Any, Any, int, Any], Any]) -> StreamingDataFrame:
        """Replaces the headers of each message, for the functions and outputs of all later steps.

        Args:
            func: A function of (value, key, timestamp, headers) that returns the new headers: names with bytes, texts
                or None, as a mapping or as pairs. If it returns None, the message has no headers. Its argument
                ``headers`` has the headers before this step, as a list of pairs.
        """
        check_function(func, "`set_headers`", ("value", "key", "timestamp", "headers"))
        return self._then(Node("set_headers", func, metadata=True))

    @property
    def _regrouped(self) -> bool:
        return self.topic.repartitions

    @property
    def _max_ahead_ms(self) -> int | None:
        return None if self._behind_window else self._arrives_ahead_ms

    @property
    def _arrives_ahead_ms(self) -> int | None:
        # After a repartition topic, messages do not advance stream time. Only watermarks (records with the stream time
        # of an upstream task) advance it.
        return None if self.topic.repartitions else self.topic.max_ahead_ms

    def _windowed(self, spec: WindowSpec | CountSpec, unnamed: str, name: str | None) -> StreamingDataFrame:
        if self._behind_window:
            raise StepInvalid(
                "A window is behind another window of the same stream: results of a window have past event times.",
                action="Send the first window's results to a topic, and declare the second window on that topic.",
            )
        if self._model is not None:
            spec.aggregation.take_instances(self._model)
        kept = self._store(name, f"{self._stem}-{unnamed}")
        means = lines_of(spec.__name__, kept, of=functions_of(spec.aggregation.columns))
        made = self._then(Node("window", None, kept, unnamed=self._is_unnamed(name), window=spec, meaning=means))
        made._behind_window = True
        return made

    def suppress(self, every: int | timedelta) -> StreamingDataFrame:
        """Limits how often the results of a key are sent.

        The step must directly follow ``current()`` of a window by time.

        Args:
            every: Minimum stream time between two results of a key, in milliseconds or as a timedelta. A result that
                comes sooner after the previous one is held back. When ``every`` has passed, it is sent, unless a newer
                result of the key has replaced it.

        Raises:
            DurationInvalid: ``every`` is out of range.
            StepInvalid: The step does not directly follow ``current()`` of a window by time.
        """
        node, every_ms = self._tails[0], milliseconds("every", every, least=1)
        spec = window_of(node)
        if spec is None or spec.final or spec.every_ms is not None or node.children:
            raise StepInvalid(
                "`suppress` is not the first step behind `current()` of a window by time.",
                action="Write, for example, `sdf.tumbling_window(60_000).count().current().suppress(every=5_000)`.",
            )
        node.window = replace(spec, every_ms=every_ms)
        return self

    def concat(self, other: StreamingDataFrame) -> StreamingDataFrame:
        """Returns one stream with the messages of both streams.

        A stateful step after ``concat`` has one store for all inputs, so the inputs are read in the order of event
        times.

        Raises:
            JoinInvalid: The other stream belongs to another application.
        """
        self._check_stream(other, "concat")
        made = StreamingDataFrame(self.topic, self._source, None, self._renamed, self.declared, self._groups)
        made._tails = tuple({id(node): node for node in (*self._tails, *other._tails)}.values())
        made._topics = tuple(dict.fromkeys((*self._topics, *other._topics)))
        made._behind_window = self._behind_window or other._behind_window
        made._changes_of = self._changes_of or other._changes_of
        made._model = self._model if self._model is other._model else None
        made._mixed = self.has_instances or other.has_instances
        return made

    def _as_changes_of(self, table: str) -> StreamingDataFrame:
        """Returns a copy of this stream that is marked as a stream of the changed rows of ``table``."""
        made = copy(self)
        made._changes_of = table
        return made

    def _then(self, node: Node) -> StreamingDataFrame:
        for tail in self._tails:
            tail.children.append(node)
        made = StreamingDataFrame(self.topic, self._source, node, self._renamed, self.declared, self._groups)
        made._topics, made._behind_window = self._topics, self._behind_window
        keeps = node.kind in ("filter", "update", "set_timestamp", "to_topic")
        made._model, made._mixed = (self._model, self._mixed) if keeps else (None, False)
        reads_rows = node.order == "reads" and node.store_use.form is StoreForm.ROWS
        # A step with a store of its own sends results, not changed rows. The store of a call has only answers.
        if node.store is None or reads_rows or node.call is not None:
            made._changes_of = self._changes_of
        return made

    def _first_of(self, topic: Topic) -> StreamingDataFrame:
        """Returns a new stream that reads a repartition topic to which this stream writes."""
        made = StreamingDataFrame(topic, None, None, self._renamed, self.declared, self._groups)
        made._behind_window = self._behind_window
        return made

    @property
    def _stem(self) -> str:
        """The prefix of the default names of this stream's stores."""
        return "-".join(self._topics)

    def _is_unnamed(self, store: str | None) -> bool:
        """Whether a step uses the default store of its stream. Steps of another stream may not share this store."""
        return store is None and len(self._topics) == 1

    def _store(self, store: str | None, unnamed: str) -> str:
        """Returns the name of the store that a step uses. ``unnamed`` is the default if the user gave no name."""
        check_text(store, "The name of a step's store", 'store="totals"')
        store = unnamed if store is None else own_store(store, self.declared)
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
        for tail in self._tails:
            tail.children.append(node)
        self._tails = (node,)
        return self


def _modelled(store: str | None, model: Any) -> Any:
    if model is not None and store is None:
        raise StepInvalid(
            f"A step without state has the model {model!r}; only a stateful step has a store.",
            action="Add `stateful=True`, or take `model` out.",
        )
    return model
