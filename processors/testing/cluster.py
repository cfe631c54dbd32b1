"""A Kafka cluster in memory: for simulations of the engine, and for users who test their processors without a broker.

    cluster = InMemoryCluster()
    cluster.create_topic("orders", partitions=2)
    cluster.produce("orders", b'{"amount": 3}', b"alice")
    cluster.run(application)
    cluster.read("totals")

Transactions, control records, last stable offsets, compaction, groups, generations and fencing are as in Kafka; time
is virtual. The application runs on the engine that runs in production.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.producer import BATCH_BYTES_MAX
from holdfast.infra.kafka.records import GroupShares, Headers, Partition, Record, TopicFacts, TopicSpec
from holdfast.infra.settings import CheckpointSettings, load_settings
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.testing.broker import Broker, Topic
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.consumers import InMemoryMember, InMemoryReplayer
from holdfast.processors.testing.groups import SESSION_TIMEOUT_S
from holdfast.processors.testing.network import Network
from holdfast.processors.testing.process import InlineProcess, Process
from holdfast.processors.testing.producer import InMemoryProducer

if TYPE_CHECKING:
    from holdfast.processors.application import Application

#: An application counts as done when nothing came for so many virtual seconds.
QUIET_S = 3.0
_LOOK_EVERY_S = 0.25


class ClusterView:
    """The cluster as one process sees it: ``processors.engine.runtime.ports.Cluster``."""

    bootstrap = "in-memory"

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process
        self.clock = broker.clock

    def topics(self, timeout_s: float = 20.0) -> InMemoryTopics:
        """The administrative view."""
        return InMemoryTopics(self._broker, self._process, timeout_s)

    def group_consumer(self, group: str) -> InMemoryMember:
        """A new group member."""
        return InMemoryMember(self._broker, self._process, group)

    def changelog_consumer(self) -> InMemoryReplayer:
        """A new restorer."""
        return InMemoryReplayer(self._broker, self._process)

    @property
    def record_bytes_max(self) -> int | None:
        """Nobody chose one."""
        return None

    def producer(self, transactional_id: str | None, batch_bytes_max: int = BATCH_BYTES_MAX) -> InMemoryProducer:
        """A new producer; batches have no size here."""
        return InMemoryProducer(self._broker, self._process, transactional_id)


class InMemoryTopics:
    """See ``processors.engine.runtime.ports.TopicView``; BrokerUnreachable after ``timeout_s`` when no broker is up."""

    def __init__(self, broker: Broker, process: Process, timeout_s: float) -> None:
        self._broker = broker
        self._process = process
        self._timeout_s = timeout_s

    def ping(self) -> int:
        """The number of brokers."""
        self._await_answer("ping")
        return 1

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """Facts of topics that exist."""
        self._await_answer("describe")
        facts = {name: self._broker.facts(name) for name in names}
        return {name: known for name, known in facts.items() if known is not None}

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic; False when it was there."""
        self._await_answer("create")
        return self._broker.create(spec.name, spec.partitions or 1, spec.config)

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set config entries."""
        self._await_answer("alter")
        self._topic(name).config.update(config)

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """Last stable offsets or high watermarks."""
        self._await_answer("end_offsets")
        logs = self._topic(topic).logs
        return {number: log.last_stable if committed else log.end for number, log in enumerate(logs)}

    def start_offsets(self, topic: str) -> dict[int, int]:
        """First offsets still there."""
        self._await_answer("start_offsets")
        return {number: log.start for number, log in enumerate(self._topic(topic).logs)}

    def group_shares(self, group: str) -> GroupShares | None:
        """Who has which partitions; None while that is not settled."""
        self._await_answer("group_shares")
        return self._broker.group(group).told()

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise KafkaFailed(
                f"Topic {name} can't be read: it is not there.",
                action="Create the topic, or correct its name.",
                topic=name,
            )
        return topic

    def _await_answer(self, request: str) -> None:
        self._process.point(request)
        deadline = self._broker.clock.monotonic() + self._timeout_s
        while not self._broker.network.brokers_up:
            if self._broker.clock.monotonic() >= deadline:
                raise BrokerUnreachable(
                    f"No answer from Kafka within {self._timeout_s:g} s.",
                    action="Check that the broker runs and that address, security settings and network are right.",
                )
            self._process.sleep(_LOOK_EVERY_S)


class ForeignTransaction:
    """A transaction of somebody else: it holds the last stable offsets down until it is ended."""

    def __init__(self, broker: Broker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        given = broker.transactions.register(transactional_id)
        assert given is not None
        self._producer_id, self._epoch = given

    def send(self, partition: Partition, key: bytes | None, value: bytes | None) -> int:
        """Write a record; returns its offset."""
        self._broker.transactions.add_partition(self._id, self._epoch, partition)
        return self._broker.append(partition, key, value, 0, None, self._producer_id)

    def commit(self) -> None:
        """Commit."""
        self._broker.transactions.end(self._id, self._epoch, commit=True)

    def abort(self) -> None:
        """Abort."""
        self._broker.transactions.end(self._id, self._epoch, commit=False)


class InMemoryCluster:
    """The cluster, seen from outside.

    Args:
        clock: Virtual time; None for a clock of its own.
        network: Decides what becomes of requests; None for one on which all goes well.
    """

    def __init__(self, *, clock: VirtualClock | None = None, network: Network | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.network = network or Network()
        self._broker = Broker(self.clock, self.network)
        self._foreign = 0

    @property
    def cooperative(self) -> bool:
        """Whether members keep what stays theirs during a rebalance."""
        return self._broker.cooperative

    @cooperative.setter
    def cooperative(self, value: bool) -> None:
        self._broker.cooperative = value

    def connect(self, process: Process) -> ClusterView:
        """The cluster as a process sees it, for ``Application.run_on``."""
        return ClusterView(self._broker, process)

    def run(self, application: Application, *, count: int = 0, quiet_s: float = QUIET_S) -> None:
        """Run an application until all that was produced is processed and committed.

        State is kept in a folder that is gone afterwards, unless the application has a ``state_dir``; the next run
        restores it from the changelogs.

        Args:
            application: What to run.
            count: Stop after so many messages; 0 for all there are.
            quiet_s: Stop when nothing came for so many virtual seconds.

        Raises:
            HoldfastError: What stopped the application.
        """
        process = InlineProcess(self.clock)
        if any(member.process.frozen for member in self._broker.group(application.consumer_group).members):
            process.sleep(SESSION_TIMEOUT_S + 2.0)  # one that was killed holds its partitions for so long
        with tempfile.TemporaryDirectory() as home:
            settings = load_settings(home=Path(home), checkpoints=CheckpointSettings(enabled=False))
            try:
                application.run_on(self.connect(process), settings, count=count, timeout=quiet_s)
            finally:
                process.frozen = True
                process.sleep(1.0)  # the last markers are written

    def state(self, application: Application, store: str) -> dict[tuple[bytes, str], Any]:
        """A store as its committed changelog has it: (message key, state key) to value."""
        stores = sorted(spec.name for spec in application.topology().stores)
        if store not in stores:
            raise LookupError(f"application {application.consumer_group} has no store {store!r}; it has {stores}")
        found: dict[tuple[bytes, str], Any] = {}
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

    # -- topics and records --------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; one that is there stays as it is."""
        self._broker.create(name, partitions, config or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._broker.delete(name)

    def produce(  # tidy: allow-wide because a record has that many parts.
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Headers = None,
    ) -> int:
        """Append a record; partition -1 leaves the choice to the key. Returns its offset."""
        place = Partition(topic, partition) if partition >= 0 else self._broker.partition_for(topic, key)
        return self._broker.append(place, key, value, timestamp_ms, headers)

    def read(self, topic: str, *, committed: bool = True) -> list[tuple[int, Record]]:
        """All records of a topic with their partitions, partition by partition, in order.

        Raises:
            LookupError: There is no such topic.
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
        """The first offset still there."""
        return self._broker.log(partition).start

    def log_end(self, partition: Partition) -> int:
        """The high watermark."""
        return self._broker.log(partition).end

    def last_stable_offset(self, partition: Partition) -> int:
        """Where readers of committed records have to stop."""
        return self._broker.log(partition).last_stable

    def compact(self, partition: Partition, *, drop_tombstones: bool) -> None:
        """Let the log cleaner run; see ``PartitionLog.compact``."""
        self._broker.log(partition).compact(drop_tombstones=drop_tombstones)

    def truncate(self, partition: Partition, *, start: int | None = None, end: int | None = None) -> None:
        """Lose the head below ``start``, or the tail from ``end`` on."""
        self._broker.log(partition).truncate(start=start, end=end)

    def open_foreign_transaction(
        self, topic: str, partition: int, records: Sequence[tuple[bytes | None, bytes | None]]
    ) -> ForeignTransaction:
        """Somebody else begins a transaction and writes (key, value) records; it stays open."""
        self._foreign += 1
        opened = ForeignTransaction(self._broker, f"foreign-{self._foreign}")
        for key, value in records:
            opened.send(Partition(topic, partition), key, value)
        return opened

    # -- groups --------------------------------------------------------------------------------------------------

    def committed_offsets(self, group: str) -> dict[Partition, int]:
        """What a group has committed, for good."""
        return dict(self._broker.group(group).committed)

    def reset_offsets(self, group: str, offsets: Mapping[Partition, int | None]) -> None:
        """Set committed offsets; None lets one expire."""
        committed = self._broker.group(group).committed
        for partition, offset in offsets.items():
            if offset is None:
                committed.pop(partition, None)
            else:
                committed[partition] = offset

    def rebalance(self, group: str) -> None:
        """Make a group share its partitions anew."""
        known = self._broker.group(group)
        if known.members:
            known.rebalance()
