"""A cluster under a contract test, and helpers that use it through its ports only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.kafka.records import Batch, Partition, Record, TopicSpec
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster, GroupMember, TransactionProducer

#: Timeout for each wait, in seconds of the cluster's clock.
PATIENCE_S = 120.0
POLL_S = 0.05
RECORDS_MAX = 1000


@dataclass
class Reader:
    """A group member that records the calls of its callbacks and the records that it has read."""

    member: GroupMember
    told: list[tuple[str, tuple[Partition, ...]]] = field(default_factory=list)
    read: list[tuple[Partition, Record]] = field(default_factory=list)
    owned: set[Partition] = field(default_factory=set)

    def subscribe(self, *topics: str) -> Reader:
        self.member.subscribe(topics, self._on_assign, self._on_revoke, self._on_lost)
        return self

    def poll(self) -> list[Batch]:
        batches = self.member.poll(RECORDS_MAX, POLL_S)
        self.read += [(batch.partition, record) for batch in batches for record in records_of(batch)]
        return batches

    def flow_from(self, partition: Partition, offset: int) -> None:
        self.member.seek(partition, offset)
        self.member.resume([partition])

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, record in self.read]

    def times(self, what: str) -> int:
        return sum(1 for told, _ in self.told if told == what)

    def _on_assign(self, partitions: list[Partition]) -> None:
        self.told.append(("assign", tuple(sorted(partitions))))
        self.owned.update(partitions)

    def _on_revoke(self, partitions: list[Partition]) -> None:
        self.told.append(("revoke", tuple(sorted(partitions))))
        self.owned.difference_update(partitions)

    def _on_lost(self, partitions: list[Partition]) -> None:
        self.told.append(("lost", tuple(sorted(partitions))))
        self.owned.difference_update(partitions)


@dataclass
class Bench:
    """A cluster and the helpers of the tests; `close` closes all clients that the helpers created."""

    cluster: Cluster
    name: Callable[[str], str]
    sleep: Callable[[float], None]
    delete_topic: Callable[[str], None]
    _made: list[Any] = field(default_factory=list)

    def topic(self, partitions: int = 1, **config: str) -> str:
        name, topics = self.name("contract"), self.cluster.topics()
        assert topics.create(TopicSpec(name, partitions, 1, config))
        self.wait_for(lambda: name in topics.describe([name]), "the topic's facts")
        return name

    def producer(self, transactional_id: str | None = None) -> TransactionProducer:
        """An initialized producer. With an id, it is transactional."""
        made = self.cluster.producer(transactional_id)
        self._made.append(made)
        made.init(PATIENCE_S)
        return made

    def reader(self, group: str) -> Reader:
        made = Reader(self.cluster.group_consumer(group, "client"))
        self._made.append(made.member)
        return made

    def joined(self, group: str, topic: str, partitions: int = 1) -> Reader:
        """A group member that owns all partitions of a topic."""
        reader = self.reader(group).subscribe(topic)
        wanted = {Partition(topic, number) for number in range(partitions)}
        self.wait_for(lambda: reader.poll() or reader.owned == wanted, "the first assignment")
        return reader

    def read(self, partition: Partition, count: int) -> list[Record]:
        """The first ``count`` records, read with timestamps and headers; `replay` returns neither."""
        reader = self.joined(self.name("reading"), partition.topic)
        reader.flow_from(partition, 0)
        self.wait_for(lambda: reader.poll() or len(reader.read) >= count, f"{count} records of {partition}")
        return [record for _, record in reader.read]

    def replayer(self) -> ChangelogReplayer:
        made = self.cluster.changelog_consumer()
        self._made.append(made)
        return made

    def replay(self, partition: Partition, start: int = 0) -> tuple[list[Record], int, int | None]:
        """Committed records from ``start`` on, the offset of the end, and the replayer's position at the end."""
        replayer = self.replayer()
        replayer.assign({partition: start})
        records: list[Record] = []
        ends: dict[Partition, int] = {}

        def met() -> bool:
            batches, found = replayer.poll(RECORDS_MAX, POLL_S)
            records.extend(record for batch in batches for record in records_of(batch))
            ends.update(found)
            return partition in ends

        self.wait_for(met, f"the end of {partition}")
        return records, ends[partition], replayer.positions([partition]).get(partition)

    def ends(self, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """The last stable offset and the high watermark of each partition of a topic."""
        topics = self.cluster.topics()
        return topics.end_offsets(topic, committed=True), topics.end_offsets(topic, committed=False)

    def wait_settled(self, topic: str, ends: dict[int, int]) -> None:
        """Wait until all commit markers are written: last stable offsets and high watermarks both equal ``ends``."""
        self.wait_for(lambda: self.ends(topic) == (ends, ends), f"{topic} to end at {ends}")

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        clock = self.cluster.clock
        deadline = clock.monotonic() + PATIENCE_S
        while not condition():
            assert clock.monotonic() < deadline, f"waited {PATIENCE_S:g} s for: {what}"
            self.sleep(POLL_S)

    def close(self) -> None:
        for each in reversed(self._made):
            each.close()


def records_of(batch: Batch) -> list[Record]:
    count = len(batch.offsets)
    # a batch of a changelog replay has neither timestamps nor headers
    timestamps, headers = batch.timestamps or [0] * count, batch.headers or [None] * count
    return [Record(*each) for each in zip(batch.keys, batch.values, batch.offsets, timestamps, headers, strict=True)]


def send(producer: TransactionProducer, partition: Partition, values: Sequence[bytes | None]) -> None:
    """Send records without keys and wait until they are acknowledged."""
    for value in values:
        producer.produce(partition.topic, value, None, partition=partition.number)
    producer.flush(PATIENCE_S)
