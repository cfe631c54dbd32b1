"""Reads ranges of offsets, without a consumer group.

Audits, archives, samples and tests use this module. The engine does not: it replays changelogs with
``infra.kafka.clients.restore_consumer``, because the simulation can replace that module.

Invariants:
    - The end of a range is detected even if its last offsets have no readable record, because of transaction markers,
      aborted records or compaction. For this, the record offsets, the consumer's position and the partition's end are
      all compared with the range's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from holdfast.infra.kafka.clients.client import library_logger
from holdfast.infra.kafka.clients.message_headers import MessageHeaders
from holdfast.infra.kafka.clients.rights import WITHOUT_A_GROUP, Kind, principal_of, refusal_of
from holdfast.infra.kafka.errors import HeadersUnreadable, KafkaFailed
from holdfast.infra.kafka.records import Batch, ClientConfig, Headers, Partition, Record
from holdfast.infra.waiting import Deadline

#: Maximum seconds without a new record; then a read fails.
NO_PROGRESS_S = 60.0
#: Timeout of one poll, seconds. It is short, because librdkafka always waits this long for a full batch, even after the
#: end of the partition. An audit reads many small partitions, so long waits would add up.
POLL_S = 0.02
#: Maximum number of messages that one poll takes from the client library.
MESSAGES_AT_ONCE = 5_000


def read_range(
    bootstrap: str,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    committed: bool = True,
    extra_config: ClientConfig | None = None,
) -> Iterator[Record]:
    """Yield the records of one partition in the offset range ``[start, end)``, in order.

    With ``committed=True``, records of open and aborted transactions are left out, and ``end`` must not be greater than
    the last stable offset.

    Raises:
        AccessRefused: This client may not read the topic.
        HeadersUnreadable: The name of a header is not UTF-8.
        KafkaFailed: The range was deleted, or no record arrived for ``NO_PROGRESS_S``.
    """
    place = Partition(topic, partition)
    for messages in _range(bootstrap, place, start, end, committed, extra_config):
        yield from _records(place, messages, MessageHeaders.__getitem__)


def read_range_for_proof(
    bootstrap: str, topic: str, partition: int, start: int, end: int, *, extra_config: ClientConfig | None = None
) -> Iterator[Record]:
    """The same as ``read_range`` for committed records, but a record with unreadable headers gets ``headers=None``."""
    place = Partition(topic, partition)
    for messages in _range(bootstrap, place, start, end, True, extra_config):
        yield from _records(place, messages, _readable_or_none)


def _readable_or_none(headers: MessageHeaders, index: int) -> Headers:
    try:
        return headers[index]
    except HeadersUnreadable:
        return None


def _records(
    place: Partition, messages: list[Message], headers_at: Callable[[MessageHeaders, int], Headers]
) -> Iterator[Record]:
    offsets = list(map(Message.offset, messages))
    headers = MessageHeaders(place, offsets, messages, Message.headers)
    for index, message in enumerate(messages):
        time_ms = message.timestamp()[1]
        yield Record(message.key(), message.value(), offsets[index], time_ms, headers_at(headers, index))


def read_batches(
    bootstrap: str,
    partition: Partition,
    start: int,
    end: int,
    *,
    extra_config: ClientConfig | None = None,
    places: bool = False,
) -> Iterator[Batch]:
    """The same as ``read_range`` for committed records, but yields batches of keys and values.

    With ``places=True``, the batches also have offsets and timestamps.
    """
    for messages in _range(bootstrap, partition, start, end, True, extra_config):
        batch = Batch(partition, [each.key() for each in messages], [each.value() for each in messages])
        if places:
            batch.offsets = [each.offset() for each in messages]
            batch.timestamps = [each.timestamp()[1] for each in messages]
        yield batch


class RangeReader:
    """Reads several offset ranges, one after another, with one consumer; use it in a ``with`` block."""

    def __init__(
        self,
        bootstrap: str,
        config: ClientConfig | None = None,
        *,
        committed: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._principal = principal_of(config or {})
        self._place = Partition("", 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "holdfast-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 50,
                **(settings or {}),
                **(config or {}),
            },
            logger=library_logger(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def move_to(self, place: Partition, offset: int) -> None:
        """Continue to read at this offset of this partition."""
        self._place = place
        self._consumer.assign([TopicPartition(place.topic, place.number, offset)])

    @property
    def position(self) -> int:
        """The offset of the next record to read; negative before the first record."""
        return int(self._consumer.position([TopicPartition(*self._place)])[0].offset)

    def poll(self, records_max: int = MESSAGES_AT_ONCE) -> tuple[list[Message], int | None]:
        """Returns the records that arrive within ``POLL_S``, and the partition's end offset.

        The end offset is None until the consumer has reached the end.

        Raises:
            AccessRefused: This client may not read the topic.
            KafkaFailed: The partition or the offset can't be read.
        """
        messages, end = [], None
        for message in self._consumer.consume(records_max, POLL_S):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                end = message.offset()
            elif error.code() not in WITHOUT_A_GROUP and not error.retriable():
                raise self._failure(error)
        return messages, end

    def _failure(self, error: KafkaError) -> KafkaFailed:
        topic, number = self._place
        names: dict[Kind, str] = {"topic": topic}
        missing = refusal_of(error, f"read {topic}[{number}]", self._principal, operation="Read", names=names)
        return missing or KafkaFailed(
            f"Reading {topic}[{number}] failed: {error.str()}.",
            action="Read offsets that the topic still holds: `kafka-get-offsets.sh` shows its first and last offsets.",
            topic=topic,
            partition=number,
        )


def _range(
    bootstrap: str, place: Partition, start: int, end: int, committed: bool, config: ClientConfig | None
) -> Iterator[list[Message]]:
    """Yields the messages in the offset range ``[start, end)`` in non-empty lists, in order."""
    if start >= end:
        return
    with RangeReader(bootstrap, config, committed=committed) as reader:
        reader.move_to(place, start)
        patience, last = Deadline(NO_PROGRESS_S), -1
        while True:
            messages, met = reader.poll()
            over = met is not None and met >= end
            if messages and messages[-1].offset() >= end:
                messages, over = [message for message in messages if message.offset() < end], True
            if messages:
                patience, last = Deadline(NO_PROGRESS_S), messages[-1].offset()
                yield messages
            if over or reader.position >= end:
                return
            if patience.passed:
                raise KafkaFailed(
                    f"Reading {place.topic}[{place.number}] stopped at offset {max(last, reader.position)} of {end}: "
                    f"no record for {NO_PROGRESS_S:.0f} s.",
                    action="Look for a hanging transaction on the topic with `kafka-transactions.sh find-hanging`.",
                    topic=place.topic,
                    partition=place.number,
                    position=reader.position,
                )
