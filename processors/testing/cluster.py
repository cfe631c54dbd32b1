"""A Kafka cluster in memory, for tests of processors without a broker, and for simulations of the engine.

    cluster = InMemoryCluster()
    cluster.create_topic("orders", partitions=2)
    cluster.produce("orders", b'{"amount": 3}', b"alice")
    cluster.run(application)
    cluster.read("totals")

Transactions, control records, last stable offsets, compaction, groups, generations and fencing work as in Kafka. Time
is virtual. The application runs on the same engine as in production.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.infra.kafka.clients.producer import BATCH_BYTES_MAX
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.records import (
    GroupShares,
    Headers,
    KeysOf,
    LeftOpen,
    Member,
    Partition,
    ProducerState,
    Record,
    TopicFacts,
    TopicSpec,
)
from holdfast.infra.kafka.topics.newest_keys import RECORDS_EACH
from holdfast.infra.settings import CheckpointSettings, Settings, load_settings
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.joins.source_rows import rows_of
from holdfast.processors.engine.runtime.ownership.unfinished import OFFSETS_TOPIC
from holdfast.processors.engine.runtime.ports import TopicView, TransactionView
from holdfast.processors.engine.topology import SourceLog
from holdfast.processors.testing.broker import Broker
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.consumers import InMemoryMember, InMemoryReplayer
from holdfast.processors.testing.groups import SESSION_TIMEOUT_S, Assignor
from holdfast.processors.testing.network import Network
from holdfast.processors.testing.process import InlineProcess, Process
from holdfast.processors.testing.producer import InMemoryProducer

if TYPE_CHECKING:
    from holdfast.processors.application.application import Application
    from holdfast.processors.engine.state.databases.database import Databases

#: By default, ``run`` ends after this many virtual seconds without a message.
QUIET_S = 3.0


def _as_stored(headers: Sequence[tuple[str | bytes, bytes | None]] | None) -> Headers:
    """Converts header names to text. Bytes that are not UTF-8 become surrogates, which valid text cannot contain."""
    if headers is None:
        return None
    return [
        (name if isinstance(name, str) else name.decode(errors="surrogateescape"), value) for name, value in headers
    ]


class ClusterView:
    """The connection of one process to the cluster. It implements ``runtime.ports.Cluster``."""

    bootstrap, session_s = "in-memory", SESSION_TIMEOUT_S

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker, self._process, self.clock, self._address = broker, process, broker.clock, ""
        #: The application's ``message.max.bytes``; None means that the client library's default limits records.
        self.record_bytes_max: int | None = None

    def topics(self, timeout_s: float = 20.0) -> InMemoryTopics:
        return InMemoryTopics(self._broker, self._process, timeout_s)

    def transactions(self, timeout_s: float) -> InMemoryTransactions:
        return InMemoryTransactions(self.topics(timeout_s), self._broker)

    def rest(self, seconds: float) -> None:
        self._process.sleep(seconds)

    def be_reached_at(self, address: str) -> None:
        self._address = address

    def group_consumer(self, group: str, client_id: str) -> InMemoryMember:
        return InMemoryMember(self._broker, self._process, group, client_id + self._address)

    def changelog_consumer(self) -> InMemoryReplayer:
        return InMemoryReplayer(self._broker, self._process)

    def producer(self, transactional_id: str | None, batch_bytes_max: int = BATCH_BYTES_MAX) -> InMemoryProducer:
        """Returns a new producer. ``batch_bytes_max`` has no effect in memory."""
        return InMemoryProducer(self._broker, self._process, transactional_id)


class InMemoryTopics(TopicView):
    """The admin client. Its requests raise BrokerUnreachable after ``timeout_s`` virtual seconds without a broker."""

    def __init__(self, broker: Broker, process: Process, timeout_s: float) -> None:
        self._broker = broker
        self._process = process
        self._timeout_s = timeout_s

    def ping(self) -> int:
        self.answers("ping")
        return 1

    def names(self) -> Sequence[str]:
        self.answers("names")
        return sorted(self._broker.topics)

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        self.answers("describe")
        facts = {name: self._broker.facts(name) for name in names}
        return {name: known for name, known in facts.items() if known is not None}

    def create(self, spec: TopicSpec) -> bool:
        self.answers("create")
        return self._broker.create(spec.name, spec.partitions or 1, spec.config)

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        self.answers("alter")
        self._broker.topic(name).config.update(config)

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        self.answers("end_offsets")
        if topic == OFFSETS_TOPIC:
            return self._broker.group_ends(committed=committed)
        logs = self._broker.topic(topic).logs
        return {number: log.last_stable if committed else log.end for number, log in enumerate(logs)}

    def start_offsets(self, topic: str) -> dict[int, int]:
        self.answers("start_offsets")
        return {number: log.start for number, log in enumerate(self._broker.topic(topic).logs)}

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        self.answers("offsets_at")
        return {number: log.offset_at(timestamp_ms) for number, log in enumerate(self._broker.topic(topic).logs)}

    def newest_keys(self, partitions: Mapping[str, int]) -> Mapping[str, KeysOf]:
        # This read changes no state, so it does not call ``answers``. In a simulation, such a call draws a random
        # number, and one more number would change the run that a recorded seed gives.
        logs = {name: self._broker.topic(name).logs[:count] for name, count in partitions.items()}
        return {
            name: {number: keys for number, log in enumerate(of) if (keys := log.newest_keys(RECORDS_EACH))}
            for name, of in logs.items()
        }

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        self.answers("delete_records")
        for place, offset in offsets.items():
            self._broker.topic(place.topic).logs[place.number].truncate(start=offset, end=None)

    def members(self, group: str) -> int:
        return len(self.group_members(group))

    def group_members(self, group: str) -> tuple[Member, ...]:
        self.answers("members")
        return tuple(
            Member(each.member_id, each.client_id, each.process.name) for each in self._broker.group(group).members
        )

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        self.answers("committed_offsets")
        return {place: int(offset) for place, offset in self._broker.group(group).committed.items()}

    def group_shares(self, group: str) -> GroupShares | None:
        self.answers("group_shares")
        return self._broker.group(group).told()

    def answers(self, request: str) -> None:
        """Waits until the brokers answer, or raises BrokerUnreachable after the timeout."""
        self._process.point(request)
        network = self._broker.network
        if not self._broker.passes(self._process, lambda: network.brokers_up, self._timeout_s, every_s=0.25):
            raise BrokerUnreachable(
                f"No answer from Kafka within {self._timeout_s:g} s.",
                action="Check that the broker runs and that address, security settings and network are right.",
            )


class InMemoryTransactions(TransactionView):
    """Lists and ends open transactions, by requests to the transaction coordinator and to the partitions."""

    def __init__(self, topics: InMemoryTopics, broker: Broker) -> None:
        self._topics = topics
        self._broker = broker

    def __enter__(self) -> InMemoryTransactions:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing, because there is no connection to close."""

    def producer_state(self, transactional_id: str) -> ProducerState | None:
        self._topics.answers("describe_transactions")
        return self._broker.transactions.producer_state(transactional_id)

    def open_of(self, producer_id: int, partitions: Iterable[Partition]) -> frozenset[Partition]:
        self._topics.answers("describe_producers")
        return frozenset(place for place in partitions if self._broker.has_open(place, producer_id))

    def end(self, partition: Partition, producer_id: int, *, commit: bool) -> None:
        self._topics.answers("write_markers")
        self._broker.end_open(partition, producer_id, commit=commit)

    def left_open(self, partitions: Iterable[Partition]) -> tuple[LeftOpen, ...]:
        self._topics.answers("list_transactions")
        return tuple(
            LeftOpen(place, known.producer_id, known.epoch, 0, known.transactional_id, bool(known.committed))
            for place in sorted(partitions)
            for known in self._broker.transactions.ended()
            if self._broker.has_open(place, known.producer_id)
        )

    def end_left(self, left: LeftOpen) -> bool:
        self._topics.answers("write_markers")
        known = [each for each in self._broker.transactions.ended() if each.producer_id == left.producer_id]
        still = bool(known) and self._broker.has_open(left.partition, left.producer_id)
        if still:
            self._broker.end_open(left.partition, left.producer_id, commit=left.committed)
        return still


