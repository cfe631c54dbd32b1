"""Tables as an application declares them: what ``app.table``, ``sdf.to_table`` and joins of tables return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from holdfast.processors.engine.dataframe.global_tables import GlobalTable
from holdfast.processors.engine.dataframe.merging import JoinInvalid, OnMerge
from holdfast.processors.engine.dataframe.node import Node
from holdfast.processors.engine.dataframe.table_joins import JoinedRow, LeftRow, RightRow, TablesHow
from holdfast.processors.engine.dataframe.windows import Stream


@dataclass(frozen=True, slots=True)
class Table(Generic[Stream]):
    """The newest value of each key of a stream, in a store.

    Attributes:
        name: The store.
        has_history: Whether a stream is joined with the row as of its message's time.
    """

    name: str
    stream: Stream
    has_history: bool = False

    def to_stream(self) -> Stream:
        """The changes of the table as a stream: a value for each message, None where a row is deleted.

        Messages that are older than the row of a table with a history are no changes.
        """
        return self.stream

    def join(
        self,
        other: Table[Stream],
        how: TablesHow = "inner",
        on_merge: OnMerge = "raise",
        name: str | None = None,
        *,
        on: Any = None,
        model: Any = None,
    ) -> Table[Stream]:
        """A table of the rows of two tables that have the same key. A change of either one changes it.

        Args:
            other: Another table of the same application, or this one.
            how: ``inner`` has a row where both have one, ``left`` where this table has one, ``outer`` where any of both
                has one. A missing row is merged as None.
            on_merge: As in ``join_table``. A result of None is no row.
            name: The store of the result; None takes ``<store>-<other store>-join``.
            on: Not supported: a join by another key needs a topic that is partitioned by it.
            model: The model of the rows, for typed columns in the warehouse.

        Raises:
            JoinInvalid: An argument can't be used, or the table is of another application.
            StepInvalid: The store's name can't be used.
        """
        check_table("join", other)
        if on is not None:
            raise JoinInvalid(
                "`table.join` got `on=`; tables are joined by their keys. A row that has another key lies in another "
                "partition, which another worker may read.",
                action="Join this table's changes with a global table of the other topic: "
                "`table.to_stream().join_table(app.global_table(topic), on=...)`. Its later changes then send nothing.",
            )
        mine: Any = self.stream
        mine._check_same_application(other.stream)
        joined = JoinedRow(how, on_merge)
        kept = mine._store(name, f"{self.name}-{other.name}-join")
        changes = mine.concat(other.stream)
        left = changes._then(Node("apply", LeftRow(), self.name))
        pairs = left._then(Node("apply", RightRow(), other.name))
        return Table(kept, pairs._then(Node("apply", joined, kept, expand=True, model=model)))


def check_table(method: str, given: Any) -> None:
    """Raises JoinInvalid if the argument of a join is no table."""
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
    """What a join got, by its topic."""
    if isinstance(seen, Table):
        return f"the table {seen.name!r}"
    if isinstance(seen, GlobalTable):
        return repr(seen)
    topics = getattr(seen, "_topics", None)
    if topics:
        return f"the stream of topic {', '.join(topics)}"
    return f"{repr(seen)[:80]} of type {type(seen).__name__}"
