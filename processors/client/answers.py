"""Answers of workers about state, made from their JSON documents."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from holdfast.processors.client.questions import ENTRIES_MAX, Key
from holdfast.processors.engine.queries.demand import Position
from holdfast.processors.engine.queries.errors import QueryWrong, StateAway


@dataclass(frozen=True)
class StateAnswer:
    """What a worker knows about one message key of one store.

    Attributes:
        store: The store, table or global table.
        key: The message key. In rows of ``keys``, it is bytes if the key is no text.
        found: Whether the key is there. A worker says False only after it has asked all partitions that can have it.
        state: Values by state key. Values that ``set_bytes`` stored are bytes.
        windows: The windows of a store with windows, oldest first: ``start`` and ``end`` (milliseconds since 1970), and
            ``value``.
        row: The row of a table or of a global table; otherwise None.
        next: The value of ``page`` with which ``key`` reads the further entries; None if all entries are here.
        position: The commit that the answer stands for; None for global tables, and if several partitions were read.
        positions: The commit of each partition that was read. ``after=answer`` demands these commits.
        asked_at: The monotonic seconds at which the query was sent.
    """

    store: str
    key: Key
    found: bool
    state: Mapping[str, Any] = field(default_factory=dict)
    windows: Sequence[Mapping[str, Any]] = ()
    row: Any = None
    next: str | None = None
    position: Position | None = None
    positions: tuple[Position, ...] = ()
    asked_at: float = field(default=0.0, compare=False, repr=False)

    @property
    def age_s(self) -> float | None:
        """Maximum seconds since the answer was the newest committed state; None for global tables.

        The value grows, because it includes the time since the query was sent.
        """
        ages = [each.age_s for each in self.positions]
        return max(ages) + monotonic() - self.asked_at if ages else None

    @property
    def value(self) -> Any:
        """The row, the list of windows, or the values by state key, as the kind of the store has it."""
        if self.row is not None:
            return self.row
        return list(self.windows) if self.windows else dict(self.state)


def answer_of(document: Mapping[str, Any], key: Key, sent_at: float) -> StateAnswer:
    """Makes the answer about one key.

    Raises:
        StateAway: The document is not one of a worker.
    """
    try:
        return _answer(document, key, document.get("position"), sent_at)
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        raise _unreadable(failure) from failure


def rows_of(document: Mapping[str, Any], sent_at: float) -> list[StateAnswer]:
    """Makes the answers of one page of keys. Raises StateAway."""
    try:
        position, store = document["position"], document["store"]
        return [
            _answer({"store": store, "found": True, **row}, _key_of(row), position, sent_at) for row in document["rows"]
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        raise _unreadable(failure) from failure


def value_of(answer: StateAnswer, state_key: str | None, default: Any) -> Any:
    """Returns what ``get`` returns: one value, or all values of the key; ``default`` if it is not there.

    Raises:
        QueryWrong: The key has more entries than one answer.
    """
    if not answer.found:
        return default
    if state_key is not None:
        return answer.state.get(state_key, default)
    if answer.next is not None:
        raise QueryWrong(
            f"The key has more than {len(answer.state) + len(answer.windows)} entries in store {answer.store}, and one "
            "answer has only these.",
            action="Name a `state_key`, or read the key in pages: `client.key(store, key, page=answer.next)`.",
            store=answer.store,
        )
    return answer.value


def check_windows(answer: StateAnswer) -> StateAnswer:
    """Returns the answer; raises QueryWrong if it may have left out windows, because it is as long as answers get."""
    if len(answer.windows) >= ENTRIES_MAX:
        raise QueryWrong(
            f"The answer has {len(answer.windows)} windows of store {answer.store}, which is the maximum; more may "
            "overlap these times.",
            action="Ask for a shorter time with `start` and `end`.",
            store=answer.store,
        )
    return answer


def position_of(document: Mapping[str, Any]) -> Position:
    """Reads a position. Raises KeyError, TypeError or ValueError if it has another form."""
    return Position(
        int(document["partition"]),
        {str(topic): int(at) for topic, at in document["inputs"].items()},
        float(document["committed_at"]),
        float(document["age_s"]),
        str(document["source"]),
        str(document["worker"]),
    )


def _answer(document: Mapping[str, Any], key: Key, at: Mapping[str, Any] | None, sent_at: float) -> StateAnswer:
    position = None if at is None else position_of(at)
    several = tuple(position_of(each) for each in document.get("positions", ()))
    binary = {name: base64.b64decode(text) for name, text in document.get("state_base64", {}).items()}
    return StateAnswer(
        str(document["store"] if "store" in document else document["table"]),
        key,
        bool(document["found"]),
        {**document.get("state", {}), **binary},
        tuple(document.get("windows", ())),
        document.get("row"),
        document.get("next"),
        position,
        several or (() if position is None else (position,)),
        sent_at,
    )


def _key_of(row: Mapping[str, Any]) -> Key:
    if "key_base64" in row:
        return base64.b64decode(row["key_base64"])
    key = row["key"]
    if not isinstance(key, (str, int, float)):
        raise TypeError(f"the key is {key!r}")
    return key


def _unreadable(failure: Exception) -> StateAway:
    kind = "base64" if isinstance(failure, binascii.Error) else type(failure).__name__
    return StateAway(f"The answer is no document of a worker: {kind}: {failure}.")
