"""Data classes that the Kafka modules and the engine exchange: partitions, records, batches, topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

#: Headers of a record: a list of (name, value); None if the record has no headers.
Headers = list[tuple[str, bytes | None]] | None
#: librdkafka setting -> value; values may be secrets.
ClientConfig = Mapping[str, str | int | float | bool]
#: Partition -> distinct keys of its newest records; partitions that were not read are left out.
KeysOf = Mapping[int, frozenset[bytes]]


class Partition(NamedTuple):
    """A partition: the name of its topic, and its number."""

    topic: str
    number: int


class NotedOffset(int):
    """A group's next offset with its metadata (note), a text that Kafka stores with the committed offset.

    Only members of the group read the note. If a tool such as ``kafka-consumer-groups.sh`` sets the offset, the note is
    lost.
    """

    note: str

    def __new__(cls, offset: int, note: str) -> Self:
        """``note`` should have at most about 2,000 characters.

        A cluster refuses a note that is longer than its ``offset.metadata.max.bytes``.
        """
        made = super().__new__(cls, offset)
        made.note = note
        return made


@dataclass(slots=True)
class Batch:
    """Consecutive records of one partition, as parallel lists: ``keys[i]``, ``values[i]``, … belong to one record.

    Offsets are ascending; timestamps are milliseconds since 1970.
    """

    partition: Partition
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    headers: Sequence[Headers] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """One Kafka record; ``timestamp_ms`` is milliseconds since 1970 UTC."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_ms: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The required properties of a topic.

    ``None`` means the cluster's default, or the value of the topic from which this topic is derived.
    """

    name: str
    partitions: int | None = None
    replication: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The actual properties of a topic. A topic that is deleted and created again gets a new ``topic_id``."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupShares:
    """The assignment of a consumer group: member id -> assigned partitions, and the name of the assignor."""

    assignor: str
    members: Mapping[str, frozenset[Partition]]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of a transactional id at its transaction coordinator.

    ``state`` is the state of the last transaction. ``ending`` means that the coordinator is writing the markers.
    ``none`` means that there was no transaction since the producer was initialised.
    """

    producer_id: int
    epoch: int
    state: Literal["open", "ending", "committed", "aborted", "none"]


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """A transaction that is open on a partition although its coordinator reports that it has ended."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    #: Offset of the transaction's first record in the partition.
    start_offset: int
    transactional_id: str
    #: Whether the transaction was committed; False if it was aborted.
    committed: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A live member of a consumer group, as the group's coordinator reports it."""

    member_id: str
    client_id: str
    #: Host name or address of the member, as the coordinator sees it.
    host: str

    def __str__(self) -> str:
        """Host and client id of the member, for use in texts."""
        return f"host {self.host}, client id {self.client_id}"


#: Stands between a worker's transactional id and its address, in the client id of a worker that other machines can ask.
#: It begins with the dash that follows each client id in a member id, so that members keep their order.
ADDRESS = "-@"


def worker_of(client_id: str) -> str:
    """The transactional id of the worker with this client id, which may also contain the worker's address."""
    return client_id.partition(ADDRESS)[0]


#: Prefix of every transactional id of a worker. If the worker loads state from the warehouse with this id, the id also
#: has the suffix.
WORKERS_PREFIX, LOADS_SUFFIX = "holdfast-", "-load"
#: Serialised group metadata of confluent_kafka; only ``infra.kafka.clients.consumer`` decodes it.
GroupMetadata = Any
