"""The consumer that replays changelogs to restore state. For speed, no Python code runs for each record.

Code outside of the engine reads offset ranges with ``infra.kafka.topics.reader`` instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, repeat
from operator import is_not
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from holdfast.infra.kafka.clients.client import AWAY, library_logger
from holdfast.infra.kafka.clients.consumer import FETCH_BACKOFF_MS, places_of
from holdfast.infra.kafka.clients.rights import WITHOUT_A_GROUP, Kind, principal_of, refusal_of
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Batch, Partition

#: ``fetch.max.bytes``. Larger responses are slower: the system must provide new memory, and records leave the CPU's
#: caches before they are used.
FETCH_BYTES = 4 << 20
#: Maximum ``queued.max.messages.kbytes``, KiB. In memory, the queued messages take several times as much.
AHEAD_KB_MAX = 8 << 10
#: Maximum number of messages that are taken from librdkafka at once; few enough to stay in the CPU's caches.
PIECE = 2_000
#: Seconds that a poll waits for more messages after its first message.
GATHER_S = 0.002


def _place(message: Message) -> tuple[str, int]:
    return message.topic(), message.partition()


def _replayed(run: list[Message], timed: Collection[str]) -> Batch:
    """Converts consecutive messages of one partition to a batch without headers.

    The batch has timestamps only if its topic is in ``timed``.
    """
    topic, number = _place(run[0])
    return Batch(
        Partition(topic, number),
        timestamps=[message.timestamp()[1] for message in run] if topic in timed else [],
        keys=list(map(Message.key, run)),
        values=list(map(Message.value, run)),
        offsets=list(map(Message.offset, run)),
    )


class ChangelogConsumer:
    """Replays changelogs, without joining a group; implements the engine's protocol ``ChangelogReplayer``.

    The settings in this class override ``config``. The consumer prefetches at most the smaller of ``fetched_kb``
    and ``AHEAD_KB_MAX``, KiB. ``poll`` may return several batches of a partition. ``poll`` raises AccessRefused if this
    client may not read the changelog, and KafkaFailed if the changelog was truncated or deleted.
    """

    def __init__(self, bootstrap: str, *, config: Mapping[str, Any] | None = None, fetched_kb: int = 65_536) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                **(config or {}),
                "group.id": "holdfast-restore",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "fetch.message.max.bytes": 1 << 20,
                "fetch.max.bytes": FETCH_BYTES,
                "queued.min.messages": 1_000_000,
                "queued.max.messages.kbytes": min(fetched_kb, AHEAD_KB_MAX),
                "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
                "check.crcs": False,
                "reconnect.backoff.max.ms": 1000,
            },
            logger=library_logger(),
        )
        self._principal = principal_of(config or {})
        self._topics: set[str] = set()
        self._timed: Collection[str] = ()
        #: Assigned partitions for which librdkafka still reports the position of an earlier assignment.
        self._former: set[Partition] = set()

    def assign(self, starts: Mapping[Partition, int], timed: Collection[str] = ()) -> None:
        # librdkafka keeps a pause across assignments, so the partitions are resumed first. A resume while librdkafka
        # starts to fetch a partition can prevent the fetch (librdkafka issues 2190 and 5591). So the resume must be
        # before the assignment.
        self._consumer.resume(places_of(list(starts)))
        self._consumer.assign([TopicPartition(part.topic, part.number, offset) for part, offset in starts.items()])
        self._topics, self._timed = {partition.topic for partition in starts}, timed
        # librdkafka ends the previous fetch later, in another thread. Until then, it reports the old position, as if
        # records had been replayed already. So the partitions that have an old position now are remembered.
        self._former = set(self._known(list(starts)))

    def drop(self, partitions: Sequence[Partition]) -> None:
        # A pause is used, because a new assignment would drop the prefetched records of the other partitions.
        self._consumer.pause(places_of(partitions))

    def poll(self, records_max: int, timeout_s: float) -> tuple[list[Batch], dict[Partition, int]]:
        ends: dict[Partition, int] = {}

        def note(message: Message) -> None:
            error = message.error()
            if error.code() == KafkaError._PARTITION_EOF:
                ends[Partition(message.topic(), message.partition())] = message.offset()
            elif not (error.retriable() or error.code() in AWAY or error.code() in WITHOUT_A_GROUP):
                place = f"{message.topic()}[{message.partition()}]"
                names: dict[Kind, str] = {"topic": message.topic() or ""}
                missing = refusal_of(error, f"replay {place}", self._principal, operation="Read", names=names)
                if missing is not None:
                    raise missing
                raise KafkaFailed(
                    f"Replaying changelog {place} failed: {error.str()}.",
                    action="Run `holdfast status`: the changelog may have been truncated or deleted.",
                    topic=message.topic(),
                    partition=message.partition(),
                )

        # `map` and `groupby` avoid Python code for each record, because a restore has millions of records.
        place = Message.partition if len(self._topics) == 1 else _place
        batches: list[Batch] = []
        left, wait_s = records_max, timeout_s
        while left > 0:
            asked = min(left, PIECE)
            # Request one record first. If all records were requested at once, librdkafka would wait for the whole
            # timeout at the end of a changelog.
            messages = self._consumer.consume(1, wait_s) if wait_s else []
            if messages or not wait_s:
                messages += self._consumer.consume(asked - len(messages), GATHER_S if wait_s else 0)
            came = len(messages)
            if any(map(is_not, map(Message.error, messages), repeat(None))):
                for message in messages:
                    if message.error() is not None:
                        note(message)
                messages = [message for message in messages if message.error() is None]
            batches += [_replayed(list(run), self._timed) for _, run in groupby(messages, place)]
            if came < asked:
                break
            left, wait_s = left - came, 0.0
        if self._former:
            self._former.difference_update(ends, (batch.partition for batch in batches))
        return batches, ends

    def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        known = self._known(partitions)
        self._former.difference_update(part for part in partitions if part not in known)
        return {part: offset for part, offset in known.items() if part not in self._former}

    def _known(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Returns the positions that librdkafka reports. A position may belong to an earlier assignment."""
        places = self._consumer.position(places_of(partitions))
        return {Partition(place.topic, place.partition): place.offset for place in places if place.offset >= 0}

    def close(self) -> None:
        self._consumer.close()
