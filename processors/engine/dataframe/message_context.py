"""``message_context()``: where the message that a function processes was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Batch


class MessageContextNotSetError(HoldfastError):
    """``message_context()`` was called where no message is processed."""


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The place of one message in Kafka.

    Attributes:
        topic: The topic; behind ``group_by``, the repartition topic.
        partition: The number of the partition.
        offset: The offset of the message in this partition.
    """

    topic: str
    partition: int
    offset: int


#: Looks up the place of the current message; set while a task runs the steps of messages.
_place: ContextVar[Callable[[], MessageContext] | None] = ContextVar("message place", default=None)


def message_context() -> MessageContext:
    """The topic, partition and offset of the message that is processed now.

    Functions of ``apply``, ``update``, ``filter``, ``set_timestamp``, ``set_headers``, ``to_topic`` and ``process`` may
    call it, and so may functions that they call.

    Raises:
        MessageContextNotSetError: No message is processed: in a timer, in ``apply_async``, behind a window that time
            has closed, and outside of a run.
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
    """The same, or None where no message is processed."""
    place = _place.get()
    return None if place is None else place()


def processing(place: Callable[[], MessageContext], function: Callable[..., None], given: Iterable[Any]) -> None:
    """Calls a function; meanwhile, ``message_context()`` gives what ``place`` returns."""
    token = _place.set(place)
    try:
        function(*given)
    finally:
        _place.reset(token)


def place_of(batch: Batch, index: int) -> MessageContext:
    """The place of a record in a batch."""
    return MessageContext(batch.partition.topic, batch.partition.number, batch.offsets[index])
