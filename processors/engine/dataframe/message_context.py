"""``message_context()``: returns topic, partition and offset of the message that a user function is processing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Batch


class MessageContextNotSetError(HoldfastError):
    """``message_context()`` was called while no message is processed."""


@dataclass(frozen=True, slots=True)
class MessageContext:
    """Topic, partition and offset of one message.

    Attributes:
        topic: The topic. After ``group_by``, it is the repartition topic.
        partition: The number of the partition.
        offset: The offset of the message in this partition.
    """

    topic: str
    partition: int
    offset: int


#: A function that returns the current message's topic, partition and offset. It is set only while a task processes
#: messages.
_place: ContextVar[Callable[[], MessageContext] | None] = ContextVar("message place", default=None)


def message_context() -> MessageContext:
    """Returns topic, partition and offset of the message that is being processed.

    User functions in ``apply``, ``update``, ``filter``, ``set_timestamp``, ``set_headers``, ``to_topic`` and
    ``process`` may call it, directly or through other functions.

    Raises:
        MessageContextNotSetError: No message is processed. This is the case in a timer, in ``apply_async``, in steps
            after a window that was closed by time, and outside of a run.
    """
    found = current_message()
    if found is None:
        raise MessageContextNotSetError(
            "`message_context()` was called, and no message is processed here.",
            action="Call it in a function of `apply`, `update` or `filter`, and hand its parts on in the value. "
            "Timers, `apply_async` and results of windows that time has closed belong to no message.",
        )
    return found


def current_message() -> MessageContext | None:
    """Returns topic, partition and offset of the message that is being processed; None if no message is processed."""
    place = _place.get()
    return None if place is None else place()


def processing(place: Callable[[], MessageContext], function: Callable[..., None], given: Iterable[Any]) -> None:
    """Calls ``function`` with the arguments ``given``.

    During the call, ``message_context()`` calls ``place`` and returns its result.
    """
    token = _place.set(place)
    try:
        function(*given)
    finally:
        _place.reset(token)


def place_of(batch: Batch, index: int) -> MessageContext:
    """Returns topic, partition and offset of the record at ``index`` in the batch."""
    return MessageContext(batch.partition.topic, batch.partition.number, batch.offsets[index])
