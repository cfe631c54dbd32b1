"""The answers of the durable calls (``apply_async``) of one stream in one task.

    call ──► put: overlay ──commit──► stored ──► next steps ──► settle: deleted, in the commit of the message's position
               ▲         │
               └─────────┘ aborted: the answer is put again, without another call

An answer has the message key of its message. Its state key is ``<topic>/<offset>``. The digest of the message is stored
with the answer, so that an answer is never used for another message with the same offset.

Invariants:
    - ``find`` returns an answer only after the commit that contains it.
    - A stored answer has an offset at or after the position of the last ``settle``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import ValueNotStorable, split_key
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState


class AnswerNotStorable(HoldfastError):
    """The answer of a durable call can't be written as JSON."""


class Asked(NamedTuple):
    """A message with a durable call: its offset, its raw key and value, and its timestamp in milliseconds."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Uncommitted(Enum):
    """The result of ``find`` for an answer that is not committed yet."""

    WAITS = "the answer must be committed before it is used"


WAITS: Final = Uncommitted.WAITS


class KeptAnswers:
    """The answers of one stream's durable calls in one task.

    Args:
        topic: The input topic.
        partition: The task's partition.
        state: The store of the answers. Streams of several topics may share it.
        backend: The task's database.
        ttl_ms: The maximum age of an answer that is used, in milliseconds of the worker's clock.
        now_ms: Returns the time of the worker's clock, in milliseconds since 1970.
    """

    def __init__(
        self, topic: str, partition: int, state: StoreState, backend: TaskStore, ttl_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._prefix, self._partition = f"{topic}/", partition
        self._state, self._backend, self._ttl_ms, self._now_ms = state, backend, ttl_ms, now_ms
        state.scattered = (*state.scattered, self._prefix)
        self.load()

    def load(self) -> None:
        """Reads which answers are stored. Must be called at the start, and after a command has changed the store."""
        #: The message keys of stored and uncommitted answers, by offset.
        self._keys: dict[int, bytes] = {}
        #: The answers that the next commit contains, and those whose commit was aborted, by offset.
        self._uncommitted: dict[int, Mapping[str, Any]] = {}
        self._aborted: dict[int, Mapping[str, Any]] = {}
        #: The errors of calls whose messages wait for the answers of earlier messages.
        self._errors: dict[int, BaseException] = {}
        self._read_keys()

    def _read_keys(self) -> None:
        self._keys = {}
        for key, _ in self._backend.items(self._state.name):
            message_key, name = split_key(key)
            if name.startswith(self._prefix):
                self._keys[int(name.removeprefix(self._prefix))] = message_key

    def find(self, asked: Asked) -> tuple[Any] | BaseException | Uncommitted | None:
        """Returns the committed answer for a message in a one-element tuple.

        Returns the error of the message's call if the call has failed. Returns ``WAITS`` if the answer is not committed
        yet. Returns None if the call must be made.
        """
        offset = asked.offset
        if offset in self._aborted:
            found = self._aborted.pop(offset)
            if found["of"] == self._digest(asked):
                self._write(asked, found)
                return WAITS
        if offset in self._uncommitted:
            return WAITS
        if offset in self._errors:
            return self._errors[offset]
        if offset not in self._keys:
            return None
        self._state.point_at(self._keys[offset], asked.timestamp_ms)
        stored = self._state.get(f"{self._prefix}{offset}")
        if stored is None or stored["of"] != self._digest(asked) or self._now_ms() - stored["at"] >= self._ttl_ms:
            return None
        return (stored["answer"],)

    def put(self, asked: Asked, answer: Any, function: str) -> None:
        """Stores an answer; the next commit contains it. ``function`` is the name of the called function, for errors.

        Raises:
            AnswerNotStorable: JSON can't express the answer, or would change it.
            RecordTooLarge: The answer is larger than a record of the changelog may be.
        """
        try:
            self._write(asked, {"answer": answer, "at": self._now_ms(), "of": self._digest(asked)})
        except ValueNotStorable as failure:
            raise AnswerNotStorable(
                f"The answer of {function} is {repr(answer)[:80]}, which can't be kept as JSON: {failure.__cause__}.",
                action="Let the function return a value made of dict with text keys, list, str, int, float, bool and "
                "None; or take `durable=True` out.",
                function=function,
            ) from failure

    def failed(self, asked: Asked, error: BaseException) -> None:
        """Keeps the error of a call in memory until the failure policy decides about the message."""
        self._errors[asked.offset] = error

    def _write(self, asked: Asked, record: Mapping[str, Any]) -> None:
        former, key = self._keys.get(asked.offset), asked.key or b""
        if former is not None and former != key:  # an answer for another message that had this offset
            self._delete(asked.offset, former)
        self._state.point_at(key, max(asked.timestamp_ms, 0))
        self._state.set(f"{self._prefix}{asked.offset}", record)
        self._state.keep_message()
        self._keys[asked.offset], self._uncommitted[asked.offset] = key, record

    def settle(self, position: int) -> None:
        """Deletes the answers before ``position``; the next commit contains the deletes and this position."""
        for offset in [offset for offset in self._keys if offset < position]:
            self._delete(offset, self._keys.pop(offset))
            self._uncommitted.pop(offset, None)
        for kept in (self._errors, self._aborted):
            for offset in [offset for offset in kept if offset < position]:
                kept.pop(offset)

    def _delete(self, offset: int, message_key: bytes) -> None:
        self._state.point_at(message_key, 0)
        self._state.delete(f"{self._prefix}{offset}")
        self._state.keep_message()

    def _digest(self, asked: Asked) -> str:
        """Returns a digest of the message and its place. Each part is hashed with its length."""
        made = blake2b(f"{self._prefix}{self._partition}/{asked.offset}/{asked.timestamp_ms}".encode(), digest_size=8)
        for part in (asked.key, asked.value):
            made.update(b"-" if part is None else b"%d:%b" % (len(part), part))
        return made.hexdigest()

    @property
    def dirty(self) -> bool:
        """Whether answers wait for a commit."""
        return bool(self._uncommitted)

    def committed(self) -> None:
        """Must be called after each successful commit."""
        self._uncommitted = {}

    def restore(self) -> None:
        """Must be called after an aborted transaction. ``find`` stores the answers of the transaction again."""
        self._aborted.update(self._uncommitted)
        self._uncommitted, self._errors = {}, {}
        self._read_keys()
