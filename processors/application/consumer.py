"""``app.get_consumer()``: a consumer for a program that reads topics in its own loop, outside of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Batch, Headers, Partition

if TYPE_CHECKING:
    from holdfast.processors.engine.runtime.ports import Cluster, GroupMember

#: Seconds between two commits of stored offsets.
COMMIT_S = 5.0
#: Maximum seconds of one internal poll if the caller gives no timeout. A poll returns earlier if a message arrives.
POLL_S = 60.0
#: Maximum number of messages that one poll fetches.
READY_MAX = 500

OnPartitions = Callable[["Consumer", list[Partition]], None]


class ConsumerInvalid(HoldfastError):
    """The consumer can't be used in this way, for example because it is closed or its application has streams."""


class ConsumedMessage:
    """A message that ``Consumer`` returns.

    Its methods have the same names as those of confluent_kafka's ``Message``.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def topic(self) -> str:
        """The name of the topic that the message was read from."""
        return self._batch.partition.topic

    def partition(self) -> int:
        """The number of the partition."""
        return self._batch.partition.number

    def offset(self) -> int:
        """The offset in the partition."""
        return self._batch.offsets[self._index]

    def key(self) -> bytes | None:
        """The key as bytes; ``topic.deserialize(message)`` converts it to a Python object."""
        return self._batch.keys[self._index]

    def value(self) -> bytes | None:
        """The value as bytes; ``topic.deserialize(message)`` converts it to a Python object."""
        return self._batch.values[self._index]

    def headers(self) -> Headers:
        """The headers: pairs of names and bytes."""
        return self._batch.headers[self._index]

    def timestamp(self) -> tuple[int, int]:
        """The type of the timestamp, and the timestamp in milliseconds since 1970."""
        return 1, self._batch.timestamps[self._index]

    def error(self) -> None:
        """Always None, because the consumer raises Kafka's errors as exceptions."""

    def __len__(self) -> int:
        return len(self.value() or b"")


