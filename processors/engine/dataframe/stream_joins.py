"""The joins of a stream: methods of ``StreamingDataFrame`` that join it with another stream or with a table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal

from holdfast.processors.engine.dataframe.durations import milliseconds
from holdfast.processors.engine.dataframe.joins import (
    AsOf,
    AsOfLeft,
    AsOfRight,
    How,
    Interval,
    IntervalProcessing,
    RowMerge,
    RowTime,
    TablePut,
    TableRead,
    Tag,
)
from holdfast.processors.engine.dataframe.merging import JoinInvalid, OnMerge
from holdfast.processors.engine.dataframe.node import Node
from holdfast.processors.engine.dataframe.store_options import StoreOptions, declare
from holdfast.processors.engine.dataframe.windows import Stream

#: How long right messages are kept for left ones that come out of order, and the other way round.
_GRACE = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Table(Generic[Stream]):
    """The newest value of each key of a stream, in a store.

    Attributes:
        name: The store.
    """

    name: str
    stream: Stream

    def to_stream(self) -> Stream:
        """The changes of the table as a stream: a value for each message, None where a row is deleted."""
        return self.stream


class StreamJoins(Generic[Stream]):
    """The methods of a stream that join it."""

    declared: dict[str, StoreOptions]

    def to_table(self: Any, name: str | None = None, *, model: Any = None) -> Table[Stream]:
        """Keeps the newest value of each key as a row; None deletes it.

        Args:
            name: The store; None takes ``<topic>-table``.
            model: The model of the rows, for typed columns in the warehouse, as in ``apply``.

        Raises:
            StepInvalid: The store's name can't be used.
        """
        kept = self._store(name, f"{self.topic.label}-table")
        return Table(kept, self._in_place(Node("update", TablePut(), kept, model=model)))

    def join_table(
        self: Any, table: Table[Stream], how: Literal["inner", "left"] = "inner", on_merge: OnMerge = "raise"
    ) -> Stream:
        """Joins each message with the row of its key as of the message's time.

        Args:
            table: A table of the same application.
            how: ``inner`` drops a message without a row; ``left`` merges it with None.
            on_merge: How to make one value of two: ``raise`` (a field that both have is an error), ``keep-left``,
                ``keep-right``, or a function of (left, right).

        Raises:
            JoinInvalid: An argument can't be used, or the table is of another application.
        """
        if not isinstance(table, Table):
            stream = isinstance(table, StreamJoins)
            raise JoinInvalid(
                f"`join_table` got {_named(table)}; expected a table.",
                action="Write `join_table(other.to_table())`, or join the streams: `join_asof(other)`."
                if stream
                else "Make one: `app.table(topic)`, or `sdf.to_table()`.",
                seen=_named(table),
            )
        self._check_same_application(table.stream)
        made: Stream = self._then(Node("apply", TableRead(how, on_merge), table.name, expand=True))
        return made

    def join_asof(
        self: Any,
        right: Any,
        how: Literal["inner", "left"] = "inner",
        on_merge: OnMerge = "raise",
        grace_ms: int | timedelta = _GRACE,
        name: str | None = None,
        *,
        tolerance_ms: int | timedelta | None = None,
    ) -> Stream:
        """Joins each message with the newest one of ``right`` that has the same key and is not younger.

        Args:
            right: Another stream of the same application, or another branch of this one.
            how: ``inner`` drops a message without a match; ``left`` merges it with None.
            on_merge: As in ``join_table``.
            grace_ms: How late a left message may be and still find what was the newest at its time. The newest right
                message of each key is kept for good.
            name: The store; None takes ``<topic>-<right topic>-asof``.
            tolerance_ms: How much older a match may be; None for no limit. What is older leaves the store.

        Raises:
            JoinInvalid: An argument can't be used.
            DurationInvalid: A duration is out of range.
        """
        self._check_stream(right, "join_asof")
        tolerance = None if tolerance_ms is None else milliseconds("tolerance_ms", tolerance_ms, least=0)
        spec = AsOf(how, on_merge, milliseconds("grace_ms", grace_ms, least=0), tolerance)
        kept = self._store(name, f"{self.topic.label}-{right.topic.label}-asof")
        declare(self.declared, spec.options(kept), argument="name")
        right._in_place(Node("update", AsOfRight(spec), kept, metadata=True))
        made: Stream = self._then(Node("apply", AsOfLeft(spec), kept, expand=True, metadata=True))
        return made

    def join_interval(  # tidy: allow-wide because these are the argument names of Quix Streams.
        self: Any,
        right: Any,
        how: How = "inner",
        on_merge: OnMerge = "raise",
        grace_ms: int | timedelta = _GRACE,
        name: str | None = None,
        backward_ms: int | timedelta = 0,
        forward_ms: int | timedelta = 0,
    ) -> Stream:
        """Joins each message with all of ``right`` that have the same key and a time near its own.

        A joined row has the event time of the later message; one without a match has its own.

        Args:
            right: Another stream of the same application, or another branch of this one.
            how: ``inner``; or ``left``, ``right``, ``outer``: messages of that side without a match are merged with
                None, once, when stream time has passed the last time of a match and the grace.
            on_merge: As in ``join_table``.
            grace_ms: How late a message may be and still find its matches.
            name: The store; None takes ``<topic>-<right topic>-interval``.
            backward_ms: How much older than the left message a match may be.
            forward_ms: How much younger than the left message a match may be.

        Raises:
            JoinInvalid: An argument can't be used.
            DurationInvalid: A duration is out of range.
        """
        self._check_stream(right, "join_interval")
        durations = {"backward_ms": backward_ms, "forward_ms": forward_ms, "grace_ms": grace_ms}
        spec = Interval(how, on_merge, *(milliseconds(each, of, least=0) for each, of in durations.items()))
        kept = self._store(name, f"{self.topic.label}-{right.topic.label}-interval")
        declare(self.declared, spec.options(kept), argument="name")
        tagged = (self._then(Node("apply", Tag(left=True))), right._then(Node("apply", Tag(left=False))))
        rows = (
            tagged[0].concat(tagged[1])._then(Node("apply", IntervalProcessing(spec), kept, expand=True, metadata=True))
        )
        # A row may have a past time: it moves no stream time.
        timed = rows._then(Node("set_timestamp", RowTime(), metadata=True, max_ahead_ms=None))
        made: Stream = timed._then(Node("apply", RowMerge(on_merge)))
        return made

    def _check_stream(self: Any, other: Any, call: str) -> None:
        """Raises JoinInvalid unless the right side is a stream of the same application."""
        if not isinstance(other, StreamJoins):
            table = isinstance(other, Table)
            raise JoinInvalid(
                f"`{call}` got {_named(other)}; expected a stream.",
                action=f"Write `join_table(table)`; or join the changes of the table: `{call}(table.to_stream())`."
                if table
                else f"Write `{call}(app.dataframe(topic))`.",
                seen=_named(other),
            )
        self._check_same_application(other)

    def _check_same_application(self: Any, other: Any) -> None:
        if getattr(other, "declared", None) is not self.declared:
            mine = ", ".join(self._topics)
            raise JoinInvalid(
                f"The stream of topic {mine} can't be joined with {_named(other)}: they are of two applications.",
                action="Declare both with one `app`; read another processor's results from its output topic.",
                seen=_named(other),
            )


def _named(seen: Any) -> str:
    """What a join got, by its topic."""
    if isinstance(seen, Table):
        return f"the table {seen.name!r}"
    if isinstance(seen, StreamJoins):
        return f"the stream of topic {', '.join(getattr(seen, '_topics', ()))}"
    return f"{repr(seen)[:80]} of type {type(seen).__name__}"
