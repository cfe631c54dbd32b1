"""Tables of an application: the objects that ``app.table``, ``sdf.to_table`` and joins of tables return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, cast

from holdfast.processors.engine.formats.serialization import name_of_deserializer
from holdfast.processors.engine.joins.foreign_keys import (
    Answer,
    AnswerTime,
    ForeignJoined,
    ForeignKey,
    ForeignKeys,
    SubscriptionsProcessing,
    answer_key,
    subscription_key,
)
from holdfast.processors.engine.joins.global_tables import GlobalTable
from holdfast.processors.engine.joins.interval import Tag
from holdfast.processors.engine.joins.merge import JoinInvalid, OnMerge
from holdfast.processors.engine.joins.rows_of_both import JoinedRow, LeftRow, RightRow, TablesHow
from holdfast.processors.engine.joins.table_changes import TableChanges
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.schema.types import INFER
from holdfast.processors.engine.steps.checked_arguments import check_function
from holdfast.processors.engine.steps.meaning import field_or_function, lines_of
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.windows.results import Stream

#: Key formats in which the bytes of a key are a text. A foreign key is a text, so it can be equal only to such keys.
TEXT_KEYS = ("bytes", "str", "string", "json")


@dataclass(frozen=True, slots=True)
class Table(TableChanges["Table[Stream]"], Generic[Stream]):
    """A table: the newest value of each key of a stream, in a store.

    Attributes:
        name: The name of the store.
        has_history: Whether joins find the row that was valid at the message's time.
    """

    name: str
    stream: Stream
    has_history: bool = False

    def to_stream(self) -> Stream:
        """Returns the changes of the table as a stream: the new row for each message, None if a row is deleted.

        In a table with a history, a message older than the present row is not in the stream.

        ``group_by`` refuses the stream: a row that changes its grouping key would be counted under the old and the new
        key. To group the rows, call ``group_by`` of the table itself.
        """
        changes: Stream = cast(Any, self.stream)._as_changes_of(self.name)
        return changes

    def join(
        self,
        other: Table[Stream],
        how: TablesHow = "inner",
        on_merge: OnMerge = "raise",
        name: str | None = None,
        *,
        on: ForeignKey | None = None,
        model: Any = None,
    ) -> Table[Stream]:
        """Returns a table that joins the rows of this table and ``other``.

        A change of either table updates the result.

        Args:
            other: Another table of the same application, or this table.
            how: ``inner`` has a row if both tables have a row, ``left`` if this table has a row, ``outer`` if at least
                one table has a row. A missing row is merged as None.
            on_merge: How to merge two rows, as in ``join_table``. A result of None means no row.
            name: The store of the result; None means ``<store>-<other store>-join``.
            on: The key of the other table's row: the name of a field of this table's row, or a function of the row. The
                function returns a text, bytes or a whole number; None means no row. Without ``on``, rows with the same
                key are joined.
            model: The model of the rows, which gives typed columns in the warehouse.

        Raises:
            JoinInvalid: An argument is invalid, or the table belongs to another application.
            StepInvalid: The store's name is invalid, or a function has other parameters.
        """
        check_table("join", other)
        mine: Any = self.stream
        mine._check_same_application(other.stream)
        kept = mine._store(name, f"{self.name}-{other.name}-join")
        if on is not None:
            return self._join_by(on, other, how, on_merge, kept, model)
        joined = JoinedRow(how, on_merge)
        means = lines_of("join", kept, other=other.name, on=field_or_function(None), how=how, on_merge=on_merge)
        changes = mine.concat(other.stream)
        left = changes._then(Node("apply", LeftRow(), self.name))
        pairs = left._then(Node("apply", RightRow(), other.name))
        return Table(kept, pairs._then(Node("apply", joined, kept, expand=True, model=model, meaning=means)))

    def _join_by(
        self, on: ForeignKey, other: Table[Stream], how: TablesHow, on_merge: OnMerge, kept: str, model: Any
    ) -> Table[Stream]:
        """Declares the steps of a join by a foreign key, and returns the joined table.

        The docstring of the module ``foreign_keys`` has a diagram of the steps.
        """
        if how == "outer":
            raise JoinInvalid(
                "`table.join` got `on=` and `how='outer'`; a row of the other table that no row refers to has no key "
                "in the result.",
                action="Write `how='left'`, or leave `on` out to join the rows of one key.",
            )
        mine, theirs = cast(Any, self.stream), cast(Any, other.stream)
        if shared := set(mine._topics) & set(theirs._topics):
            raise JoinInvalid(
                f"`table.join` got `on=` and two tables of topic {', '.join(sorted(shared))}: a row would be sent to "
                "the task that it comes from, and wait for itself.",
                action="Join a global table: `table.to_stream().join_table(app.global_table(topic), on=...)`.",
                topic=min(shared),
            )
        named = name_of_deserializer(theirs.topic.deserialize_key)
        if named is not None and named not in TEXT_KEYS:
            raise JoinInvalid(
                f"`table.join` got `on=`, and topic {theirs.topic.name} of the other table has keys in {named!r}; a "
                "reference is compared with the text of a key.",
                action="Group the other topic by a field with its key: "
                "`app.dataframe(topic).group_by(field).to_table()`; or join a global table of it.",
                topic=theirs.topic.name,
            )
        if callable(on):
            check_function(on, "`on` of `join`", ("row",))
        joined, keys = ForeignJoined(how, on_merge), ForeignKeys(on, how)
        typed = model if model is None or model == INFER or isinstance(model, Mapping) else {ROW: model}
        sent = mine._store(None, f"{kept}-foreign-keys")
        means = lines_of("join", kept, other=other.name, on=field_or_function(on), how=how, on_merge=on_merge)
        told = mine._then(Node("apply", keys, sent, expand=True, metadata=True, meaning=means))
        subscribed = told._between(subscription_key, f"{kept}-subscriptions")
        tagged = (subscribed._then(Node("apply", Tag(left=True))), theirs._then(Node("apply", Tag(left=False))))
        subscriptions = mine._store(None, f"{kept}-subscriptions")
        found = tagged[0].concat(tagged[1])
        found = found._then(Node("apply", SubscriptionsProcessing(), subscriptions, expand=True, metadata=True))
        timed = found._then(Node("set_timestamp", AnswerTime(), metadata=True, max_ahead_ms=None))
        answers = timed._then(Node("apply", Answer(), other.name))._between(answer_key, f"{kept}-answers")
        return Table(kept, answers._then(Node("apply", joined, kept, expand=True, model=typed)))


def check_table(method: str, given: Any) -> None:
    """Raises JoinInvalid if the argument of a join is not a table."""
    if not isinstance(given, Table):
        shown = shown_side(given)
        raise JoinInvalid(
            f"`{method}` got {shown}; expected a table.",
            action=f"Write `{method}(other.to_table())`, or join the streams: `join_asof(other)`."
            if hasattr(given, "to_table")
            else "Make one: `app.table(topic)`, or `sdf.to_table()`.",
            seen=shown,
        )


def shown_side(seen: Any) -> str:
    """Returns a text that names the argument of a join in errors, for example ``the table 'users'``."""
    if isinstance(seen, Table):
        return f"the table {seen.name!r}"
    if isinstance(seen, GlobalTable):
        return repr(seen)
    topics = getattr(seen, "_topics", None)
    if topics:
        return f"the stream of topic {', '.join(topics)}"
    return f"{repr(seen)[:80]} of type {type(seen).__name__}"
