"""The ports of the engine to Kafka: member, replayer, producer, topics; ``infra.kafka.cluster`` implements them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import (
    Batch,
    GroupMetadata,
    GroupShares,
    Headers,
    LeftOpen,
    Member,
    Partition,
    ProducerState,
)
from holdfast.processors.engine.provisioning import TopicWorld

OnPartitions = Callable[[list[Partition]], None]


class GroupMember(Protocol):
    """A member of the processor's consumer group; ``infra.kafka.consumer.GroupConsumer`` implements it."""

    def subscribe(
        self, topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions, on_lost: OnPartitions
    ) -> None:
        """Join the group; callbacks run inside ``poll``."""

    def poll(self, records_max: int, timeout_s: float) -> list[Batch]:
        """At most ``records_max`` records, after at most ``timeout_s`` seconds; rebalance callbacks run here."""

    @property
    def brokers_down_s(self) -> float:
        """Seconds since the last contact with any broker; 0 while one is reachable."""

    def broker_answered(self) -> None:
        """Record that a broker answered another client."""

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """The group's offsets, None for a partition without one; answered when no transaction has pending offsets.

        One that was sent with a note is a ``NotedOffset``.
        """

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Stop fetching these partitions; the member keeps them."""

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Fetch paused partitions again."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Read from this offset; an assigned partition is not read before its first seek."""

    def high_watermark(self, partition: Partition) -> int | None:
        """The partition's end at the last fetch, which may be older than a pause; None before the first."""

    def is_ended(self, partition: Partition) -> bool:
        """Whether ``poll`` has returned all records up to the end at the last fetch; an open transaction is no end.

        False until the first fetch after the partition's last pause, resume, seek or assignment.
        """

    def without_records(self, partition: Partition, position: int) -> int | None:
        """The end of a partition if no readable record lies between a position and that end; None otherwise.

        Only transaction markers and aborted records are between them. None also if ``poll`` has returned records at or
        after the position.
        """

    def group_metadata(self) -> GroupMetadata:
        """Member id and generation now; raises MembershipLost without a membership."""

    @property
    def member_id(self) -> str | None:
        """The member's id in the group; None before it has joined."""

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit next offsets outside of transactions, and wait for the answer."""

    def close(self) -> None:
        """Leave the group; the revoke callback runs."""


class ChangelogReplayer(Protocol):
    """Reads changelogs with read_committed; ``infra.kafka.replay.ChangelogConsumer`` implements it."""

    def assign(self, starts: Mapping[Partition, int], timed: Collection[str] = ()) -> None:
        """Read these partitions from these offsets; topics in ``timed`` also with the records' timestamps."""

    def drop(self, partitions: Sequence[Partition]) -> None:
        """Stop reading these partitions."""

    def poll(self, records_max: int, timeout_s: float) -> tuple[list[Batch], dict[Partition, int]]:
        """Records without headers, and ends of partitions; waits at most ``timeout_s`` seconds."""

    def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The next offsets to read in this assignment, including control records.

        No offsets of an earlier assignment.
        """

    def close(self) -> None:
        """Close the connection."""


class TransactionProducer(Protocol):
    """Sends outputs, changelogs and offsets; ``infra.kafka.producer.EngineProducer`` implements it."""

    on_wait: Callable[[], None]
    #: How often a broker was lost, or a request may have been sent twice: markers may then be missing.
    doubts: int

    def init(self, timeout_s: float) -> None:
        """Fence an earlier holder of the transactional id, and abort the transaction that it left open."""

    def begin(self) -> None:
        """Open a transaction."""

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
        """Queue one record; in a transaction ``on_delivered`` gets its offset."""

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
        """Queue records in order; ``headers`` has the headers of some records, by index."""

    def poll(self) -> None:
        """Run the callbacks of delivered records; ``flush`` raises the error of a refused one."""

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has acknowledged all queued records."""

    def send_offsets(self, offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
        """Add the group's next offsets to the transaction; an offset may have a note (``NotedOffset``)."""

    def commit(self) -> None:
        """Commit the open transaction, and wait for the answer."""

    def abort(self) -> None:
        """End the open transaction without a commit; queued records are purged."""

    def close(self) -> None:
        """Close the connection without waiting for queued records."""


class TopicView(TopicWorld, Protocol):
    """Facts about topics and groups; ``infra.kafka.topics.Topics`` implements it."""

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """By partition, the last stable offsets (``committed``) or the high watermarks."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """By partition, the first offset that the topic still has."""

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """By partition, the first offset at or after this time (ms since 1970), else the high watermark."""

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Delete the records below these offsets."""

    def members(self, group: str) -> int:
        """The number of members of a group."""

    def group_members(self, group: str) -> tuple[Member, ...]:
        """The live members, with client id and host."""

    def group_shares(self, group: str) -> GroupShares | None:
        """The members of a group and their partitions; None during a rebalance."""

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        """The offsets that a group has committed."""


class TransactionView(Protocol):
    """Facts about transactions; ``infra.kafka.inspection.Inspector`` implements it. Use it in a ``with`` block."""

    def __enter__(self) -> TransactionView:
        """The view itself."""

    def __exit__(self, *_: object) -> None:
        """Close the connection."""

    def producer_state(self, transactional_id: str) -> ProducerState | None:
        """The coordinator's state of a transactional id; None when the coordinator does not know the id."""

    def open_of(self, producer_id: int, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """The subset of the partitions on which this producer has an open transaction."""

    def end(self, partition: Partition, producer_id: int, *, commit: bool) -> None:
        """Write the marker that a coordinator left out."""

    def left_open(self, partitions: Iterable[Partition]) -> tuple[LeftOpen, ...]:
        """The ended transactions of any producer that are still open on these partitions."""

    def end_left(self, left: LeftOpen) -> bool:
        """Write the marker of one of these transactions; False when it is no longer open."""


class Cluster(Protocol):
    """Creates clients; ``infra.kafka.cluster.KafkaCluster`` implements it."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers."""

    @property
    def clock(self) -> Clock:
        """The clock of all timeouts; simulated in simulations."""

    def topics(self, timeout_s: float = 20.0) -> TopicView:
        """The view of topics and groups; ``timeout_s`` limits each of its requests."""

    def transactions(self, timeout_s: float) -> TransactionView:
        """A new view of transactions; ``timeout_s`` limits each of its requests."""

    def rest(self, seconds: float) -> None:
        """Let time pass."""

    def group_consumer(self, group: str, client_id: str) -> GroupMember:
        """A new member of a group, not subscribed yet; a ``client.id`` in the settings overrides ``client_id``."""

    def changelog_consumer(self) -> ChangelogReplayer:
        """A new consumer that reads changelogs with read_committed."""

    @property
    def record_bytes_max(self) -> int | None:
        """Maximum bytes of a record from the producer's settings; None when they do not set it."""

    def producer(self, transactional_id: str | None, batch_bytes_max: int = ...) -> TransactionProducer:
        """A new producer; None as id: not transactional. Its batches have at most ``batch_bytes_max`` bytes."""
