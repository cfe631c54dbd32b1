"""The steps of a join of two tables by a key inside the row: ``left.join(right, on="product")``.

    left table ──► foreign keys ──► …-subscriptions ──┐
                   (1)              topic, by foreign │
                                    key               ▼
                                       right table ──► subscriptions ──► right row ──► …-answers ──► joined rows
                                                       (2)               (3)           topic, by     (4)
                                                                                       left key
    (1) stores by left key: the row version of the newest row, and the foreign key that the row was sent to.
    (2) stores by foreign key: the left rows that refer to this key.
    (3) reads the right table.
    (4) stores by left key: the joined row, and the row version of the newest answer.

A change of a left row sends a record to the partition of the row's foreign key. The answer has the right row. If the
foreign key has changed, a second record removes the row at the previous foreign key. For a change of a right row, all
left rows that refer to its key get an answer. Two foreign keys may be in two partitions that are read at different
speeds. Each change of a left row therefore gets a *row version*: a number that is larger than that of the row's
previous change. An answer is dropped if an answer with a larger row version arrived before it. The final joined table
does not depend on which partition is read first.

Invariants:
    - A row version is never used again for a left key, not even after the row was deleted. The row version stays in (1)
      and (4).
    - Only the foreign key that has the newest row version of a left row answers with that row version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.formats.typed import field_of
from holdfast.processors.engine.joins.merge import (
    JoinInvalid,
    OnMerge,
    check_how,
    check_merge,
    merge_function,
    name_of,
)
from holdfast.processors.engine.joins.rows_of_both import changed
from holdfast.processors.engine.joins.table_rows import ROW
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.group_key import text_of_key
from holdfast.processors.engine.steps.processing import Context, Processing
from holdfast.processors.engine.steps.step import ROWS_READ, ROWS_WRITTEN, Step

#: The source of the right row's key: the name of a field of the left row, or a function of the left row. If the
#: function returns None, the left row refers to no right row.
ForeignKey = str | Callable[[Any], Any]

#: Maximum number of answers that one commit sends after a change of a right row. There is one answer for each left row.
#: Later commits send the remaining answers.
ANSWERED_AT_ONCE = 10_000

_SENT, _VERSION = "sent", "version"
_LEFT, _NEXT, _MORE = "l/", "next", "more"

#: Kinds of subscriptions. The kind says why a record about a left row is sent to a foreign key. "here": the row refers
#: to this foreign key now. "gone": the row refers to another key. "ends": the row was deleted or refers to no key, so
#: its joined row is deleted. "alone": the row has no foreign key, but a left join keeps it.
_HERE, _GONE, _ENDS, _ALONE = "here", "gone", "ends", "alone"


class ForeignKeyInvalid(HoldfastError):
    """A join of tables can't use a value in a row as the key of another row."""


class ForeignKeys(Step):
    """Sends a record about each changed left row to its foreign key.

    If the row's foreign key has changed, the previous foreign key also gets a record, which removes the row there.
    """

    __name__ = "join"
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, on: ForeignKey, how: Literal["inner", "left"]) -> None:
        if not isinstance(on, str) and not callable(on):
            raise JoinInvalid(
                f"`on` is {on!r}, expected a field's name or a function of the row.",
                action='Write, for example, `on="product"`, or `on=lambda row: row["product"]["id"]`.',
                seen=repr(on)[:80],
            )
        self._on, self._keeps = on, how == "left"
        self.functions = (on,) if callable(on) else ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return f"foreign key {self._on if isinstance(self._on, str) else 'function'}, {self._keeps}"

    def __call__(self, row: Any, key: Any, timestamp: int, headers: Headers, state: State) -> list[list[Any]]:
        """Returns the records about the changed left row, for its previous and its present foreign key.

        Each record is [foreign key, left key, row version, kind, row]. The row version is a number that grows with each
        change of the left row. ``state`` has the row version and the foreign key that were last sent for this left key.
        """
        before: list[Any] = state.get(_SENT) or [0, None, False]
        version, former, was_alone = max(before[0] + 1, timestamp), before[1], before[2]
        foreign = self._key_of(row)
        alone = foreign is None and row is not None and self._keeps
        if foreign is None and former is None and not alone and not was_alone:
            return []
        left = _text(state.message_key)  # type: ignore[attr-defined]
        state.set(_SENT, [version, foreign, alone])
        made = []
        if former is not None and former != foreign:
            answers = foreign is None and not alone
            made.append([former, left, version, _ENDS if answers else _GONE, []])
        if foreign is not None:
            made.append([foreign, left, version, _HERE, _written(row)])
        elif alone or was_alone:
            made.append([left, left, version, _ALONE, _written(row)])
        return made

    def _key_of(self, row: Any) -> str | None:
        on = self._on
        if row is None:
            return None
        found = on(row) if callable(on) else field_of(row, on)
        if found is None:
            return None
        try:
            return _text(text_of_key(found))
        except TypeError as failure:
            raise ForeignKeyInvalid(
                f"A row has a foreign key that can't be a key: {failure}.",
                action="Write `on=` as a function that returns the other row's key as a text, bytes or a whole number.",
                seen=repr(found)[:80],
            ) from failure


