"""The interfaces through which the engine uses Kafka.

The package ``infra.kafka`` implements them, and tests replace them.
"""

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
    """A member of the processor's consumer group; ``infra.kafka.clients.consumer.GroupConsumer`` implements it."""

    def subscribe(
        self, topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions, on_lost: OnPartitions
    ) -> None:
        """Join the group; the rebalance callbacks run inside ``poll``."""

    def poll(self, records_max: int, timeout_s: float) -> list[Batch]:
        """Return at most ``records_max`` records after at most ``timeout_s`` seconds; rebalance callbacks run here."""

    @property
    def brokers_down_s(self) -> float:
        """Seconds since the last contact with any broker; 0 while a broker is reachable."""

    def broker_answered(self) -> None:
        """Reset ``brokers_down_s``, because a broker answered another client of this worker."""

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """Returns the group's committed offsets; None for a partition without a committed offset.

        Waits until no open transaction has pending offsets. If an offset was committed with metadata, it is a
        ``NotedOffset``.
        """

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Stop fetching these partitions; they stay assigned to this member."""

    def resume(self, partitions: Sequence[Partition]) -> None:
        """Fetch paused partitions again."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue reading at this offset. After an assignment, a partition is not read before its first seek."""

    def high_watermark(self, partition: Partition) -> int | None:
        """Returns the partition's high watermark at the last fetch; None before the first fetch.

        A paused partition is not fetched, so its value may be out of date.
        """

    def is_ended(self, partition: Partition) -> bool:
        """Whether ``poll`` has returned all records up to the high watermark of the last fetch.

        False while an open transaction blocks the partition. False until the first fetch after the partition's last
        pause, resume, seek or assignment.
        """

    def without_records(self, partition: Partition, position: int) -> int | None:
        """Returns the partition's end offset if only transaction markers and aborted records follow ``position``.

        Otherwise returns None. Also returns None if ``poll`` has returned records at or after ``position``.
        """

    def group_metadata(self) -> GroupMetadata:
        """Returns the current member id and generation. Raises MembershipLost if this consumer is not a member now."""

    @property
    def member_id(self) -> str | None:
        """The member's id in the group; None before it has joined."""

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the next offsets without a transaction, and wait for Kafka's answer."""

    def close(self) -> None:
        """Leave the group; the revoke callback runs during this call."""


class ChangelogReplayer(Protocol):
    """A consumer without a group that reads changelogs; ``restore_consumer.ChangelogConsumer`` implements it.

    It reads with read_committed.
    """

    def assign(self, starts: Mapping[Partition, int], timed: Collection[str] = ()) -> None:
        """Read these partitions from these offsets; records of the topics in ``timed`` include their timestamps."""

    def drop(self, partitions: Sequence[Partition]) -> None:
        """Stop reading these partitions."""

    def poll(self, records_max: int, timeout_s: float) -> tuple[list[Batch], dict[Partition, int]]:
        """Return records without headers, and the end offsets of those partitions that are now read to their ends.

        Waits at most ``timeout_s`` seconds.
        """

    def positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Maps each partition to the next offset to read, which may be the offset of a transaction marker.

        Only partitions that were read since the last ``assign`` are included.
        """

    def close(self) -> None:
        """Close the connection."""


class TransactionProducer(Protocol):
    """A producer for outputs, changelogs and offsets, with or without transactions.

    ``infra.kafka.clients.producer.EngineProducer`` implements it.
    """

    on_wait: Callable[[], None]
    #: Counts events after which transaction markers may be missing: the loss of a broker, and a request that may have
    #: been sent twice.
    doubts: int

    def init(self, timeout_s: float) -> None:
        """Fence an earlier producer with this transactional id, and abort the transaction that it left open."""

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
        """Queue one record.

        In a transaction, ``on_delivered`` is called with the record's offset after its delivery.
        """

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
        """Queue records, in order. ``headers`` maps the index of a record to the record's headers."""

    def poll(self) -> None:
        """Run the callbacks of delivered records. If Kafka refused a record, the next ``flush`` raises the error."""

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has acknowledged all queued records."""

    def send_offsets(self, offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
        """Add the group's next offsets to the transaction. An offset may have metadata (``NotedOffset``)."""

    def commit(self) -> None:
        """Commit the open transaction, and wait for the answer."""

    def abort(self) -> None:
        """Abort the open transaction, and discard the queued records."""

    def close(self) -> None:
        """Close the connection without waiting for queued records."""


