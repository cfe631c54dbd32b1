"""A failed message, timer, schedule or window result. *Failed* means that its processing raised an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Batch, Headers, Partition
from holdfast.processors.engine.changelog.format import encode_json
from holdfast.processors.engine.runtime.reading.deserialized import ENDING
from holdfast.processors.engine.state.time.stream_time import shown
from holdfast.processors.engine.state.time.timers import Due
from holdfast.processors.engine.steps.outbox import Output
from holdfast.processors.engine.windows.stored import Closing

#: Maps the clock of a timer to the name of the clock in error texts.
_CLOCK_WORDS = {"stream": "stream time", "processing": "the worker's clock"}


class FunctionExits(HoldfastError):
    """A user function raised ``SystemExit`` or ``GeneratorExit``.

    This error replaces the exception, which would end the process in the middle of a message.
    """


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message whose processing raised ``error``. Its state writes and outputs are already undone."""

    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    error: Exception
    #: Describes the timer, window or schedule whose processing raised the error; empty if a message raised it. If it is
    #: not empty, ``offset`` is the offset of the last message before the failure.
    made: str = ""
    #: The name of the timer whose call raised the error; None for other failures.
    timer: str | None = None
    #: The name of the schedule whose call raised the error; None for other failures.
    schedule: str | None = None
    #: Whether the message is from a repartition topic. Then it is an intermediate result, and not a message of a
    #: source.
    regrouped: bool = False
    #: Whether the message's headers can't be read; ``headers`` is then None.
    without_headers: bool = False

    @property
    def place(self) -> str:
        """A text with topic, partition and offset of the message."""
        return f"the message at {self.partition.topic}[{self.partition.number}] offset {self.offset}"


#: The failure policy: returns the dead letter of a failed message, or None to skip the message. It raises an error to
#: stop the worker.
OnFailure = Callable[[FailedMessage], Output | None]


def as_json(value: Any) -> bytes:
    """Encodes a window's result or a timer as JSON, for the value of a dead letter.

    A value that JSON can't express is replaced by the name of its type.
    """
    try:
        return encode_json(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError):
        return encode_json({name: _writable(part) for name, part in value.items()})


def _writable(part: Any) -> Any:
    try:
        encode_json(part)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError):
        return f"{type(part).__name__} that JSON can't write"
    return part


def exits(error: BaseException) -> FunctionExits:
    """Returns the error that is reported in place of ``SystemExit`` or ``GeneratorExit``."""
    return FunctionExits(
        f"A function raised {type(error).__name__}({error}), which would end the process in mid-message.",
        action="Raise an Exception for a message that can't be processed; call `Application.stop()` to stop.",
        error=type(error).__name__,
    )


def failed_record(batch: Batch, index: int, error: BaseException, *, regrouped: bool) -> FailedMessage:
    """Returns the ``FailedMessage`` for a record of a batch. Its headers are None if they can't be read."""
    try:
        headers, unread = batch.headers[index], False
    except HeadersUnreadable:
        headers, unread = None, True
    return FailedMessage(
        batch.partition,
        batch.offsets[index],
        batch.keys[index],
        batch.values[index],
        batch.timestamps[index],
        headers,
        error if isinstance(error, Exception) else exits(error),
        regrouped=regrouped,
        without_headers=unread,
    )


def failed_result(place: Partition, offset: int, closing: Closing, error: BaseException) -> FailedMessage:
    """Returns the ``FailedMessage`` for a window's result. ``offset`` is the offset of the stream's last message."""
    key, start = closing.message_key, closing.start
    words = f"The result of the window of key {key!r} from {shown(start)} on was sent"
    return _made(place, offset, (key, closing.result, start), words, error)


def failed_timer(place: Partition, offset: int, due: Due, error: BaseException) -> FailedMessage:
    """Returns the ``FailedMessage`` for a timer. ``offset`` is the offset of the stream's last message."""
    (name, at, clock), key = due
    words = f"Timer {name!r} of key {key!r}, set to {shown(at)} by {_CLOCK_WORDS[clock]}, fired"
    made = _made(place, offset, (key, {"timer": name, "time": at, "clock": clock}, at), words, error)
    return replace(made, timer=name)


def failed_slot(place: Partition, offset: int, schedule: str, slot_ms: int, error: BaseException) -> FailedMessage:
    """Returns the ``FailedMessage`` for a schedule whose function failed at the time ``slot_ms``.

    ``offset`` is the offset of the task's last message.
    """
    words = f"Schedule {schedule!r}, slot {shown(slot_ms)}, fired"
    value = {"schedule": schedule, "slot": slot_ms}
    return replace(_made(place, offset, (schedule.encode(), value, slot_ms), words, error), schedule=schedule)


def _made(
    place: Partition, offset: int, entry: tuple[bytes, Any, int], words: str, error: BaseException
) -> FailedMessage:
    if not isinstance(error, (Exception, *ENDING)):
        raise error
    key, value, timestamp_ms = entry
    raised = error if isinstance(error, Exception) else exits(error)
    failed = FailedMessage(place, offset, key, as_json(value), timestamp_ms, None, raised)
    return replace(failed, made=f"{words} behind {failed.place}")
