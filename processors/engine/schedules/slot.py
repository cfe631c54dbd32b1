"""The object ``Slot`` that a schedule's function gets. The function uses it to read stores and to send messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.formats.kafka_message import GivenHeaders
from holdfast.processors.engine.schedules.declaration import Schedule
from holdfast.processors.engine.schedules.reading import KeyRange, ReadableStore, ScheduleReadRefused, StoreEntry
from holdfast.processors.engine.steps.topic import Topic

if TYPE_CHECKING:
    from holdfast.processors.engine.state.interface import State

#: A function that sends a message to one topic. Its arguments are value, key, timestamp in ms, and headers.
Send = Callable[[Any, Any, int, GivenHeaders | Headers], None]


class ScheduleSendRefused(HoldfastError):
    """A schedule's function sent to a topic that the schedule does not declare, or sent after its call had ended."""


class Reach:
    """The stores and topics that a schedule's function can use in its task.

    Args:
        schedule: The schedule.
        partition: The partition of the task.
        stores: The stores that the function can read, by name.
        unreadable: For each store of the task that the function can't read, a text about its content, for errors.
        senders: For each output topic, the function that sends to it.
        now_ms: Returns the time of the worker's clock, in milliseconds since 1970.
    """

    def __init__(
        self,
        schedule: Schedule,
        partition: int,
        stores: Mapping[str, ReadableStore],
        unreadable: Mapping[str, str],
        senders: Mapping[str, Send],
        now_ms: Callable[[], int],
    ) -> None:
        self.schedule, self.partition, self.now_ms = schedule, partition, now_ms
        self.stores, self.unreadable, self.senders = stores, unreadable, senders


class Slot:
    """The argument of a schedule's function: the slot that fires. The object is valid only during the call.

    Attributes:
        name: The name of the schedule.
        time: The time of the slot, in milliseconds since 1970. The call may be later than this time.
        missed: The number of missed slots between the previous slot that fired and this slot.
        partition: The partition of the task in which the function runs.
        state: State of the schedule in this task. It belongs to the schedule, and not to a message key.
    """

    __slots__ = ("_open", "_reach", "missed", "name", "partition", "state", "time")

    def __init__(self, reach: Reach, time_ms: int, missed: int, state: State, opened: ExitStack) -> None:
        self._reach: Reach | None = reach
        self._open = opened
        opened.callback(self._end)
        self.name, self.partition = reach.schedule.name, reach.partition
        self.time, self.missed, self.state = time_ms, missed, state

    def now(self) -> int:
        """Returns the time of the worker's clock, in milliseconds since 1970."""
        return self._reached().now_ms()

    def items(
        self,
        store: str,
        *,
        prefix: bytes | str | None = None,
        start: bytes | str | None = None,
        end: bytes | str | None = None,
        limit: int | None = None,
    ) -> Iterator[StoreEntry]:
        """Returns an iterator over entries of a store of this task, for all message keys or for a range of them.

        The order is by length of the message key, then by message key and state key. The entries include the effects of
        all messages that the task has processed before this slot.

        Args:
            store: The name of the store.
            prefix: Selects only message keys that begin with these bytes. A text is converted to its UTF-8 bytes.
            start: The first message key of the range.
            end: The message key before which the range ends.
            limit: The maximum number of entries.

        Raises:
            ScheduleReadRefused: The task has no such store, the store can't be read, or an argument is invalid.
        """
        reach = self._reached()
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ScheduleReadRefused(
                f"`limit` of `slot.items` is {limit!r}, expected a whole number from 0.", action="Correct `limit`."
            )
        readable = reach.stores.get(store)
        if readable is None:
            raise _no_store(reach, store)
        found: Generator[StoreEntry] = readable.entries(KeyRange.of(prefix, start, end), limit)
        self._open.callback(found.close)  # an iterator that stays open would prevent the database from closing
        return found

    def send(
        self,
        value: Any,
        *,
        key: Any = None,
        topic: Topic | None = None,
        headers: GivenHeaders = None,
        timestamp: int | None = None,
    ) -> None:
        """Sends a message in the transaction of this slot.

        Args:
            value: The value, which the topic's value serializer accepts. None sends a message without value.
            key: The key, which the topic's key serializer accepts. None sends a message without key.
            topic: One of the topics of the schedule's ``to=``; None if ``to=`` has a single topic.
            headers: The headers, as a mapping or as pairs.
            timestamp: Milliseconds since 1970; None means the time of the slot.

        Raises:
            ScheduleSendRefused: The schedule does not name the topic, or the call has ended.
            ValueUnwritable: The serializer refuses value, key or headers.
            RecordTooLarge: The message is larger than the topic allows.
        """
        senders = self._reached().senders
        name = (
            topic.name if isinstance(topic, Topic) else next(iter(senders)) if len(senders) == 1 and not topic else ""
        )
        if name not in senders:
            named = "" if topic is None else f" to {topic.name if isinstance(topic, Topic) else repr(topic)[:80]}"
            raise ScheduleSendRefused(
                f"Schedule {self.name!r} sent{named}; its `to=` names {', '.join(sorted(senders)) or 'no topic'}.",
                action="Name the topics in the decorator: `to=topic`; with several, write `slot.send(..., topic=one)`.",
                schedule=self.name,
            )
        senders[name](value, key, self.time if timestamp is None else timestamp, headers)

    def _reached(self) -> Reach:
        if self._reach is None:
            raise ScheduleSendRefused(
                f"The slot of schedule {self.name!r} was used after its call had ended: its transaction is over.",
                action="Use the slot only within the function of the schedule.",
                schedule=self.name,
            )
        return self._reach

    def _end(self) -> None:
        self._reach = None


def _no_store(reach: Reach, store: str) -> ScheduleReadRefused:
    name, why = reach.schedule.name, reach.unreadable.get(store)
    if why is None:
        return ScheduleReadRefused(
            f"Schedule {name!r} reads store {store!r}, which its task does not have; it has "
            f"{', '.join(sorted(reach.stores)) or 'none'}.",
            action="Name one of these stores, or set `stream=` to the stream whose tasks have the store.",
            schedule=name,
            store=store,
        )
    return ScheduleReadRefused(
        f"Schedule {name!r} reads store {store!r}, which has {why}.",
        action="Keep what the schedule needs in a store of a function, an aggregation or a table, and read that.",
        schedule=name,
        store=store,
    )
