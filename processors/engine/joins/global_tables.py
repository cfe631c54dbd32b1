"""Global tables: all rows of a topic in the memory of each worker, so that functions can read any key.

A declared ``GlobalTable`` holds no rows. The rows belong to the worker, which makes them available to user functions
with ``rows_in_use`` while it runs. Several workers can therefore share one application object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers, Partition
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.formats.serialization import Serializer
from holdfast.processors.engine.formats.typed import field_of, is_object
from holdfast.processors.engine.joins.merge import JoinInvalid, OnMerge
from holdfast.processors.engine.joins.table_rows import TableRead
from holdfast.processors.engine.steps.checked_arguments import check_function
from holdfast.processors.engine.steps.topic import Topic


class Unreadable(NamedTuple):
    """The reason why a row can't be deserialized, and the partition and offset of the row's record."""

    partition: Partition
    offset: int
    reason: str

    def __str__(self) -> str:
        """Returns the record's topic, partition and offset, and the reason, as text for an error."""
        return f"{self.partition.topic}[{self.partition.number}] offset {self.offset}: {self.reason}"


class Rows(dict[bytes, bytes]):
    """The rows of a topic in serialized form, by key.

    ``unreadable`` has the reason for each row that can't be deserialized.
    """

    __slots__ = ("unreadable",)

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[bytes, Unreadable] = {}


#: Maps each topic of a global table to its rows. The rows belong to the worker that runs on the current thread.
_rows: ContextVar[Mapping[str, Rows]] = ContextVar("rows")

#: The source of a row's key: the name of a field of the value, a function of the value, or None for the message's key.
On = str | Callable[[Any], Any] | None


class GlobalTableUnread(HoldfastError):
    """A global table can't be read: no worker runs, the key has the wrong type, or the row can't be deserialized."""


@contextmanager
def rows_in_use(rows: Mapping[str, Rows]) -> Iterator[None]:
    """Lets functions on this thread read ``rows`` (the rows of each topic) while the ``with`` block runs."""
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


class GlobalTable:
    """All rows of a topic, in the memory of each worker.

    User functions read the table. Only messages of the topic change it.

    Attributes:
        topic: The topic that the rows come from.
    """

    def __init__(self, topic: Topic, application: object) -> None:
        self.topic = topic
        self._application = application

    def __repr__(self) -> str:
        return f"the global table of topic {self.topic.name}"

    def is_of(self, application: object) -> bool:
        """Whether the table belongs to this application, so that the application's streams may be joined with it."""
        return self._application is application

    def get(self, key: Any, default: Any = None) -> Any:
        """Returns the newest row of ``key`` that this worker has read, or ``default`` without a row.

        Args:
            key: The key, in the form that the topic's ``key_serializer`` accepts. If the serializer is ``bytes``, a
                text is accepted, too.
            default: The result if the key has no row.

        Raises:
            GlobalTableUnread: No worker runs on this thread, the key can't be serialized, or the row can't be
                deserialized.
        """
        row = self._row(key)
        return default if row is None else row

    def _row(self, key: Any) -> Any:
        rows = _rows.get(None)
        if rows is None:
            raise GlobalTableUnread(
                f"The global table of topic {self.topic.name} was read outside of a worker; its rows are loaded when "
                "the application runs.",
                action="Read it in a function of a stream. In a test, run the application on an `InMemoryCluster`.",
                topic=self.topic.name,
            )
        raw = self._raw(key)
        stored = rows[self.topic.name].get(raw)
        if stored is None:
            return None
        try:
            return self.topic.deserialize_value(stored)
        except SchemaRegistryFailed:
            raise  # the schema registry failed, so the row itself may be correct
        except Exception as failure:
            raise self._unreadable(raw, stored, rows[self.topic.name].unreadable.get(raw)) from failure

    def _unreadable(self, key: bytes, stored: bytes, known: Unreadable | None) -> GlobalTableUnread:
        place: dict[str, Any] = (
            {} if known is None else {"row_partition": known.partition.number, "row_offset": known.offset}
        )
        return GlobalTableUnread(
            f"The row of key {key[:40]!r} in the global table of topic {self.topic.name} can't be read"
            f"{'' if known is None else f' ({known})'}; it begins with {stored[:40]!r}. The message that looks it up "
            "is not the cause.",
            action=f"Write the row to {self.topic.name} again, corrected, or delete it with a value of None. Or set "
            "`dead_letter_topic` to put such messages aside.",
            topic=self.topic.name,
            **place,
        )

    def _raw(self, key: Any) -> bytes:
        if isinstance(key, bytes):
            return key
        serialize: Serializer = self.topic.serialize_key
        try:
            return serialize(key)
        except (TypeError, ValueError, OverflowError) as failure:
            if isinstance(key, str):
                return key.encode()
            raise GlobalTableUnread(
                f"A key of type {type(key).__name__} was looked up in the global table of topic {self.topic.name}: "
                f"{failure}.",
                action="Look up the key as the topic has it, or set `key_serializer` in "
                f"`app.topic({self.topic.name!r})`.",
                topic=self.topic.name,
                seen=repr(key)[:80],
            ) from failure


class GlobalRead(TableRead):
    """Joins each message with a row of a global table."""

    def __init__(self, table: GlobalTable, how: Literal["inner", "left"], on_merge: OnMerge, on: On) -> None:
        super().__init__(how, on_merge)
        if on is not None and not isinstance(on, str) and not callable(on):
            raise JoinInvalid(
                f"`on` is {on!r}, expected a field's name or a function of the value.",
                action='Write, for example, `on="plane_id"`, or `on=lambda value: value["plane"]["id"]`.',
                seen=repr(on)[:80],
            )
        if callable(on):
            check_function(on, "`on` of `join_table`", ("value",))
        self._table, self._on = table, on
        self.functions = (*self.functions, *((on,) if callable(on) else ()))

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        on = "function" if callable(self._on) else "key" if self._on is None else f"field {self._on}"
        return f"global {super().describe()}, {self._table.topic.name} by {on}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> list[Any]:  # type: ignore[override]
        """Returns the joined value in a list. An empty list drops the message."""
        on = self._on
        if on is not None:
            key = None if value is None else on(value) if callable(on) else _field(value, on)
        return self.joined(value, None if key is None else self._table.get(key))


def _field(value: Any, name: str) -> Any:
    if is_object(value):
        return field_of(value, name)
    raise GlobalTableUnread(
        f"A join with a global table takes the field {name!r} of a value of type {type(value).__name__}, expected an "
        "object.",
        action="Write `on=` as a function of the value.",
        seen=repr(value)[:80],
    )
