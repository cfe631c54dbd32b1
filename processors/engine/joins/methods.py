"""The methods of ``StreamingDataFrame`` that make a table of a stream, or join it with a stream or a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from datetime import timedelta
from typing import Any, Generic, Literal

from holdfast.processors.engine.formats.typed import kept, row_model, stored
from holdfast.processors.engine.joins.as_of import AsOf, AsOfLeft, AsOfRight
from holdfast.processors.engine.joins.global_tables import GlobalRead, GlobalTable, On
from holdfast.processors.engine.joins.interval import How, Interval, IntervalProcessing, RowMerge, RowTime, Tag
from holdfast.processors.engine.joins.merge import JoinInvalid, OnMerge
from holdfast.processors.engine.joins.table_rows import ROW, TablePut, TableRead
from holdfast.processors.engine.joins.tables import Table, check_table, shown_side
from holdfast.processors.engine.joins.versioned_tables import VersionedPut, VersionedRead, history_options
from holdfast.processors.engine.schema.types import INFER
from holdfast.processors.engine.steps.durations import milliseconds
from holdfast.processors.engine.steps.meaning import field_or_function, lines_of
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.store_options import StoreOptions, declare
from holdfast.processors.engine.windows.results import Stream

#: Default time for which join messages are stored, so that late messages of the other side still find them.
_GRACE = timedelta(days=7)


class StreamJoins(Generic[Stream]):
    """The methods that make a table of a stream, or join it with a stream or a table."""

    declared: dict[str, StoreOptions]

    def to_table(
        self: Any, name: str | None = None, *, model: Any = None, history_retention: int | timedelta | None = None
    ) -> Table[Stream]:
        """Makes a table that keeps the newest value of each key as its row. A value of None deletes the row.

        Args:
            name: The store's name; None means ``<topic>-table``.
            model: The model of the rows, which gives typed columns in the warehouse. It has the same forms as the
                argument ``model`` of ``sdf.apply``.
            history_retention: The time for which a replaced row is kept, in milliseconds or as a timedelta. With it, a
                join finds the row that was valid at the message's time. None keeps only the last received row.

        Raises:
            StepInvalid: The store's name is invalid.
            DurationInvalid: ``history_retention`` is out of range.
        """
        kept = self._store(name, f"{self.topic.label}-table")
        model = row_model(self._model) if model is None else model
        means = lines_of("to_table", kept, history_retention=history_retention)
        if history_retention is not None:
            put = VersionedPut(kept_ms := milliseconds("history_retention", history_retention, least=1))
            means = lines_of("to_table", kept, history_retention=f"{kept_ms} ms")
            declare(self.declared, history_options(kept))
            typed = model if model is None or model == INFER or isinstance(model, Mapping) else {ROW: model}
            return Table(
                kept, self._then(Node("filter", put, kept, metadata=True, model=typed, meaning=means)), has_history=True
            )
        # The table gets a copy of the stream, so that a later `update` of the stream does not change the table's
        # stream.
        return Table(kept, copy(self._in_place(Node("update", TablePut(), kept, model=model, meaning=means))))

    def join_table(
        self: Any,
        table: Table[Stream] | GlobalTable,
        how: Literal["inner", "left"] = "inner",
        on_merge: OnMerge = "raise",
        *,
        on: On = None,
    ) -> Stream:
        """Joins each message with the row of its key.

        Args:
            table: A table or a global table of the same application.
            how: ``inner`` drops a message without a row. ``left`` merges such a message with None.
            on_merge: How to merge two values: ``raise`` (a common field is an error), ``keep-left``, ``keep-right``, or
                a function of (left, right).
            on: Only for a global table: the name of the field with the row's key, or a function of the value that
                returns the key. None means the message's key. A key or a value of None finds no row.

        Raises:
            JoinInvalid: An argument is invalid, or the table belongs to another application.
        """
        if isinstance(table, GlobalTable):
            if not table.is_of(self.declared):
                raise self._two_applications(table)
            read = GlobalRead(table, how, on_merge, on)
            means = lines_of("join_table", table.topic.name, on=field_or_function(on), how=how, on_merge=on_merge)
            found: Stream = self._then(Node("apply", read, expand=True, metadata=True, meaning=means))
            return found
        check_table("join_table", table)
        if on is not None:
            raise JoinInvalid(
                f"`join_table` got `on={on!r}` with a table; its rows are found by the message's key, as the row of "
                "another key may be on another worker.",
                action="Write `sdf.group_by(...)` before `join_table`, and leave `on` out; or make a global table: "
                "`app.global_table(topic)`.",
                seen=repr(on)[:80],
            )
        self._check_same_application(table.stream)
        if table.has_history:
            self._check_two_groupings(table.stream, "join_table", "The table")
        row = (VersionedRead if table.has_history else TableRead)(how, on_merge)
        means = lines_of("join_table", table.name, on=field_or_function(None), how=how, on_merge=on_merge)
        made: Stream = self._then(
            Node("apply", row, table.name, expand=True, metadata=table.has_history, meaning=means)
        )
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
        """Joins each message with the newest message of ``right`` that has the same key and is not later.

        Args:
            right: Another stream of the same application, or another branch of this stream.
            how: ``inner`` drops a message without a match. ``left`` merges such a message with None.
            on_merge: How to merge two values, as in ``join_table``.
            grace_ms: How late a left message may come and still find its match. Default 7 days. A right message that a
                newer one has replaced is deleted after this time. Without ``tolerance_ms``, the newest right message of
                each key is kept forever.
            name: The store's name; None means ``<topic>-<right topic>-asof``.
            tolerance_ms: By how much a match may be earlier than the left message; None means no limit. A right message
                that is too old for every later left message is deleted, even if it is the newest of its key.

        Raises:
            JoinInvalid: An argument is invalid.
            DurationInvalid: A duration is out of range.
        """
        self._check_stream(right, "join_asof")
        self._check_one_class(right, "join_asof", on_merge)
        self._check_two_groupings(right, "join_asof", "The right side")
        tolerance = None if tolerance_ms is None else milliseconds("tolerance_ms", tolerance_ms, least=0)
        spec = AsOf(how, on_merge, milliseconds("grace_ms", grace_ms, least=0), tolerance)
        kept = self._store(name, f"{self.topic.label}-{right.topic.label}-asof")
        declare(self.declared, spec.options(kept), argument="name")
        means = lines_of(
            "join_asof",
            kept,
            right=right.topic.label,
            how=how,
            on_merge=on_merge,
            grace_ms=spec.grace_ms,
            tolerance_ms=spec.tolerance_ms,
        )
        puts = AsOfRight(spec, keep=_keep_of(right))
        right._in_place(Node("update", puts, kept, metadata=True, meaning=means))
        reads = AsOfLeft(spec, right=right._model)
        made: Stream = self._then(Node("apply", reads, kept, expand=True, metadata=True, meaning=means))
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
        """Joins each message with all messages of ``right`` of the same key whose event times are in an interval.

        A joined row has the later event time of its two messages. A message without a match keeps its event time. Rows
        have no headers.

        Args:
            right: Another stream of the same application, or another branch of this stream.
            how: ``inner``, ``left``, ``right`` or ``outer``. With ``left``, ``right`` and ``outer``, a message of that
                side (or of both sides) without a match is merged with None. It is sent once, when stream time has
                passed the last possible time of a match plus the grace.
            on_merge: How to merge two values, as in ``join_table``.
            grace_ms: How late a message may come and still find its matches. Default 7 days.
            name: The store's name; None means ``<topic>-<right topic>-interval``.
            backward_ms: By how much a right message may be earlier than the left message it matches. Default 0.
            forward_ms: By how much a right message may be later than the left message it matches. Default 0.

        Raises:
            JoinInvalid: An argument is invalid.
            DurationInvalid: A duration is out of range.
        """
        self._check_stream(right, "join_interval")
        self._check_one_class(right, "join_interval", on_merge)
        given = {"backward_ms": backward_ms, "forward_ms": forward_ms, "grace_ms": grace_ms}
        durations = {each: milliseconds(each, of, least=0) for each, of in given.items()}
        spec = Interval(how, on_merge, **durations)
        kept = self._store(name, f"{self.topic.label}-{right.topic.label}-interval")
        declare(self.declared, spec.options(kept), argument="name")
        tagged = (self._then(Node("apply", Tag(left=True))), right._then(Node("apply", Tag(left=False))))
        means = lines_of("join_interval", kept, right=right.topic.label, how=how, on_merge=on_merge, **durations)
        processing = IntervalProcessing(spec, keeps=(_keep_of(self), _keep_of(right)))
        joined = Node("apply", processing, kept, expand=True, metadata=True, meaning=means, of_several=True)
        rows = tagged[0].concat(tagged[1])._then(joined)
        # A joined row may have an event time in the past, so this step does not change stream time.
        timed = rows._then(Node("set_timestamp", RowTime(), metadata=True, max_ahead_ms=None))
        made: Stream = timed._then(Node("apply", RowMerge(on_merge, left=self._model, right=right._model)))
        return made

    def _check_one_class(self: Any, other: Any, call: str, on_merge: OnMerge) -> None:
        """Raises JoinInvalid if a function would get instances of several classes, or instances and plain values.

        The join keeps values as JSON, from which the class of a value is not known.
        """
        for side in (self, other):
            if callable(on_merge) and side.has_instances and side._model is None:
                raise JoinInvalid(
                    f"A side of `{call}` has messages of several topics with different `value=`, and `on_merge` is a "
                    "function.",
                    action="Make them objects of JSON before `concat`: `sdf.apply(msgspec.to_builtins)`, or for "
                    'pydantic `sdf.apply(lambda value: value.model_dump(mode="json"))`.',
                )

    def _check_stream(self: Any, other: Any, call: str) -> None:
        """Raises JoinInvalid unless ``other`` is a stream of the same application."""
        if not isinstance(other, StreamJoins):
            table = isinstance(other, Table)
            raise JoinInvalid(
                f"`{call}` got {shown_side(other)}; expected a stream.",
                action=f"Write `join_table(table)`; or join the changes of the table: `{call}(table.to_stream())`."
                if table
                else f"Write `{call}(app.dataframe(topic))`.",
                seen=shown_side(other),
            )
        self._check_same_application(other)

    def _check_two_groupings(self: Any, other: Any, call: str, side: str) -> None:
        """Raises JoinInvalid if both sides of the join are read from the same repartition topic.

        That topic would be read in the order of its offsets, not in time order. A left message would not find a right
        message that has a larger offset but an earlier event time.
        """
        streams = {} if self._groups is None else self._groups.by_topic
        topics = {each.topic.label: each.topic for each in streams.values() if each.topic.repartitions}
        shared = sorted(topics.keys() & set(self._topics) & set(other._topics))
        if not shared:
            return
        grouping = topics[shared[0]].group_by
        raise JoinInvalid(
            f"`{call}` got two branches of the grouping {grouping}: they are one topic, which has the messages of "
            "several tasks in the order in which they were written. An older message may stand behind a younger one.",
            action=f"Group twice, under two names. {side} comes from `sdf.group_by(..., name='{grouping}-right')`.",
            grouping=grouping,
        )

    def _check_same_application(self: Any, other: Any) -> None:
        if getattr(other, "declared", None) is not self.declared:
            raise self._two_applications(other)

    def _two_applications(self: Any, other: Any) -> JoinInvalid:
        mine = ", ".join(self._topics)
        return JoinInvalid(
            f"The stream of topic {mine} can't be joined with {shown_side(other)}: they are of two applications.",
            action="Declare both with one `app`; read another processor's results from its output topic.",
            seen=shown_side(other),
        )


def _keep_of(stream: Any) -> Callable[[Any], Any] | None:
    """Returns the function that makes the stored form of a stream's instances; None if its values are plain."""
    if stream._model is not None:
        return kept(stream._model)
    return stored if stream.has_instances else None
