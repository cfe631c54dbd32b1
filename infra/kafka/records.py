"""Values that Kafka's adapters and the engine exchange: partitions, records, batches, topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

#: Headers of a record: pairs of a name and bytes or None; or no headers at all.
Headers = list[tuple[str, bytes | None]] | None
#: Settings of the client library by name; they may hold secrets.
ClientConfig = Mapping[str, str | int | float | bool]
#: Partition -> distinct keys of its newest records; a partition that was not read is absent.
KeysOf = Mapping[int, frozenset[bytes]]


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


class NotedOffset(int):
    """A next offset of a group, with its metadata: a text that Kafka stores until the next commit.

    Only members of the group read notes. A tool that sets the offset deletes the note.
    """

    note: str

    def __new__(cls, offset: int, note: str) -> Self:
        """``note`` has at most some 2,000 characters; a cluster refuses those above ``offset.metadata.max.bytes``."""
        made = super().__new__(cls, offset)
        made.note = note
        return made


@dataclass(slots=True)
class Batch:
    """Consecutive records of one partition, as parallel lists of one length (offsets ascending)."""

    partition: Partition
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    headers: Sequence[Headers] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Record:
    """One record; ``timestamp_ms`` is milliseconds since 1970 UTC."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_ms: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as required; None leaves the number to the cluster, or to the topic from which this topic is derived."""

    name: str
    partitions: int | None = None
    replication: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster describes it; a topic that is deleted and created again gets another ``topic_id``."""

    name: str
    topic_id: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupShares:
    """The partitions of each member of a consumer group, by member id, and the assignor that assigned them."""

    assignor: str
    members: Mapping[str, frozenset[Partition]]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The transaction coordinator's state of a transactional id.

    ``state`` is the state of the id's last transaction; ``ending``: the coordinator is writing the markers; ``none``:
    the id has had no transaction since its producer was initialised.
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
    #: Offset of its first record in the partition.
    start_offset: int
    transactional_id: str
    #: How it ended: with a commit, or without one.
    committed: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A live member of a consumer group, as its coordinator knows it."""

    member_id: str
    client_id: str
    #: Host name or address from which the coordinator sees the member.
    host: str

    def __str__(self) -> str:
        """The host and the client id, for texts."""
        return f"host {self.host}, client id {self.client_id}"


#: Prefix of the transactional ids of workers; loads from the warehouse have this prefix and this suffix.
WORKERS_PREFIX, LOADS_SUFFIX = "holdfast-", "-load"
#: Group metadata of the client library; only ``infra.kafka.consumer`` reads inside.
GroupMetadata = Any
