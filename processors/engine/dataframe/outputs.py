"""The methods of a stream that output its values: to topics, to sinks, and to the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.processors.engine.dataframe.chosen_topics import Apart, Choice, ChosenOutputs
from holdfast.processors.engine.dataframe.groups import without_application
from holdfast.processors.engine.dataframe.passing_keys import KeyChange, key_change, key_change_or_refusal
from holdfast.processors.engine.dataframe.printed_table import PrintedTable
from holdfast.processors.engine.dataframe.printing import Printed
from holdfast.processors.engine.dataframe.sinks import Sunk
from holdfast.processors.engine.sinks.errors import SinkInvalid
from holdfast.processors.engine.sinks.sink import BaseSink
from holdfast.processors.engine.steps.checked_arguments import check_function, check_own_topic, check_topic
from holdfast.processors.engine.steps.group_key import PassingKey
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.topic import Topic

Stream = TypeVar("Stream")

_METADATA = ("value", "key", "timestamp", "headers")


class StreamOutputs(Generic[Stream]):
    """The methods of a stream that output its values: to topics, to sinks, and to the terminal."""

    def to_topic(
        self: Any,
        topic: Topic | Callable[[Any, Any, int, Any], Topic],
        key: Callable[[Any], Any] | None = None,
        *,
        headers: Callable[[Any], Mapping[str, Any] | Sequence[tuple[str, Any]] | None] | None = None,
        timestamp: Callable[[Any, Any, int, Any], int] | None = None,
    ) -> Stream:
        """Sends each value to ``topic``, with its message's key, headers and timestamp.

        The step is added to this stream itself.

        Args:
            topic: The output topic; or a function of (value, key, timestamp, headers) that returns it. The function may
                only return a topic that the application has declared before it runs, and does not read.
            key: A function that makes another key from the value; None sends the message's key. If the topic declares
                keys of another type than the stream's topic, the key is deserialized and serialized again.
            headers: A function that makes other headers from the value: names with bytes, texts or None. If it returns
                None, no headers are sent.
            timestamp: A function of (value, key, timestamp, headers) that returns the timestamp of the output, in
                milliseconds since 1970. Later steps still get the message's own timestamp.

        Raises:
            StepInvalid: An argument is no topic or function, or a function takes other arguments. Or the topic's
                ``key_serializer`` can't write the keys of the stream's topic.
        """
        check_function(key, "`key` of `to_topic`", ("value",))
        check_function(headers, "`headers` of `to_topic`", ("value",))
        check_function(timestamp, "`timestamp` of `to_topic`", _METADATA)

        # The usual output, with keys of type bytes, does not need the topics, so the steps are not searched for them.
        as_bytes = isinstance(topic, Topic) and topic.formats.key_serializer == "bytes"
        sources = [] if key is not None or as_bytes else self._read_topics()

        def output(to: Topic, change_to: Callable[..., KeyChange | None] = key_change) -> Node:
            change = None if key is not None else change_to(sources, to)
            passing = None if change is None else PassingKey(change, () if headers is None else (headers,))
            sent = Node("to_topic", key or passing, topic=to, headers=headers)
            if timestamp is None:
                return sent
            # Without ``max_ahead_ms``, this step changes only the output's timestamp. The step does not advance stream
            # time.
            return Node("set_timestamp", timestamp, metadata=True, max_ahead_ms=None, children=[sent])

        if callable(topic) and not isinstance(topic, Topic):
            check_function(topic, "`topic` of `to_topic`", _METADATA)
            if self._groups is None:
                raise without_application("`to_topic` with a function")
            node = Node("update", Choice(topic), metadata=True)
            self._groups.choices.append(ChosenOutputs(node, partial(output, change_to=key_change_or_refusal)))
            made: Stream = self._in_place(node)
            return made
        check_topic(topic, "to_topic")
        if self._groups is not None:
            check_own_topic(topic, self._groups.processor)
        if timestamp is None:
            made = self._in_place(output(topic))
            return made
        made = self._in_place(Node("update", Apart(), children=[output(topic)]))
        return made

    def sink(self: Any, sink: BaseSink) -> None:
        """Sends each value to another system. No step can follow the sink itself, but the stream can get further steps.

        The worker passes results to the sink and flushes it before each commit. A crash between flush and commit
        repeats results. The sink therefore gets each result at least once, even with exactly-once processing.

        Args:
            sink: An object of a subclass of ``BaseSink`` or ``BatchingSink``.

        Raises:
            SinkInvalid: The argument is not such an object.
        """
        if not isinstance(sink, BaseSink):
            raise SinkInvalid(
                f"`sink` got {sink!r} of type {type(sink).__name__}; expected a sink.",
                action="Write a class with `add` and `flush` that derives from `holdfast.sinks.BaseSink`, or with "
                "`write` that derives from `BatchingSink`, and pass an object of it.",
                seen=repr(sink)[:80],
            )
        self._in_place(Node("update", Sunk(sink), metadata=True, in_place=False))

    def test(  # tidy: allow-wide because the argument names are those of Quix Streams.
        self: Any,
        value: Any,
        key: Any = b"key",
        timestamp: int = 0,
        headers: Any = None,
        ctx: Any = None,
        topic: Any = None,
        *,
        state: dict[str, Any] | None = None,
    ) -> list[tuple[Any, Any, int, Any]]:
        """Runs the steps of this stream on one message, without Kafka: for tests of steps.

        Each call starts with empty state. Joins find no match, and no output is sent.

        Args:
            value: The value, as the topic deserializes it.
            key: The key, as the topic deserializes it.
            timestamp: The event time in milliseconds since 1970.
            headers: The headers: names with bytes, texts or None.
            ctx: Ignored; accepted for code that was written for Quix Streams.
            topic: Ignored; accepted for code that was written for Quix Streams.
            state: The key's state before the call: a dict from state key to value. After the call, the dict has the
                state that the functions have left.

        Returns:
            For each result: value, key, timestamp and headers.

        Raises:
            StepInvalid: ``state`` is given, but the stream does not have exactly one store that user functions use.
            Exception: The error that a function raised.
        """
        if self._groups is None:
            raise without_application("`sdf.test`")
        made: list[tuple[Any, Any, int, Any]] = self._groups.trial(self, value, key, timestamp, headers, state)
        return made

    def print(self: Any, pretty: bool = True, metadata: bool = False) -> Stream:
        """Prints each value as ``{'value': ...}``, for development. Adds the step to this stream itself.

        Args:
            pretty: Whether long values take several lines.
            metadata: Whether key, timestamp and headers are printed, too.
        """
        made: Stream = self._in_place(Node("update", Printed(pretty, metadata), metadata=metadata))
        return made

    def print_table(  # tidy: allow-wide because the argument names are those of Quix Streams.
        self: Any,
        size: int = 5,
        title: str | None = None,
        metadata: bool = True,
        timeout: float = 5.0,
        live: bool = True,
        live_slowdown: float = 0.5,
        columns: list[str] | None = None,
        column_widths: dict[str, int] | None = None,
    ) -> Stream:
        """Prints the last values as the rows of a table, for development. Adds the step to this stream itself.

        Args:
            size: The number of rows.
            title: The title of the table.
            metadata: Whether key and timestamp are columns, too: ``_key`` and ``_timestamp``.
            timeout: Seconds after which a table is printed even if it is not full. Without effect if the table is
                redrawn.
            live: Whether one table is redrawn in place, if the output is a terminal. Otherwise, each full table is
                printed below the previous one.
            live_slowdown: Minimum seconds between two redraws.
            columns: The columns that are shown; None shows all columns of the values.
            column_widths: The widths of columns in characters, by name.

        Raises:
            StepInvalid: A number is out of range.
        """
        table = PrintedTable(
            size, title, metadata, timeout, live, live_slowdown, tuple(columns or ()), dict(column_widths or {})
        )
        made: Stream = self._in_place(Node("update", table, metadata=True))
        return made