class ForeignTransaction:
    """A transaction of another producer. While it is open, the last stable offset stays before its first record."""

    def __init__(self, broker: Broker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        given = broker.transactions.register(transactional_id)
        assert given is not None
        self._producer_id, self._epoch = given

    def send(self, partition: Partition, key: bytes | None, value: bytes | None) -> int:
        """Writes a record in the transaction and returns its offset."""
        self._broker.transactions.add_partition(self._id, self._epoch, partition)
        return self._broker.append(partition, key, value, 0, None, self._producer_id)

    def commit(self) -> None:
        """Commits the transaction, so that its records become readable."""
        self._broker.transactions.end(self._id, self._epoch, commit=True)

    def abort(self) -> None:
        """Aborts the transaction, so that its records are never read."""
        self._broker.transactions.end(self._id, self._epoch, commit=False)


class InMemoryCluster:
    """A Kafka cluster in memory, for tests of processors.

    Args:
        clock: The virtual clock; None creates a new clock.
        network: Decides whether requests succeed; None means a network without faults.
    """

    def __init__(self, *, clock: VirtualClock | None = None, network: Network | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.network = network or Network()
        self._broker = Broker(self.clock, self.network)
        self._foreign = 0

    @property
    def assignor(self) -> Assignor:
        """The assignment strategy of all groups: ``range``, ``roundrobin`` or ``cooperative-sticky``."""
        return self._broker.assignor

    @assignor.setter
    def assignor(self, value: Assignor) -> None:
        self._broker.assignor = value

    def connect(self, process: Process) -> ClusterView:
        """Returns the connection of a process, which ``Application.run_on`` takes as its cluster."""
        return ClusterView(self._broker, process)

    def run(
        self,
        application: Application,
        *,
        count: int = 0,
        quiet_s: float = QUIET_S,
        databases: Databases | None = None,
    ) -> None:
        """Runs an application until all messages are processed and committed.

        If the application has no ``state_dir``, local state is deleted at the end. The next run restores it from the
        changelogs.

        Args:
            application: The application to run.
            count: The run ends after this many messages; 0 means all messages.
            quiet_s: The run ends after this many virtual seconds without a message.
            databases: The databases of local state; None opens the databases of the application's ``state_backend``.

        Raises:
            HoldfastError: The error that stopped the application.
        """
        with self._process_for(application) as (view, settings):
            application.run_on(view, settings, count=count, timeout=quiet_s, databases=databases)

    def clear_state(self, application: Application, *, rewind: Literal["stay", "earliest"] = "stay") -> None:
        """Empties all stores of an application on this cluster, as ``Application.clear_state`` does."""
        with self._process_for(application) as (view, settings):
            application.clear_state_on(view, settings, rewind=rewind)

    @contextmanager
    def _process_for(self, application: Application) -> Iterator[tuple[ClusterView, Settings]]:
        """Yields the connection of a new process, and settings with a temporary home folder and no checkpoints."""
        process = InlineProcess(self.clock)
        if any(member.process.frozen for member in self._broker.group(application.consumer_group).members):
            process.sleep(SESSION_TIMEOUT_S + 2.0)  # A killed member keeps its partitions until its session times out.
        with tempfile.TemporaryDirectory() as home:
            settings = self._settings.model_copy(update={"home": Path(home)})
            application.configure_logging(settings)
            view = self.connect(process)
            most = application._producer_config.get("message.max.bytes")
            view.record_bytes_max = None if most is None else int(most)
            try:
                yield view, settings
            finally:
                process.frozen = True
                process.sleep(1.0)  # Wait until the coordinator has written the last transaction markers.

    @cached_property
    def _settings(self) -> Settings:
        return load_settings(checkpoints=CheckpointSettings(enabled=False))

    def state(self, application: Application, store: str) -> dict[tuple[bytes, str], Any]:
        """Reads a store's content from its committed changelog. The dict maps (message key, state key) to the value.

        For a table that is restored from its source topic, returns the rows of the records processed so far.
        """
        topology = application.topology()
        stores = sorted(spec.name for spec in topology.stores)
        if store not in stores:
            raise LookupError(f"application {application.consumer_group} has no store {store!r}; it has {stores}")
        found: dict[tuple[bytes, str], Any] = {}
        if (log := topology.source_log_of(store)) is not None:
            return self._rows(application.consumer_group, log)
        changelog = changelog_topic(application.consumer_group, store)
        for _, record in self.read(changelog) if changelog in self._broker.topics else []:
            if record.key is None or record.key == META_KEY:
                continue
            place = split_key(record.key)
            if record.value is None:
                found.pop(place, None)
            else:
                found[place] = decode_value(record.value)
        return found

    def _rows(self, group: str, log: SourceLog) -> dict[tuple[bytes, str], Any]:
        """Returns the rows of a table from those records of its topic that the group has processed."""
        read, found = self.committed_offsets(group), dict[tuple[bytes, str], Any]()
        for number, each in self.read(log.topic) if log.topic in self._broker.topics else []:
            if each.offset >= read.get(Partition(log.topic, number), 0):
                continue
            for key, stored in zip(*rows_of(log, [each.key], [each.value], [each.timestamp_ms]), strict=True):
                found.pop(split_key(key), None)
                if stored is not None:
                    found[split_key(key)] = decode_value(stored)
        return found

    # -- topics and records --------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Creates a topic. An existing topic stays unchanged."""
        self._broker.create(name, partitions, config or {})

    def add_partitions(self, name: str, partitions: int) -> None:
        """Adds partitions to a topic up to the number ``partitions``."""
        self._broker.widen(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and all offsets that groups committed for it."""
        self._broker.delete(name)

    def produce(  # tidy: allow-wide because a record has that many parts.
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Sequence[tuple[str | bytes, bytes | None]] | None = None,
    ) -> int:
        """Appends a record and returns its offset. With ``partition=-1``, the key decides the partition.

        Header names may be bytes. Names that are not UTF-8 can't be read, as with Kafka's client library.

        ``timestamp_ms`` is milliseconds since 1970; 0 means the present time of the clock.

        Raises:
            KafkaFailed: The value or the key is not bytes, or the topic does not accept the timestamp.
        """
        for name, part in (("value", value), ("key", key)):
            if part is not None and not isinstance(part, bytes):
                raise KafkaFailed(
                    f"`produce` got a {name} of type {type(part).__name__}; expected bytes or None.",
                    action=f"Write `{name}.encode()` for a text, `json.dumps({name}).encode()` for another value.",
                    topic=topic,
                    seen=repr(part)[:80],
                )
        if not self._broker.takes_time(topic, timestamp_ms):
            ahead_s = timestamp_ms / 1000 - self.clock.time()
            raise KafkaFailed(
                f"Topic {topic} takes no record of time {timestamp_ms} ms, which is {abs(ahead_s):,.0f} s "
                f"{'ahead of' if ahead_s > 0 else 'behind'} the cluster's clock ({self.clock.time() * 1000:.0f} ms).",
                action="Count times from `cluster.clock.time()`, or start it later: `InMemoryCluster(clock="
                "VirtualClock(time.time()))`. Or create the topic with more `message.timestamp.after.max.ms` or "
                "`message.timestamp.before.max.ms`.",
                topic=topic,
                seen=timestamp_ms,
                expected=int(self.clock.time() * 1000),
            )
        place = Partition(topic, partition) if partition >= 0 else self._broker.partition_for(topic, key)
        return self._broker.append(place, key, value, timestamp_ms, _as_stored(headers))

    def read(self, topic: str, *, committed: bool = True) -> list[tuple[int, Record]]:
        """Returns all records of a topic with their partition numbers, ordered by partition and offset.

        Args:
            topic: The name of the topic.
            committed: Whether to leave out records of open and aborted transactions.

        Raises:
            LookupError: The topic does not exist.
        """
        if topic not in self._broker.topics:
            raise LookupError(f"there is no topic {topic!r}; there are {sorted(self._broker.topics)}")
        found = []
        for partition in self._broker.partitions_of(topic):
            log = self._broker.log(partition)
            entries, _ = log.read(log.start, log.end, committed=committed)
            found += [
                (partition.number, Record(entry.key, entry.value, entry.offset, entry.timestamp_ms, entry.headers))
                for entry in entries
            ]
        return found

    def log_start(self, partition: Partition) -> int:
        """Returns the first offset of a partition."""
        return self._broker.log(partition).start

    def log_end(self, partition: Partition) -> int:
        """Returns the high watermark of a partition."""
        return self._broker.log(partition).end

    def last_stable_offset(self, partition: Partition) -> int:
        """Returns the last stable offset, at which readers of committed records stop."""
        return self._broker.log(partition).last_stable

    def compact(self, partition: Partition, *, drop_tombstones: bool) -> None:
        """Compacts a partition. ``drop_tombstones`` also deletes tombstones, as if delete.retention.ms had passed."""
        self._broker.log(partition).compact(drop_tombstones=drop_tombstones)

    def truncate(self, partition: Partition, *, start: int | None = None, end: int | None = None) -> None:
        """Deletes the records before ``start``, and the records from ``end`` on."""
        self._broker.log(partition).truncate(start=start, end=end)

    def open_foreign_transaction(
        self, topic: str, partition: int, records: Sequence[tuple[bytes | None, bytes | None]]
    ) -> ForeignTransaction:
        """Starts a transaction of another producer, writes (key, value) records, and leaves the transaction open."""
        self._foreign += 1
        opened = ForeignTransaction(self._broker, f"foreign-{self._foreign}")
        for key, value in records:
            opened.send(Partition(topic, partition), key, value)
        return opened

    def advance(self, seconds: float) -> None:
        """Advances the virtual clock of brokers and workers, and runs all timers that become due."""
        self.clock.advance_to(self.clock.monotonic() + seconds)

    # -- groups --------------------------------------------------------------------------------------------------

    def committed_offsets(self, group: str) -> dict[Partition, int]:
        """Returns the committed offsets of a group, without open transactions and without commit metadata."""
        return {place: int(offset) for place, offset in self._broker.group(group).committed.items()}

    def reset_offsets(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        """Sets committed offsets of a group. None deletes an offset, as if the offset had expired."""
        committed = self._broker.group(group).committed
        for partition, offset in offsets.items():
            if offset is None:
                committed.pop(partition, None)
            else:
                committed[partition] = offset

    def rebalance(self, group: str) -> None:
        """Starts a rebalance of a group."""
        known = self._broker.group(group)
        if known.members:
            known.rebalance()
