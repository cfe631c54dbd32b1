"""The broker of the in-memory cluster: topics with their logs, group coordinators, and the transaction coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Headers, Partition, TopicFacts
from holdfast.infra.kafka.topics.partitioners import murmur2, offsets_partition
from holdfast.processors.engine.runtime.ownership.unfinished import OFFSETS_TOPIC
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.groups import Assignor, Group
from holdfast.processors.testing.log import PartitionLog
from holdfast.processors.testing.network import Network
from holdfast.processors.testing.process import Process
from holdfast.processors.testing.transactions import TransactionCoordinator

#: Kafka's default of ``offsets.topic.num.partitions``.
OFFSETS_PARTITIONS = 50
#: Kafka's default of ``message.timestamp.after.max.ms`` since version 4.0 (KIP-1030).
AFTER_MAX_MS = 3_600_000


@dataclass(slots=True)
class Topic:
    """A topic: its id, the logs of its partitions, and its configuration."""

    topic_id: str
    logs: list[PartitionLog]
    config: dict[str, str] = field(default_factory=dict)


class Broker:
    """The state of the in-memory cluster, shared by all clients.

    Time is virtual, and ``network`` decides whether requests succeed.
    """

    def __init__(self, clock: VirtualClock, network: Network) -> None:
        self.clock = clock
        self.network = network
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.assignor: Assignor = "range"
        self.transactions = TransactionCoordinator(clock, network, self._write_marker, self._settle_offsets)
        self._topic_numbers = itertools.count(1)

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Creates a topic. Returns False if the topic already exists."""
        if name in self.topics:
            return False
        logs = [PartitionLog() for _ in range(partitions)]
        self.topics[name] = Topic(f"topic-{next(self._topic_numbers)}", logs, dict(config))
        for group in self.groups.values():
            if any(name in member.topics for member in group.members):
                group.rebalance()
        return True

    def widen(self, name: str, partitions: int) -> None:
        """Adds partitions to a topic up to the number ``partitions``. The groups that read the topic rebalance."""
        logs = self.topic(name).logs
        logs += [PartitionLog() for _ in range(partitions - len(logs))]
        for group in self.groups.values():
            if any(name in member.topics for member in group.members):
                group.rebalance()

    def delete(self, name: str) -> None:
        """Deletes a topic, and all offsets that groups committed for it."""
        self.topics.pop(name, None)
        for group in self.groups.values():
            group.committed = {part: offset for part, offset in group.committed.items() if part.topic != name}

    def topic(self, name: str, partition: int = 0) -> Topic:
        """Returns the topic if it has this partition.

        Raises:
            KafkaFailed: The topic or the partition does not exist.
        """
        topic = self.topics.get(name)
        if topic is None or not 0 <= partition < len(topic.logs):
            raise KafkaFailed(
                f"Topic {name} can't be read: partition {partition} is missing.",
                action="Create the topic, or correct its name.",
                topic=name,
            )
        return topic

    def log(self, partition: Partition) -> PartitionLog:
        """Returns the log of a partition; raises KafkaFailed if it does not exist."""
        return self.topic(*partition).logs[partition.number]

    def passes(
        self,
        process: Process,
        holds: Callable[[], bool],
        timeout_s: float,
        *,
        every_s: float = 0.05,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Lets virtual time pass until the function ``holds`` returns True.

        Returns False if ``holds`` is still False at the timeout.
        """
        deadline = self.clock.monotonic() + timeout_s
        while not holds():
            if self.clock.monotonic() >= deadline:
                return False
            process.sleep(every_s)
            meanwhile()
        return True

    def facts(self, name: str) -> TopicFacts | None:
        """Returns the id, partitions and configuration of a topic; None if the topic does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            return None
        config = {"message.timestamp.after.max.ms": str(AFTER_MAX_MS), **topic.config}
        return TopicFacts(name, topic.topic_id, len(topic.logs), 1, config)

    def partitions_of(self, name: str) -> Sequence[Partition]:
        """All partitions of a topic; empty if the topic does not exist."""
        topic = self.topics.get(name)
        return [] if topic is None else [Partition(name, number) for number in range(len(topic.logs))]

    def group(self, name: str) -> Group:
        """Returns a group; the first call with a name creates the group."""
        if name not in self.groups:
            self.groups[name] = Group(self.clock, self.network, self.partitions_of, lambda: self.assignor)
        return self.groups[name]

    def has_open(self, place: Partition, producer_id: int) -> bool:
        """Whether a producer has an open transaction on this partition of a topic, or of the internal offsets topic."""
        if place.topic == OFFSETS_TOPIC:
            return any(producer_id in group.pending for group in self._groups_at(place.number))
        return self.log(place).has_open(producer_id)

    def end_open(self, place: Partition, producer_id: int, *, commit: bool) -> None:
        """Writes the marker that ends an open transaction on this partition.

        The partition may also belong to Kafka's internal offsets topic.
        """
        if place.topic == OFFSETS_TOPIC:
            for group in self._groups_at(place.number):
                group.settle(producer_id, group.pending.get(producer_id, {}), commit)
        elif self.has_open(place, producer_id):
            self._write_marker(place, producer_id, commit)

    def group_ends(self, *, committed: bool) -> dict[int, int]:
        """Returns a simulated end offset for each partition of the internal offsets topic.

        Without ``committed``, it is always 1. With ``committed``, it is the last stable offset: 0 while a group of the
        partition has offsets in an open transaction, otherwise 1.
        """
        numbers = range(OFFSETS_PARTITIONS)
        return {
            each: int(not (committed and any(group.pending for group in self._groups_at(each)))) for each in numbers
        }

    def _groups_at(self, number: int) -> list[Group]:
        return [self.groups[name] for name in self.groups if offsets_partition(name, OFFSETS_PARTITIONS) == number]

    def append(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        producer: int | None = None,
    ) -> int:
        """Appends a record and returns its offset."""
        stamp = timestamp_ms or int(self.clock.time() * 1000)
        return self.log(partition).append(key, value, stamp, headers, producer)

    def takes_time(self, topic: str, timestamp_ms: int) -> bool:
        """Whether the topic accepts a record with this timestamp; 0 means now.

        The limits are the defaults of Kafka 4, or the topic's configuration.
        """
        config = self.topics[topic].config if topic in self.topics else {}
        if not timestamp_ms or config.get("message.timestamp.type") == "LogAppendTime":
            return True
        ahead_ms = timestamp_ms - self.clock.time() * 1000
        after_ms = int(config.get("message.timestamp.after.max.ms", AFTER_MAX_MS))
        return -int(config.get("message.timestamp.before.max.ms", 2**63 - 1)) <= ahead_ms <= after_ms

    def partition_for(self, topic: str, key: bytes | None) -> Partition:
        """Returns the partition of a key, computed with murmur2 as in Java clients and Spark.

        A record without a key goes to the first partition.
        """
        count = len(self.topics[topic].logs) if topic in self.topics else 1
        return Partition(topic, 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % count)

    def _write_marker(self, partition: Partition, producer_id: int, commit: bool) -> None:
        topic = self.topics.get(partition.topic)
        # The transaction may have written to a topic that was then deleted, or created again with fewer partitions. No
        # marker is written then.
        if topic is not None and partition.number < len(topic.logs):
            stamp = int(self.clock.time() * 1000)
            self.log(partition).end_transaction(producer_id, commit=commit, timestamp_ms=stamp)

    def _settle_offsets(self, group: str, offsets: Mapping[Partition, int], producer_id: int, commit: bool) -> None:
        self.group(group).settle(producer_id, offsets, commit)