class TopicView(TopicWorld, Protocol):
    """Reads facts about topics and groups from Kafka; ``infra.kafka.topics.topics.Topics`` implements it."""

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """Maps each partition to its last stable offset if ``committed`` is True, otherwise to its high watermark."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Maps each partition to its log start offset."""

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Maps each partition to its first offset at or after a time (ms since 1970), or to its high watermark."""

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Delete the records below these offsets."""

    def members(self, group: str) -> int:
        """The number of members of a group."""

    def group_members(self, group: str) -> tuple[Member, ...]:
        """Returns the current members of a group, with client id and host."""

    def group_shares(self, group: str) -> GroupShares | None:
        """Returns the members of a group, each with its assigned partitions; None during a rebalance."""

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        """Maps each partition to the offset that a group has committed."""


class TransactionView(Protocol):
    """Reads and ends transactions of other producers. ``infra.kafka.inspection.inspection.Inspector`` implements it.

    Use it in a ``with`` block.
    """

    def __enter__(self) -> TransactionView:
        """Return this object."""

    def __exit__(self, *_: object) -> None:
        """Close the connection."""

    def producer_state(self, transactional_id: str) -> ProducerState | None:
        """Returns what the transaction coordinator knows of a transactional id; None if it does not know the id."""

    def open_of(self, producer_id: int, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """Returns those of ``partitions`` on which the producer with this id has an open transaction."""

    def end(self, partition: Partition, producer_id: int, *, commit: bool) -> None:
        """Write this producer id's transaction marker to a partition, if the coordinator has not written it."""

    def left_open(self, partitions: Iterable[Partition]) -> tuple[LeftOpen, ...]:
        """Returns transactions that their coordinator has ended, but whose markers are missing on these partitions.

        Transactions of all producers are included.
        """

    def end_left(self, left: LeftOpen) -> bool:
        """Write the missing marker of a transaction from ``left_open``.

        Returns False if the transaction is no longer open.
        """


class Cluster(Protocol):
    """Creates Kafka clients; ``infra.kafka.cluster.KafkaCluster`` implements it."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers, in the form of Kafka's setting ``bootstrap.servers``."""

    @property
    def clock(self) -> Clock:
        """The clock for all timeouts; tests replace it by simulated time."""

    @property
    def session_s(self) -> float:
        """Seconds without a heartbeat after which a consumer group removes a member of this cluster's clients."""

    def be_reached_at(self, address: str) -> None:
        """Sets the end of the client ids of later group members: ``ADDRESS``, and the worker's host and port."""

    def topics(self, timeout_s: float = 20.0) -> TopicView:
        """A client for facts about topics and groups; ``timeout_s`` is the timeout of each request."""

    def transactions(self, timeout_s: float) -> TransactionView:
        """A new client for facts about transactions; ``timeout_s`` is the timeout of each request."""

    def rest(self, seconds: float) -> None:
        """Sleep for this time; in tests, advance the simulated time."""

    def group_consumer(self, group: str, client_id: str) -> GroupMember:
        """Returns a new, unsubscribed member of a group. A ``client.id`` in the settings overrides ``client_id``."""

    def changelog_consumer(self) -> ChangelogReplayer:
        """A new consumer that reads changelogs with read_committed."""

    @property
    def record_bytes_max(self) -> int | None:
        """The maximum bytes of a record, from the producer's settings; None if the settings have no maximum."""

    def producer(self, transactional_id: str | None, batch_bytes_max: int = ...) -> TransactionProducer:
        """Returns a new producer; its batches have at most ``batch_bytes_max`` bytes.

        Transactional unless the id is None.
        """