class Subscriptions:
    """Stores the left rows that refer to each foreign key, and sends answers when a left or right row changes.

    A message is the tuple (True for a subscription, value). A subscription is a record about a left row. An answer is
    the tuple (event time, left key, row version, left row, whether a right row may exist). The row version is a
    number that grows with each change of the left row.
    """

    def on_message(self, tagged: tuple[bool, Any], context: Context) -> None:
        """Handles one message: a change of a left row, or a change of the right row with this key."""
        if not tagged[0]:
            self._answer(context, _LEFT, context.timestamp)
            return
        _, left, version, what, row = tagged[1]
        if what == _HERE:
            context.state.set(_LEFT + left, [version, row])
        elif what != _ALONE:
            context.state.delete(_LEFT + left)
        if what != _GONE:
            context.emit((context.timestamp, left, version, row, what == _HERE))

    def on_timer(self, name: str, time: int, context: Context) -> None:
        """Sends the answers that earlier commits left out, because one commit answers a limited number of left rows.

        Does nothing if a command has cleared the key.
        """
        left = context.state.get(_NEXT)
        if left is not None:
            start, at = left
            self._answer(context, start, at, time)

    def _answer(self, context: Context, start: str, at: int, fired: int = 0) -> None:
        state = context.state
        found = state.items(prefix=_LEFT, start=start, limit=ANSWERED_AT_ONCE + 1)
        for place, (version, row) in found[:ANSWERED_AT_ONCE]:
            context.emit((at, place[len(_LEFT) :], version, row, True))
        if len(found) > ANSWERED_AT_ONCE:
            state.set(_NEXT, [found[-1][0], at])
            # The new timer is later than the firing timer, because otherwise this commit would fire both timers.
            context.set_timer(_MORE, max(context.now(), fired) + 1, "processing")
        elif state.exists(_NEXT):
            state.delete(_NEXT)
            context.cancel_timer(_MORE)


class SubscriptionsProcessing(Processing):
    """Declares the step ``Subscriptions``, which stores the left rows that refer to each foreign key."""

    def __init__(self) -> None:
        super().__init__(Subscriptions)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Returns an empty tuple, because the step calls no user functions."""
        return ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "subscriptions"


class AnswerTime(Step):
    """The function that sets an answer's event time.

    It is the event time of the change in a table that caused the answer.
    """

    __name__ = "join"

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "time of the change"

    def __call__(self, emitted: tuple[Any, ...], *_: Any) -> int:
        """Returns the event time of the answer, in milliseconds since 1970."""
        time_ms: int = emitted[0]
        return time_ms


class Answer(Step):
    """Adds the row of the right table to an answer. ``state`` is the state of the right table."""

    __name__ = "join"
    store_use = ROWS_READ

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return "answer with the right row"

    def __call__(self, emitted: tuple[Any, ...], state: State) -> list[Any]:
        """Adds the right row to an answer. Returns the list [left key, row version, left row, right row].

        The row version is a number that grows with each change of the left row. Each row is a list with the row, or an
        empty list if there is no row.
        """
        _, left, version, row, reads = emitted
        return [left, version, row, _written(state.get(ROW)) if reads else []]


class ForeignJoined(Step):
    """Stores the joined row of a left key. Emits the joined row when it changes, and None when it is deleted."""

    __name__ = "join"
    order = "feeds"
    store_use = ROWS_WRITTEN
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, how: Literal["inner", "left"], on_merge: OnMerge) -> None:
        check_how(how, ("inner", "left"))
        check_merge(on_merge)
        self._merge, self._needs_right = merge_function(on_merge), how == "inner"
        self._rule = f"tables by foreign key, {how}, {name_of(on_merge)}"
        self.functions = (on_merge,) if callable(on_merge) else ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return self._rule

    def __call__(self, answer: list[Any], state: State) -> list[Any]:
        """Returns a list with the changed joined row; the list is empty if nothing changed.

        ``state`` is the state of the joined table.
        """
        _, version, *rows = answer
        newest = state.get(_VERSION, -1)
        if version < newest:
            return []
        left, right = map(_read, rows)
        row = None if left is None or (right is None and self._needs_right) else self._merge(left, right)
        if version > newest:
            state.set(_VERSION, version)
        return changed(row, state)


# The source code of the next two functions, with their docstrings, is a part of the code version of each processor that
# has such a join. If it changes, every such processor has a new code version.
def subscription_key(value: list[Any]) -> bytes:
    """The foreign key of a subscription."""
    return _raw(value[0])


def answer_key(value: list[Any]) -> bytes:
    """The left key of an answer."""
    return _raw(value[0])


def _text(key: bytes) -> str:
    """Converts a key to a text that JSON and state keys can hold.

    The texts sort in the same order as the keys' bytes.
    """
    return key.decode("latin-1")


def _raw(key: str) -> bytes:
    return key.encode("latin-1")


def _written(row: Any) -> list[Any]:
    """Wraps a row for a message, because a row may be None: a list with the row, or an empty list for no row."""
    return [] if row is None else [row]


def _read(written: list[Any]) -> Any:
    return written[0] if written else None
