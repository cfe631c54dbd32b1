"""The consumer with which a worker joins its consumer group and reads a processor's input topics.

librdkafka's automatic commit and its automatic storage of offsets are switched off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.infra.installation import install_line
from holdfast.infra.kafka.clients.client import AWAY, library_logger
from holdfast.infra.kafka.clients.message_headers import MessageHeaders
from holdfast.infra.kafka.clients.read_ends import ReadEnds
from holdfast.infra.kafka.clients.rights import Kind, principal_of, refusal_of
from holdfast.infra.kafka.errors import (
    READS_ON,
    BrokerUnreachable,
    KafkaFailed,
    MembershipLost,
    OutcomeUnknown,
    TopicUnusable,
)
from holdfast.infra.kafka.records import Batch, GroupMetadata, NotedOffset, Partition
from holdfast.infra.log import get_logger
from holdfast.infra.waiting import retry

_log = get_logger("kafka.consumer")

OnPartitions = Callable[[list[Partition]], None]

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

_OUT_OF_THE_GROUP = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
)

#: ``fetch.queue.backoff.ms``: pause of fetching while the client's queue is full, milliseconds.
FETCH_BACKOFF_MS = 10
#: Maximum seconds of one poll while no partition is assigned. It is short, because a new assignment does not interrupt
#: librdkafka's wait for records.
LOOK_FOR_PARTITIONS_S = 0.02
#: Timeout of a request for committed offsets, seconds.
LOOKUP_TIMEOUT_S = 10.0
#: Maximum seconds that librdkafka may take to prepare a newly assigned partition for a seek.
SET_UP_S = 2.0
#: Pause between two attempts to seek, and between two metadata requests to an unreachable broker, seconds.
SEEK_RETRY_S, BROKER_RETRY_S = 0.02, 2.0


def _batches(messages: list[Message], on_error: Callable[[Message], None]) -> list[Batch]:
    """Groups consecutive messages into batches by partition; ``on_error`` is called with each error message."""
    if any(map(Message.error, messages)):
        # The test is `is not None`, because comparing librdkafka's errors with None by `!=` raises an exception.
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
    return [_batch(Partition(*place), found) for place, found in grouped.items()]


def _batch(partition: Partition, messages: list[Message]) -> Batch:
    """The messages of one partition as a batch. Headers are decoded later, on access, because decoding may raise."""
    offsets = list(map(Message.offset, messages))
    return Batch(
        partition,
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        [time_ms for _, time_ms in map(Message.timestamp, messages)],
        offsets,
        MessageHeaders(partition, offsets, messages, Message.headers),
    )


_METADATA_MAGIC = b"CGMDv2:"


def _generation_of(metadata: GroupMetadata) -> int:
    return int.from_bytes(_metadata(metadata)[:4], sys.byteorder, signed=True)


def _member_of(metadata: GroupMetadata) -> str | None:
    """The member id in group metadata; None before the broker has assigned an id."""
    return _metadata(metadata)[4:].split(b"\0")[1].decode() or None


def _metadata(metadata: GroupMetadata) -> bytes:
    """The serialised group metadata without its magic bytes. ``rd_kafka_consumer_group_metadata_write`` writes it as::

        CGMDv2: | generation, int32 in the machine's byte order | group_id \\0 | member_id \\0 | group_instance_id \\0

    ``tests/unit/infra/kafka/clients/test_group_metadata.py`` compares this format with the installed library.
    """
    if not isinstance(metadata, bytes) or not metadata.startswith(_METADATA_MAGIC):
        raise KafkaFailed(
            "The installed confluent-kafka serialises group metadata in a format that Holdfast does not know.",
            action=f"Install the confluent-kafka of `requirements.lock`: run `{install_line()}`.",
            seen=repr(metadata)[:60],
        )
    return metadata[len(_METADATA_MAGIC) :]


def places_of(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Converts partitions to confluent_kafka's type ``TopicPartition``."""
    return [TopicPartition(partition.topic, partition.number) for partition in partitions]