class Consumer:
    """A member of the application's consumer group. ``app.get_consumer()`` returns it, for use in a ``with`` block.

    The consumer reads committed messages only. A partition starts at the group's committed offset. Without a committed
    offset, it starts as ``auto_offset_reset`` says.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Cluster]],
        group: str,
        offset_reset: str,
        has_streams: Callable[[], bool],
        *,
        commits: bool,
    ) -> None:
        self._connect, self._group, self._reset, self._has_streams = connect, group, offset_reset, has_streams
        self._commits, self._stack = commits, ExitStack()
        self._joined: tuple[Cluster, GroupMember] | None = None
        self._assigned: set[Partition] = set()
        self._new: list[Partition] = []
        self._ready: Iterator[ConsumedMessage] = iter(())
        self._stored: dict[Partition, int] = {}
        self._commit_at = 0.0
        self._closed = False

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Joins the group and reads these topics.

        Args:
            topics: The names of the topics.
            on_assign: Called with the consumer and the partitions that are assigned to it.
            on_revoke: Called with the consumer and the partitions that are revoked. Stored offsets are committed after
                this call.
            on_lost: Called with the consumer and the partitions that already belong to another member. None calls
                ``on_revoke`` instead.

        Raises:
            ConsumerInvalid: The application has streams, or the consumer is closed or already subscribed.
        """
        if isinstance(topics, str) or not topics or not all(isinstance(each, str) for each in topics):
            raise ConsumerInvalid(
                f"`subscribe` got {topics!r}, expected a list of names of topics.",
                action="Write `consumer.subscribe(topics=[topic.name])`.",
                seen=repr(topics)[:80],
            )
        if self._closed or self._joined is not None:
            raise ConsumerInvalid(
                f"A consumer of group {self._group} is {'closed' if self._closed else 'subscribed already'}.",
                action="Make one for each list of topics: `with app.get_consumer() as consumer:`.",
            )
        if self._has_streams():
            raise ConsumerInvalid(
                f"The application {self._group} has streams, whose positions are the offsets of its group. A consumer "
                "of this group would take their partitions, and would move them past messages that no stream has seen.",
                action="Make the consumer with another application: "
                "`Application(consumer_group='...').get_consumer()`.",
                group=self._group,
            )
        cluster = self._stack.enter_context(self._connect())
        member = cluster.group_consumer(self._group, f"{self._group}-consumer")
        self._stack.callback(member.close)
        self._joined = cluster, member
        self._commit_at = cluster.clock.monotonic() + COMMIT_S

        def assigned(partitions: list[Partition]) -> None:
            self._assigned = {*partitions}
            self._new = list(partitions)
            if on_assign is not None:
                on_assign(self, partitions)

        def gone(told: OnPartitions | None, partitions: list[Partition], *, commits: bool) -> None:
            if told is not None:
                told(self, partitions)
            if commits:
                self._commit_stored()
            self._assigned -= {*partitions}
            self._stored = {each: offset for each, offset in self._stored.items() if each in self._assigned}
            self._ready = iter(
                [each for each in self._ready if Partition(each.topic(), each.partition()) in self._assigned]
            )

        member.subscribe(
            list(topics),
            assigned,
            lambda partitions: gone(on_revoke, partitions, commits=self._commits),
            lambda partitions: gone(on_lost or on_revoke, partitions, commits=False),
        )

    def poll(self, timeout: float | None = None) -> ConsumedMessage | None:
        """Returns the next message, or None if no message arrives before the timeout.

        Args:
            timeout: Maximum seconds to wait; None waits without limit.

        Raises:
            ConsumerInvalid: The consumer is closed or not subscribed.
            KafkaFailed: Kafka refused a request.
        """
        while True:
            found = self._next(POLL_S if timeout is None else timeout)
            if found is not None or timeout is not None:
                return found

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[ConsumedMessage]:
        """Returns at most ``num_messages`` messages; fewer if no further message arrives within ``timeout`` seconds."""
        found: list[ConsumedMessage] = []
        while len(found) < num_messages and (message := self.poll(timeout)) is not None:
            found.append(message)
        return found

    def store_offsets(self, message: ConsumedMessage) -> None:
        """Marks a message as processed. The next commit covers it and all earlier messages of its partition."""
        place = Partition(message.topic(), message.partition())
        if place in self._assigned:
            self._stored[place] = message.offset() + 1

    def commit(self, message: ConsumedMessage | None = None, asynchronous: bool = True) -> None:
        """Commits stored offsets, and waits for Kafka's answer.

        Args:
            message: The message to mark as processed before the commit; None commits only the stored offsets.
            asynchronous: Ignored; accepted for code that was written for Quix Streams.

        Raises:
            MembershipLost: The partitions already belong to another member.
        """
        if message is not None:
            self.store_offsets(message)
        self._commit_stored()

    def assignment(self) -> list[Partition]:
        """Returns the partitions that are assigned to this consumer now."""
        return sorted(self._assigned)

    def close(self) -> None:
        """Leaves the group. With ``auto_commit_enable``, commits the stored offsets first."""
        if self._closed:
            return
        try:
            if self._commits:
                self._commit_stored()
        finally:
            self._closed = True
            self._stack.close()

    def _next(self, timeout: float) -> ConsumedMessage | None:
        if self._joined is None or self._closed:
            raise ConsumerInvalid(
                f"A consumer of group {self._group} is {'closed' if self._closed else 'not subscribed'}.",
                action="Call `consumer.subscribe(topics=[...])` in its `with` block, before `poll`.",
            )
        cluster, member = self._joined
        if self._commits and cluster.clock.monotonic() >= self._commit_at:
            self._commit_stored()
            self._commit_at = cluster.clock.monotonic() + COMMIT_S
        found = next(self._ready, None)
        if found is not None:
            return found
        batches = member.poll(READY_MAX, timeout)
        if self._new:
            self._begin(cluster, member)
        self._ready = iter([ConsumedMessage(batch, at) for batch in batches for at in range(len(batch.offsets))])
        return next(self._ready, None)

    def _begin(self, cluster: Cluster, member: GroupMember) -> None:
        """Starts to read newly assigned partitions, at their committed offsets or as ``auto_offset_reset`` says."""
        partitions, self._new = self._new, []
        committed, topics = member.committed(partitions), cluster.topics()
        ends: Mapping[str, Mapping[int, int]] = {
            name: topics.start_offsets(name) if self._reset == "earliest" else topics.end_offsets(name, committed=True)
            for name in {each.topic for each in partitions}
        }
        for each in partitions:
            offset = committed[each]
            member.seek(each, ends[each.topic][each.number] if offset is None else offset)
        member.resume(partitions)

    def _commit_stored(self) -> None:
        if self._joined is not None and self._stored:
            self._joined[1].commit(self._stored)
            self._stored = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
