"""The group member that reads the inputs.

Invariants:
    - Records leave here as batches per partition, in offset order; library errors leave as ours.
    - Nothing commits or stores offsets by itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, repeat
from typing import Any, overload

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.infra.kafka.client import library_logger
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed, MembershipLost, OutcomeUnknown, TopicUnusable
from holdfast.infra.kafka.records import Batch, GroupMetadata, Headers, Partition
from holdfast.infra.kafka.rights import Kind, principal_of, refusal_of

_log = structlog.get_logger("kafka.consumer")

RebalanceCallback = Callable[[list[Partition]], None]

AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

_OUT_OF_THE_GROUP = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)

#: How long fetching rests when enough is fetched ahead, in milliseconds.
FETCH_BACKOFF_MS = 10
#: How often a wait looks whether partitions came that it could end for, in seconds: the library does not end it.
LOOK_FOR_PARTITIONS_S = 0.02
#: How long an offset look-up or a seek may take, in seconds.
LOOKUP_TIMEOUT_S = 10.0
#: How long the library may take to set a partition up before it can be sought, in seconds.
SET_UP_S = 2.0


class _HeadersOf(Sequence[Headers]):
    """The headers of messages, looked at when asked for: hardly any stream has any."""

    __slots__ = ("_messages",)

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Headers: ...

    @overload
    def __getitem__(self, index: slice) -> list[Headers]: ...

    def __getitem__(self, index: int | slice) -> Headers | list[Headers]:
        if isinstance(index, slice):
            return [message.headers() for message in self._messages[index]]
        headers: Headers = self._messages[index].headers()
        return headers


def _batches(messages: list[Message], on_error: Callable[[Message], None]) -> list[Batch]:
    """Group messages by partition, keeping the order within each."""
    if any(map(Message.error, messages)):
        # By identity: the library's errors can't be compared with anything else.
        for message in messages:
            if message.error() is not None:
                on_error(message)
        messages = [message for message in messages if message.error() is None]
    names: set[str] = set(map(Message.topic, messages))
    topics: Iterable[str] = repeat(names.pop()) if len(names) == 1 else map(Message.topic, messages)
    places = zip(topics, map(Message.partition, messages), strict=False)
    grouped: dict[tuple[str, int], list[Message]] = {}
    first = 0
    for place, run in groupby(places):
        last = first + len(list(run))
        grouped.setdefault(place, []).extend(messages[first:last])
        first = last
    return [
        Batch(
            Partition(*place),
            list(map(Message.key, found)),
            list(map(Message.value, found)),
            [time_ms for _, time_ms in map(Message.timestamp, found)],
            list(map(Message.offset, found)),
            _HeadersOf(found),
        )
        for place, found in grouped.items()
    ]


_METADATA_MAGIC = b"CGMDv2:"


def _generation_of(metadata: GroupMetadata) -> int:
    """The generation inside of group metadata."""
    return int.from_bytes(_metadata(metadata)[:4], sys.byteorder, signed=True)


def _member_of(metadata: GroupMetadata) -> str | None:
    """The member id inside of group metadata; None before there is one."""
    return _metadata(metadata)[4:].split(b"\0")[1].decode() or None


def _metadata(metadata: GroupMetadata) -> bytes:
    """The bytes of group metadata behind the magic; librdkafka's ``rd_kafka_consumer_group_metadata_write`` writes::

        CGMDv2: | generation, int32 in the machine's byte order | group_id \\0 | member_id \\0 | group_instance_id \\0

    ``tests/unit/infra/test_group_metadata.py`` compares this with the installed library."""
    if not isinstance(metadata, bytes) or not metadata.startswith(_METADATA_MAGIC):
        raise KafkaFailed(
            "This version of confluent-kafka hands out group metadata in a form that Holdfast does not know.",
            action="Install the version of requirements.lock.",
            seen=repr(metadata)[:60],
        )
    return metadata[len(_METADATA_MAGIC) :]


def places_of(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Partitions as the library names them."""
    return [TopicPartition(partition.topic, partition.number) for partition in partitions]