def _next_offset(place: TopicPartition) -> int | None:
    if place.offset < 0:
        return None
    return NotedOffset(place.offset, place.metadata) if place.metadata else place.offset


#: Milliseconds without a heartbeat after which the group removes a member, unless the settings have another time.
SESSION_MS = 10_000


class GroupConsumer:
    """A consumer that is a member of a consumer group; implements the engine's protocol ``GroupMember``.

    ``config`` are librdkafka settings that override the defaults in this class.

    Methods raise BrokerUnreachable on a timeout, AccessRefused if a right is missing, and KafkaFailed if the cluster
    refuses for another reason. ``poll`` raises TopicUnusable if an input topic does not exist. ``commit`` raises
    MembershipLost if the consumer group has a newer generation, and OutcomeUnknown if no answer arrived.
    """

    def __init__(self, bootstrap: str, group: str, *, config: Mapping[str, Any] | None = None) -> None:
        self._brokers_down_since: float | None = None
        self._group, self._principal = group, principal_of(config or {})
        #: Partition that is assigned in librdkafka -> next offset that ``poll`` returns.
        self._next: dict[Partition, int] = {}
        #: Whether the group assigned partitions to this member during the last poll.
        self._came = False
        #: Partitions that the group assigned but ``resume`` has not started yet -> offset from which they will start.
        self._held: dict[Partition, int] = {}
        self._ends = ReadEnds()
        #: Partitions that were revoked, or for which ``seek`` was called, since the last poll began.
        self._moved: set[Partition] = set()
        self._ask_at = 0.0
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "partition.assignment.strategy": "range",
            # If a worker is killed, its group reassigns the worker's partitions after this timeout. Kafka's default of
            # 45 s is too long.
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 2_000,
            "fetch.wait.max.ms": 50,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 65_536,
            # Pause of fetching after the queue was full. With the default of 1 s, a fast worker would empty the queue
            # and then wait for the rest of the second.
            "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.refresh.interval.ms": 10_000,
            **(config or {}),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            # The engine chooses every start offset. An automatic reset would hide that an offset was deleted.
            "auto.offset.reset": "error",
            "error_cb": self._on_library_error,
        }
        self._cooperative = "cooperative" in str(settings["partition.assignment.strategy"])
        self._consumer = Consumer(settings, logger=library_logger())

    def subscribe(
        self, topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions, on_lost: OnPartitions
    ) -> None:
        def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
            # The partitions are assigned in librdkafka only in ``resume``, when their offsets are known. With a logical
            # offset (end, stored), librdkafka would look up the number, and a late answer would overwrite a seek. A
            # guessed offset might be deleted already.
            self._came = True
            self._held.clear()
            if self._cooperative:
                consumer.incremental_assign([])
            else:
                self._next.clear()
                consumer.assign([])
            on_assign([Partition(place.topic, place.partition) for place in places])

        def gone(callback: OnPartitions, consumer: Consumer, places: list[TopicPartition]) -> None:
            partitions = [Partition(place.topic, place.partition) for place in places]
            callback(partitions)
            self._give_back(consumer, partitions)

        revoked, lost = partial(gone, on_revoke), partial(gone, on_lost)
        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def poll(self, records_max: int, timeout_s: float) -> list[Batch]:
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
            self._ends.came(batch.partition)
        return batches

    def _first(self, timeout_s: float) -> list[Message]:
        """Waits for the first record. A new assignment ends the wait, so that reading of its partitions can start."""
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
        """Drops the batches of partitions that were revoked, or for which a callback called ``seek``, during this poll.

        The records in these batches may be from before the seek. The partition is then read from its new position.
        """
        wanted = []
        for batch in batches:
            if batch.partition not in self._moved:
                wanted.append(batch)
            elif batch.partition in self._next:
                self.seek(batch.partition, self._next[batch.partition])
        return wanted

    def _ask_for_broker(self) -> None:
        """Request metadata from time to time while all brokers are down.

        Otherwise an idle member would not notice that a broker answers again.
        """
        now = time.monotonic()
        if self._brokers_down_since is None or now < self._ask_at:
            return
        self._ask_at = now + BROKER_RETRY_S
        try:
            self._consumer.list_topics(timeout=0.5)
        except KafkaException:
            return
        self._brokers_down_since = None

    @property
    def brokers_down_s(self) -> float:
        return 0.0 if self._brokers_down_since is None else time.monotonic() - self._brokers_down_since

    def broker_answered(self) -> None:
        self._brokers_down_since = None

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        try:
            places = self._consumer.committed(places_of(partitions), timeout=LOOKUP_TIMEOUT_S)
        except KafkaException as failure:
            self._raise_if_refused(failure.args[0], "read the committed offsets")
            raise BrokerUnreachable(
                f"Kafka did not return the committed offsets of {len(partitions)} partitions: {failure.args[0].str()}.",
                action="Check that the broker runs; the processor continues when the broker answers. If it runs, "
                "an open transaction may hold these offsets back: `kafka-transactions.sh find-hanging` names it.",
            ) from failure
        for place in places:
            if place.error is not None:
                self._raise_if_refused(place.error, "read the committed offsets", place.topic)
                raise KafkaFailed(
                    f"Kafka did not return the offset of {place.topic}[{place.partition}]: {place.error.str()}.",
                    action="Give this client the right `Read` on its consumer group.",
                    topic=place.topic,
                    partition=place.partition,
                )
        return {Partition(each.topic, each.partition): _next_offset(each) for each in places}

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._ends.begin(partitions)
        self._consumer.pause(places_of([partition for partition in partitions if partition in self._next]))

    def resume(self, partitions: Sequence[Partition]) -> None:
        flowing = [partition for partition in partitions if partition in self._next]
        begun = {partition: self._held.pop(partition) for partition in partitions if partition in self._held}
        self._ends.begin(partitions)
        if flowing:
            self._consumer.resume(places_of(flowing))
        if begun:
            self._begin(begun)

    def seek(self, partition: Partition, offset: int) -> None:
        self._moved.add(partition)
        self._ends.begin([partition])
        if partition not in self._next:
            self._held[partition] = offset
            return
        self._next[partition] = offset
        place = TopicPartition(partition.topic, partition.number, offset)
        try:
            retry(lambda: self._consumer.seek(place), _is_not_set_up, SET_UP_S, every_s=SEEK_RETRY_S)
            return
        except KafkaException as failure:
            if not _is_not_set_up(failure):
                raise KafkaFailed(
                    f"Seeking {partition.topic}[{partition.number}] to {offset} failed: {failure.args[0].str()}.",
                    action="Restart the processor.",
                    topic=partition.topic,
                    partition=partition.number,
                ) from failure
        # The seek still fails. Perhaps librdkafka never began to fetch the partition (explained in ``_begin``). So
        # assign the partition again, at the new offset.
        if self._cooperative:
            self._consumer.incremental_unassign(places_of([partition]))
        self._begin({partition: offset})

    def _begin(self, starts: Mapping[Partition, int]) -> None:
        """Assign partitions in librdkafka, each at its start offset.

        Partitions are never assigned in a paused state to be resumed later. A pause or resume just before librdkafka
        begins to fetch a partition can prevent the fetch. Then the partition is never read (librdkafka issues 2190 and
        5591; seen once in 600 assignments).
        """
        self._next.update(starts)
        self._ends.begin(starts if self._cooperative else self._next)
        # librdkafka keeps a pause even after a revocation, so an earlier pause must be ended.
        self._consumer.resume(places_of(starts))
        try:
            if self._cooperative:
                self._consumer.incremental_assign([TopicPartition(*place, at) for place, at in starts.items()])
            else:
                # In the eager protocol, every call must assign all partitions, each at its present position.
                self._consumer.assign([TopicPartition(*place, at) for place, at in self._next.items()])
        except KafkaException as failure:
            named = ", ".join(f"{place.topic}[{place.number}] from {at}" for place, at in starts.items())
            raise KafkaFailed(
                f"The client library refused to read {named}: {failure.args[0].str()}.",
                action="Restart the processor.",
                partitions=named,
            ) from failure

    def _give_back(self, consumer: Consumer, partitions: Sequence[Partition]) -> None:
        known = [partition for partition in partitions if partition in self._next]
        self._moved.update(partitions)
        self._ends.begin(partitions)
        for partition in partitions:
            self._next.pop(partition, None)
            self._held.pop(partition, None)
        if self._cooperative:
            consumer.incremental_unassign(places_of(known))
        else:
            consumer.unassign()

    def high_watermark(self, partition: Partition) -> int | None:
        try:
            _, high = self._consumer.get_watermark_offsets(
                TopicPartition(partition.topic, partition.number), cached=True
            )
        except (KafkaException, RuntimeError):  # Either no record was fetched yet, or the consumer is closed.
            return None
        return int(high) if high >= 0 else None

    def is_ended(self, partition: Partition) -> bool:
        return self._ends.is_ended(partition, self._next.get(partition), self.high_watermark(partition))

    def without_records(self, partition: Partition, position: int) -> int | None:
        # If the consumer's position differs from ``position``, some delivered records are not processed yet.
        return self._ends.without_records(partition, position) if self._next.get(partition) == position else None

    def group_metadata(self) -> GroupMetadata:
        metadata = self._consumer.consumer_group_metadata()
        generation = _generation_of(metadata)
        # Without a generation of its consumer group, this member must not commit. Kafka accepts offsets without a
        # generation while the group is empty. So Kafka could not fence a late commit of this member, and the next owner
        # of its partitions would start from wrong offsets.
        if generation < 0:
            raise MembershipLost(
                "This worker is no longer a member of its consumer group.",
                action="Nothing to do: the worker joins again; the new owner of the partitions processes the records.",
                generation=generation,
            )
        return metadata

    @property
    def member_id(self) -> str | None:
        # librdkafka's memberid() is not used, because it waits for another thread while it holds Python's GIL. This
        # property may be read only on the polling thread.
        return _member_of(self._consumer.consumer_group_metadata())

    def commit(self, offsets: Mapping[Partition, int]) -> None:
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
        self._consumer.close()

    def _on_library_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._brokers_down_since is None:
            self._brokers_down_since = time.monotonic()
            _log.warning("no broker reachable", error=error.str(), next="the worker waits for the broker")

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
                f"Input topic {message.topic()} does not exist: {error.str()}.",
                action="Create the topic: `holdfast apply provision PROCESSOR`, or, in `Application.run()`, with "
                "`auto_create_topics=True`.",
                cause="source-missing",
                topic=message.topic(),
            )
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._on_library_error(error)
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaFailed(
                f"Kafka refused to read the inputs: {error.name()} ({error.str()}).",
                action="Check the rights of this client, and that its topics still hold the committed offsets.",
                error=error.name(),
            )
        elif error.code() == KafkaError._PARTITION_EOF:
            partition = Partition(message.topic(), message.partition())
            # If `seek` was called for the partition during this poll, the reported end offset may be older than the
            # seek. Then it may be out of date, so it is ignored.
            if partition not in self._moved:
                self._ends.told(partition, message.offset())
        else:
            _log.warning("input error", error=error.str(), next="the client library retries")


def _is_not_set_up(failure: Exception) -> bool:
    return isinstance(failure, KafkaException) and failure.args[0].code() == KafkaError._STATE


def _commit_refused(error: KafkaError, of: str) -> KafkaFailed:
    seen = f"Kafka refused to commit the offset{of or 's'}: {error.name()} ({error.str()})."
    if error.code() in _OUT_OF_THE_GROUP:
        action = "Nothing to do: the new owner of the partitions processes the records again."
        return MembershipLost(seen, action=action, error=error.name())
    if error.retriable() or error.code() in AWAY:
        return OutcomeUnknown(seen, action=READS_ON, error=error.name())
    action = "Give this client the right `Read` on its consumer group; the records are processed again."
    return KafkaFailed(seen, action=action, error=error.name())
