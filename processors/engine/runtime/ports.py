"""What the engine needs of Kafka, as ports; ``infra.kafka.cluster`` implements them for a real cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Batch, GroupMetadata, GroupShares, Headers, Partition, TopicFacts, TopicSpec

OnPartitions = Callable[[list[Partition]], None]


class GroupMember(Protocol):
    """A member of the processor's consumer group; see ``infra.kafka.consumer.GroupConsumer``."""

    def subscribe(
        self, topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions, on_lost: OnPartitions
    ) -> None:
        """Join the group; callbacks run inside ``poll``."""
        ...

    def poll(self, records_max: int, timeout_s: float) -> list[Batch]:
        """Records, waiting at most ``timeout_s``."""
        ...

    @property
    def brokers_down_s(self) -> float:
        """Seconds without any broker."""
        ...

    def broker_answered(self) -> None:
        """A broker was heard from by other means."""
        ...

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """Committed offsets, pending transactions waited for."""
        ...

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Stop fetching."""
        ...

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Fetch."""
        ...

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on from an offset; the first read of an assigned partition needs one."""
        ...

    def high_watermark(self, partition: Partition) -> int | None:
        """The end as of the last fetch."""
        ...

    def group_metadata(self) -> GroupMetadata:
        """Identity and generation, as of now; raises MembershipLost when there is none."""
        ...

    @property
    def member_id(self) -> str | None:
        """What the group knows this member by; None before it has joined."""
        ...

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit."""
        ...

    def close(self) -> None:
        """Release."""
        ...


class ChangelogReplayer(Protocol):
    """Reads changelogs under read_committed; see ``infra.kafka.replay.ChangelogConsumer``."""

    def assign(self, starts: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets."""
        ...

    def drop(self, partitions: Sequence[Partition]) -> None:
        """Read no more of these."""
        ...

    def poll(self, records_max: int, timeout_s: float) -> tuple[list[Batch], dict[Partition, int]]:
        """Records without timestamps and headers, waiting at most ``timeout_s``."""
        ...

    def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Next offsets, control records counted."""
        ...

    def close(self) -> None:
        """Release."""
        ...


class TransactionProducer(Protocol):
    """Sends outputs, changelogs and offsets; see ``infra.kafka.producer.EngineProducer``."""

    on_wait: Callable[[], None]

    def init(self, timeout_s: float) -> None:
        """Fence and end what a former holder left open."""
        ...

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Headers = None,
        on_delivered: Callable[[int], None] | None = None,
    ) -> None:
        """Queue one record; ``on_delivered`` is told its offset, in a transaction."""
        ...

    def produce_all(
        self,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        *,
        partition: int = -1,
        timestamps: Sequence[int] | None = None,
        headers: Mapping[int, Headers] | None = None,
    ) -> None:
        """Queue many records, in order; headers by index, of those that have any."""
        ...

    def poll(self) -> None:
        """Serve delivery reports."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait for acknowledgements."""
        ...

    def send_offsets(self, offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
        """Make offsets part of the transaction."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def abort(self) -> None:
        """Abort the transaction."""
        ...

    def close(self) -> None:
        """Release."""
        ...


class TopicView(Protocol):
    """Facts about topics, and their creation; see ``infra.kafka.topics.Topics``."""

    def ping(self) -> int:
        """The number of brokers."""
        ...

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """Facts of topics that exist."""
        ...

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic; False when it was there."""
        ...

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set config entries."""
        ...

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """Last stable offsets or high watermarks."""
        ...

    def start_offsets(self, topic: str) -> dict[int, int]:
        """First offsets still there."""
        ...

    def group_shares(self, group: str) -> GroupShares | None:
        """Who has which partitions; None while that is not settled."""
        ...


class Cluster(Protocol):
    """Makes clients; see ``infra.kafka.cluster.KafkaCluster``."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers."""
        ...

    @property
    def clock(self) -> Clock:
        """The time that timeouts are measured in."""
        ...

    def topics(self, timeout_s: float = 20.0) -> TopicView:
        """The administrative view."""
        ...

    def group_consumer(self, group: str) -> GroupMember:
        """A new group member."""
        ...

    def changelog_consumer(self) -> ChangelogReplayer:
        """A new restorer."""
        ...

    @property
    def record_bytes_max(self) -> int | None:
        """The largest record that the producer was allowed by its settings; None where nobody chose."""
        ...

    def producer(self, transactional_id: str | None, batch_bytes_max: int = ...) -> TransactionProducer:
        """A new producer; no batch of its has more bytes than ``batch_bytes_max``."""
        ...