class GroupConsumer:
    """A member of the processor's consumer group.

    Args:
        bootstrap: Kafka's bootstrap servers.
        group: The consumer group.
        config: Further library settings; they win over ours.
    """

    def __init__(self, bootstrap: str, group: str, *, config: Mapping[str, Any] | None = None) -> None:
        self._brokers_down_since: float | None = None
        self._group, self._principal = group, principal_of(config or {})
        #: Of the partitions that the library knows of, the next offset to hand out.
        self._next: dict[Partition, int] = {}
        #: Whether partitions came while the last poll waited.
        self._came = False
        #: Of the partitions that are ours and have not been let flow, where they will begin.
        self._held: dict[Partition, int] = {}
        #: Sought or let go since the last poll began.
        self._moved: set[Partition] = set()
        self._ask_at = 0.0
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "range",
            # A killed worker's partitions are free again after this; the library's 45 s would be most of an outage.
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 2_000,
            "fetch.wait.max.ms": 50,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 65_536,
            # With its queue full the library does not fetch for so long; by its default of a second, a worker that is
            # faster than a queue a second waits for the rest of it.
            "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.interval.ms": 10_000,
            **(config or {}),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # The engine says where to read; a position that is gone must never become another one in silence.
            "auto.offset.reset": "error",
            "error_cb": self._on_library_error,
        }
        self._cooperative = "cooperative" in str(settings["partition.assignment.strategy"])
        self._consumer = Consumer(settings, logger=library_logger())

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: RebalanceCallback,
        on_revoke: RebalanceCallback,
        on_lost: RebalanceCallback,
    ) -> None:
        """Join the group. Newly assigned partitions are held back; after ``seek``, ``resume`` lets them flow.

        The callbacks run inside ``poll``, on the polling thread.
        """

        def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
            # The library hears of a partition only when it is let flow. At a logical offset (end, stored) it would ask
            # for a number, and an answer that comes after the seek overwrites that in silence; at any number that we
            # could guess here the log may not begin yet.
            self._came = True
            self._held.clear()
            if self._cooperative:
                consumer.incremental_assign([])
            else:
                self._next.clear()
                consumer.assign([])
            on_assign([Partition(place.topic, place.partition) for place in places])

        def revoked(consumer: Consumer, places: list[TopicPartition]) -> None:
            partitions = [Partition(place.topic, place.partition) for place in places]
            on_revoke(partitions)
            self._give_back(consumer, partitions)

        def lost(consumer: Consumer, places: list[TopicPartition]) -> None:
            partitions = [Partition(place.topic, place.partition) for place in places]
            on_lost(partitions)
            self._give_back(consumer, partitions)

        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def poll(self, records_max: int, timeout_s: float) -> list[Batch]:
        """Up to ``records_max`` records, waiting at most ``timeout_s`` for the first and not at all for more.

        Raises:
            TopicUnusable: An input topic does not exist.
            KafkaFailed: The cluster refuses this member.
        """
        self._moved.clear()
        messages = self._first(timeout_s)
        if not messages:
            self._ask_for_broker()
            return []
        self._brokers_down_since = None
        if records_max > 1:
            messages += self._consumer.consume(records_max - 1, 0)
        batches = _batches(messages, self._raise_or_log)
        if self._moved:
            batches = self._still_wanted(batches)
        for batch in batches:
            self._next[batch.partition] = batch.offsets[-1] + 1
        return batches

    def _first(self, timeout_s: float) -> list[Message]:
        """One record. Partitions that come meanwhile end the wait: there is more to do with them than to wait."""
        self._came = False
        left_s = timeout_s
        messages: list[Message]
        while not self._next and left_s > LOOK_FOR_PARTITIONS_S:
            messages = self._consumer.consume(1, LOOK_FOR_PARTITIONS_S)
            if messages or self._came:
                return messages
            left_s -= LOOK_FOR_PARTITIONS_S
        messages = self._consumer.consume(1, left_s)
        return messages

    def _still_wanted(self, batches: list[Batch]) -> list[Batch]:
        """Callbacks ran between the records in hand: those of partitions that were sought or let go are dropped.

        They may be from before that, and nothing tells; what was sought is read again from there.
        """
        wanted = []
        for batch in batches:
            if batch.partition not in self._moved:
                wanted.append(batch)
            elif batch.partition in self._next:
                self.seek(batch.partition, self._next[batch.partition])
        return wanted

    def _ask_for_broker(self) -> None:
        """An idle member hears nothing from a broker that came back: ask, now and then."""
        now = time.monotonic()
        if self._brokers_down_since is None or now < self._ask_at:
            return
        self._ask_at = now + 2.0
        try:
            self._consumer.list_topics(timeout=0.5)
        except KafkaException:
            return
        self._brokers_down_since = None

    @property
    def brokers_down_s(self) -> float:
        """For how many seconds no broker could be reached; 0 when all is well."""
        return 0.0 if self._brokers_down_since is None else time.monotonic() - self._brokers_down_since

    def broker_answered(self) -> None:
        """Note that a broker was heard from by other means."""
        self._brokers_down_since = None

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """The group's committed offsets, after any pending transactional commit of them has ended.

        Raises:
            BrokerUnreachable: No answer in time.
        """
        try:
            places = self._consumer.committed(places_of(partitions), timeout=LOOKUP_TIMEOUT_S)
        except KafkaException as failure:
            self._raise_if_refused(failure.args[0], "read the committed offsets")
            raise BrokerUnreachable(
                f"The committed offsets of {len(partitions)} partitions could not be read: {failure.args[0].str()}.",
                action="Check that the broker runs; the processor goes on where it was when it is back. If it runs, a "
                "transaction that wrote them is still open: `kafka-transactions.sh find-hanging` names it.",
            ) from failure
        for place in places:
            if place.error is not None:
                self._raise_if_refused(place.error, "read the committed offsets", place.topic)
                raise KafkaFailed(
                    f"The committed offset of {place.topic}[{place.partition}] can't be read: {place.error.str()}.",
                    action="Check the rights of this client on its consumer group.",
                    topic=place.topic,
                    partition=place.partition,
                )
        return {
            Partition(place.topic, place.partition): place.offset if place.offset >= 0 else None for place in places
        }

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Stop fetching these partitions."""
        self._consumer.pause(places_of([partition for partition in partitions if partition in self._next]))

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Let these partitions flow; new ones from where they were sought to."""
        flowing = [partition for partition in partitions if partition in self._next]
        begun = {partition: self._held.pop(partition) for partition in partitions if partition in self._held}
        if flowing:
            self._consumer.resume(places_of(flowing))
        if begun:
            self._begin(begun)

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on from ``offset``; retried while the library is still setting the partition up."""
        self._moved.add(partition)
        if partition not in self._next:
            self._held[partition] = offset
            return
        self._next[partition] = offset
        deadline = time.monotonic() + SET_UP_S
        while True:
            try:
                self._consumer.seek(TopicPartition(partition.topic, partition.number, offset))
                return
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError._STATE:
                    raise KafkaFailed(
                        f"Seeking {partition.topic}[{partition.number}] to {offset} failed: {failure.args[0].str()}.",
                        action="Restart the processor.",
                        topic=partition.topic,
                        partition=partition.number,
                    ) from failure
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
        # The seek may have overtaken the start of fetching, as a pause can (see ``_begin``): start anew.
        if self._cooperative:
            self._consumer.incremental_unassign(places_of([partition]))
        self._begin({partition: offset})

    def _begin(self, starts: Mapping[Partition, int]) -> None:
        """Let the library know of partitions, each at its offset.

        Never paused at that: a pause or a resume that overtakes the start of fetching makes the library forget the
        start, and the partition stands still for good (librdkafka issues 2190 and 5591; seen once in 600 assignments).
        """
        self._next.update(starts)
        # A pause from before the partition was given back would still hold.
        self._consumer.resume(places_of(starts))
        try:
            if self._cooperative:
                self._consumer.incremental_assign([TopicPartition(*place, at) for place, at in starts.items()])
            else:
                # Without increments all are assigned again, each where it is.
                self._consumer.assign([TopicPartition(*place, at) for place, at in self._next.items()])
        except KafkaException as failure:
            named = ", ".join(f"{place.topic}[{place.number}] from {at}" for place, at in starts.items())
            raise KafkaFailed(
                f"Reading {named} was refused: {failure.args[0].str()}.",
                action="Restart the processor.",
                partitions=named,
            ) from failure

    def _give_back(self, consumer: Consumer, partitions: Sequence[Partition]) -> None:
        known = [partition for partition in partitions if partition in self._next]
        self._moved.update(partitions)
        for partition in partitions:
            self._next.pop(partition, None)
            self._held.pop(partition, None)
        if self._cooperative:
            consumer.incremental_unassign(places_of(known))
        else:
            consumer.unassign()

    def high_watermark(self, partition: Partition) -> int | None:
        """The end of the partition as of the last fetch; None before the first."""
        try:
            _, high = self._consumer.get_watermark_offsets(
                TopicPartition(partition.topic, partition.number), cached=True
            )
        except (KafkaException, RuntimeError):  # not fetched yet, or closed already
            return None
        return int(high) if high >= 0 else None

    def group_metadata(self) -> GroupMetadata:
        """This member's identity and generation as of now; never keep it.

        Raises:
            MembershipLost: There is no generation. Kafka takes offsets without one as long as the group is empty,
                so that nothing would fence this member from what its successor has done.
        """
        metadata = self._consumer.consumer_group_metadata()
        generation = _generation_of(metadata)
        if generation < 0:
            raise MembershipLost(
                "This worker is not a member of its consumer group any more.",
                action="Nothing is lost: it joins again, and the records are processed by their new owner.",
                generation=generation,
            )
        return metadata

    @property
    def member_id(self) -> str | None:
        """What the group knows this member by; None before it has joined."""
        # Not the library's memberid(), and only on the polling thread: it asks a thread of the library, and all of
        # Python stands still meanwhile.
        return _member_of(self._consumer.consumer_group_metadata())

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit next offsets outside of transactions (at-least-once), and wait for the answer.

        Raises:
            MembershipLost: The group went on without this member; see also ``group_metadata``.
            OutcomeUnknown: No answer.
            KafkaFailed: The group refused.
        """
        self.group_metadata()
        places = [TopicPartition(part.topic, part.number, offset) for part, offset in offsets.items()]
        try:
            results = self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as failure:
            self._raise_if_refused(failure.args[0], "commit offsets")
            raise _commit_refused(failure.args[0], "") from failure
        for place in results or []:
            if place.error is not None:
                self._raise_if_refused(place.error, "commit offsets", place.topic)
                raise _commit_refused(place.error, f" of {place.topic}[{place.partition}]")

    def close(self) -> None:
        """Leave the group at once."""
        self._consumer.close()

    def _on_library_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._brokers_down_since is None:
            self._brokers_down_since = time.monotonic()
            _log.warning("no broker reachable", error=error.str(), next="waiting for the broker to come back")

    def _raise_if_refused(self, error: KafkaError, what: str, topic: str | None = None) -> None:
        names: dict[Kind, str] = {"topic": topic or "", "group": self._group}
        missing = refusal_of(error, what, self._principal, operation="Read", names=names)
        if missing is not None:
            raise missing

    def _raise_or_log(self, message: Message) -> None:
        error = message.error()
        self._raise_if_refused(error, "read the inputs", message.topic())
        if error.code() in _MISSING:
            raise TopicUnusable(
                f"Input topic {message.topic()} is not there: {error.str()}.",
                action="Create the topic, or let Holdfast create it (auto_create_topics=True).",
                topic=message.topic(),
            )
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._on_library_error(error)
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaFailed(
                f"Reading the inputs was refused: {error.name()} ({error.str()}).",
                action="Check the rights of this client, and that the committed offsets are still in the topic.",
                error=error.name(),
            )
        elif error.code() != KafkaError._PARTITION_EOF:
            _log.warning("input error", error=error.str(), next="the client library retries")


def _commit_refused(error: KafkaError, of: str) -> KafkaFailed:
    seen = f"Committing the offset{of or 's'} was refused: {error.name()} ({error.str()})."
    if error.code() in _OUT_OF_THE_GROUP:
        return MembershipLost(
            seen,
            action="Nothing is lost: the records are processed again by the partition's owner.",
            error=error.name(),
        )
    if error.retriable() or error.code() in AWAY:
        return OutcomeUnknown(
            seen, action="The engine finds out what was committed and goes on from there.", error=error.name()
        )
    return KafkaFailed(
        seen,
        action="Check the rights of this client on its consumer group; the records are processed again.",
        error=error.name(),
    )
