"""Reads facts about topics and consumer groups of one cluster, and creates, changes and deletes them.

Invariants:
    - Reading changes nothing. A topic that does not exist is left out of a result, never replaced by defaults.
    - Every method that returns end offsets says which: high watermark, or last stable offset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec, ResourceType

from holdfast.infra.kafka.clients.client import AWAY, admin_client, library_logger, listening_at
from holdfast.infra.kafka.clients.rights import REFUSALS, Right, principal_of, refused
from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving, KafkaFailed, LeaderMoving
from holdfast.infra.kafka.records import ClientConfig, GroupShares, KeysOf, Member, Partition, TopicFacts, TopicSpec
from holdfast.infra.kafka.topics.group_protocol import decode_assignment
from holdfast.infra.kafka.topics.newest_keys import newest_keys
from holdfast.infra.waiting import Deadline, retry, wait_until

#: Default timeout of one administrative request, seconds.
REQUEST_TIMEOUT_S = 20.0
#: Maximum seconds to wait for open transactions and unwritten commit markers; a transaction lasts 15 s at most.
SETTLE_TIMEOUT_S = 20.0
#: Pause between two checks of offsets or of a topic's existence, seconds.
SETTLE_CHECK_EVERY_S = 0.02
#: Timeout of the first attempt of a request which Kafka may refuse without sending a response, seconds.
_FIRST_TRY_S = 0.5
#: Name of a topic that never exists, for a request whose only purpose is to check rights.
_NO_TOPIC = "holdfast-no-topic"

Answer = TypeVar("Answer")

#: Timeout of one attempt of a request to a group's coordinator, seconds.
TRY_TIMEOUT_S = 3.0

_MOVING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
_LEADERLESS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,  # Error code: the client found no leader for any of the requested partitions.
)
_ABSENT = (
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_NOT_ADMITTED = (KafkaError._AUTHENTICATION, KafkaError._SSL)


class TransactionUndecided(KafkaFailed):
    """A transaction was still open, or its markers were not written, after the timeout."""


class Topics:
    """Reads and changes topics and groups of one cluster; implements the engine's protocol ``TopicView``.

    ``timeout_s`` is the timeout of each request, seconds. All methods raise BrokerUnreachable if no broker answers,
    AccessRefused if a right is missing, and KafkaFailed if the cluster refuses for another reason.
    """

    def __init__(
        self, bootstrap: str, extra_config: ClientConfig | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._try_s = min(timeout_s, TRY_TIMEOUT_S)
        self._extra = dict(extra_config or {})
        self._principal = principal_of(self._extra)
        #: The last authentication error that a broker reported to this client; None if there was none.
        self._not_admitted: KafkaError | None = None
        self._admin = admin_client(bootstrap, extra_config, on_error=self._note)
        self._readers: dict[str, Consumer] = {}

    @property
    def client_config(self) -> ClientConfig:
        """The security settings of this client."""
        return dict(self._extra)

    def ping(self) -> int:
        """The number of brokers in the cluster; a check that a broker answers.

        Raises:
            BrokerUnreachable: No broker answers; if some program listens there, the error names security settings.
        """
        try:
            return len(self._admin.list_topics(timeout=self._timeout_s).brokers)
        except KafkaException as failure:
            told = self._failure(failure, "list the brokers")
            if isinstance(told, BrokerUnreachable) and "security.protocol" not in self._extra:
                listening = listening_at(self.bootstrap)
                told = told if listening is None else _asks_for_security(self.bootstrap, listening)
            raise told from failure

    def names(self) -> tuple[str, ...]:
        """Sorted names of the topics that this client may see, without Kafka's internal topics."""
        topics = self._read(lambda: self._admin.list_topics(timeout=self._try_s), "list the topics").topics
        return tuple(sorted(name for name in topics if not name.startswith("__")))

    def listed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Sorted names of the topics and of the groups that this client may see, without Kafka's internal topics."""
        names = self.names()
        groups = self._read(lambda: self._admin.list_groups(timeout=self._timeout_s), "list the groups")
        return names, tuple(sorted(each.id for each in groups))

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Topic name -> number of partitions, replicas, configuration, id; topics that do not exist are left out."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        found: dict[str, Any] = {}
        futures = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._timeout_s)
        for name, future in futures.items():
            right = Right("Describe", "topic", name)
            description = self._result(future, f"describe topic {name}", right, absent_is_none=True)
            if description is not None:
                found[name] = description
        if not found:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]
        configs: dict[str, dict[str, str]] = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=self._timeout_s).items():
            right = Right("DescribeConfigs", "topic", resource.name)
            what = f"read the config of topic {resource.name}"
            entries = self._result(future, what, right, absent_is_none=True) or {}
            configs[resource.name] = {name: entry.value for name, entry in entries.items()}
        return {
            name: TopicFacts(
                name=name,
                topic_id=str(description.topic_id),
                partitions=len(description.partitions),
                replication=min((len(part.replicas) for part in description.partitions), default=0),
                config=configs.get(name, {}),
            )
            for name, description in found.items()
        }

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic, and wait until all its partitions have a leader; returns False if the topic existed."""
        topic = NewTopic(
            spec.name,
            num_partitions=spec.partitions or 1,
            replication_factor=spec.replication if spec.replication is not None else -1,
            config=dict(spec.config),
        )
        future = self._admin.create_topics([topic], request_timeout=self._timeout_s)[spec.name]
        try:
            future.result(self._timeout_s)
        except KafkaException as failure:
            if failure.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            right = Right("Create", "topic", spec.name)
            raise self._failure(failure, f"create topic {spec.name}", right) from failure
        # The wait is needed because brokers learn of a new topic with a delay.
        wait_until(lambda: self._is_visible(spec.name), self._timeout_s, every_s=SETTLE_CHECK_EVERY_S)
        return True

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set these configuration entries of a topic; other entries stay unchanged."""
        op = AlterConfigOpType.SET
        entries = [ConfigEntry(key, value, incremental_operation=op) for key, value in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            self._result(future, f"alter the config of topic {name}", Right("AlterConfigs", "topic", name))

    def delete(self, name: str) -> None:
        """Delete a topic with its records, and wait until it is no longer listed; ignores an absent topic."""
        for future in self._admin.delete_topics([name], request_timeout=self._timeout_s).values():
            self._result(future, f"delete topic {name}", Right("Delete", "topic", name), absent_is_none=True)
        wait_until(lambda: not self.describe([name]), self._timeout_s, every_s=SETTLE_CHECK_EVERY_S)

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Delete the records before these offsets; an offset must not be greater than its partition's end."""
        places = [TopicPartition(place.topic, place.number, offset) for place, offset in offsets.items()]
        futures = self._admin.delete_records(places, request_timeout=self._timeout_s)
        for place, future in futures.items():
            right = Right("Delete", "topic", place.topic)
            self._result(future, f"delete records of {place.topic}[{place.partition}]", right)

    def delete_group(self, group: str) -> None:
        """Delete an empty group with its committed offsets; ignores a group that does not exist."""
        for future in self._admin.delete_consumer_groups([group], request_timeout=self._try_s).values():
            self._result(future, f"delete group {group}", absent_is_none=True)
        self._readers.pop(group, None)

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """Partition -> last stable offset if ``committed`` is True, otherwise high watermark."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), level)

    def settled_end_offsets(
        self, topic: str, timeout_s: float = SETTLE_TIMEOUT_S, *, upto: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Wait until all transactions that wrote before this call have ended; returns partition -> last stable offset.

        Needed after a commit, because Kafka answers a commit before it writes the markers that make records visible.
        ``upto`` maps a partition to the offset that must become stable; None means the present high watermarks.

        Raises:
            TransactionUndecided: A transaction is still open. Fields: topic, partition, seen, expected.
        """
        deadline = Deadline(timeout_s)
        wanted = self.end_offsets(topic, committed=False) if upto is None else upto
        stable: dict[int, int] = {}

        def settled() -> bool:
            stable.update(self.end_offsets(topic, committed=True))
            return all(stable.get(number, 0) >= end for number, end in wanted.items())

        if wait_until(settled, deadline, every_s=SETTLE_CHECK_EVERY_S):
            return stable
        number = min(number for number, end in wanted.items() if stable.get(number, 0) < end)
        raise TransactionUndecided(
            f"An open transaction holds {topic}[{number}] back: after {timeout_s:g} s its last stable offset is "
            f"{stable.get(number, 0)}, expected {wanted[number]}.",
            action="Find the hanging transaction with `kafka-transactions.sh find-hanging`, and abort it.",
            topic=topic,
            partition=number,
            seen=stable.get(number, 0),
            expected=wanted[number],
        )

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> first offset that still exists."""
        return self._offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def offsets_of_all(
        self, partitions: Mapping[str, int], which: Literal["start", "stable", "end"]
    ) -> dict[str, dict[int, int]]:
        """Topic -> partition -> offset, for many topics in one request; absent topics and partitions are left out.

        ``partitions`` maps a topic to its number of partitions. ``stable`` is the last stable offset, ``end`` the high
        watermark.
        """
        places = [TopicPartition(name, number) for name, count in partitions.items() for number in range(count)]
        found: dict[str, dict[int, int]] = {name: {} for name in partitions}
        if not places:
            return found
        spec = OffsetSpec.earliest() if which == "start" else OffsetSpec.latest()
        level = IsolationLevel.READ_COMMITTED if which == "stable" else IsolationLevel.READ_UNCOMMITTED

        def ask() -> None:
            request = dict.fromkeys(places, spec)
            futures = self._admin.list_offsets(request, isolation_level=level, request_timeout=self._timeout_s)
            try:
                for place, future in futures.items():
                    right = Right("Describe", "topic", place.topic)
                    answer = self._result(future, f"list the offsets of {place.topic}", right, absent_is_none=True)
                    if answer is not None:
                        found[place.topic][place.partition] = answer.offset
            except LeaderMoving:
                # LeaderMoving has two possible causes: all the topics are gone, or partitions have no leader. The error
                # is raised only if a topic exists.
                if self.describe(partitions):
                    raise

        self._patient(ask)
        return found

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Partition -> first offset with a timestamp of at least ``timestamp_ms``, or the high watermark."""
        found = self._offsets(topic, OffsetSpec.for_timestamp(timestamp_ms), IsolationLevel.READ_UNCOMMITTED)
        if all(offset >= 0 for offset in found.values()):
            return found
        ends = self.end_offsets(topic, committed=False)
        return {number: offset if offset >= 0 else ends[number] for number, offset in found.items()}

    def newest_keys(self, partitions: Mapping[str, int]) -> Mapping[str, KeysOf]:
        """Topic -> keys of its newest records (a sample); ``partitions`` maps a topic to its number of partitions."""
        starts, ends = self.offsets_of_all(partitions, "start"), self.offsets_of_all(partitions, "stable")
        return newest_keys(self.bootstrap, self._extra, starts, ends)

    def committed_offsets(self, group: str, topics: Iterable[str] = ()) -> dict[Partition, int]:
        """Partition -> committed offset of a group. Waits for the end of transactions that write offsets of the group.

        A consumer that never joins the group reads the offsets. The admin client's request is not used, because it can
        crash the process (librdkafka issues 4605 and 5040). Topics that this client may not describe are left out; but
        if such a topic is in ``topics``, AccessRefused is raised.
        """
        self._check_visible(topics)
        listed = self._read(lambda: self._admin.list_topics(timeout=self._try_s), "list the topics").topics
        places = [
            TopicPartition(name, number)
            for name, topic in listed.items()
            if not name.startswith("__")
            for number in topic.partitions
        ]
        if not places:
            self._check_group(group)
            return {}
        return {
            Partition(place.topic, place.partition): place.offset
            for place in self._committed(group, places, f"read the offsets of group {group}")
            if place.error is None and place.offset >= 0
        }

    def members(self, group: str) -> int:
        """The number of members that a consumer group has now."""
        return len(self.group_members(group))

    def group_members(self, group: str) -> tuple[Member, ...]:
        """The members that a consumer group has now."""
        return tuple(
            Member(each.id, each.client_id, each.client_host.lstrip("/"))
            for known in self._groups(group)
            for each in known.members
        )

    def live_groups(self) -> dict[str, frozenset[str]]:
        """Maps each group with live members to the topics that they read now. Has only groups that this client may see.

        A group with an unknown protocol counts as live, and its topics are empty because they are unknown.
        """
        groups = self._read(lambda: self._admin.list_groups(timeout=self._timeout_s), "describe the groups")
        found: dict[str, frozenset[str]] = {}
        for known in groups:
            if known.members or known.error is not None or known.state == "Dead":
                raw = [member.assignment for member in known.members] if known.protocol_type == "consumer" else []
                with contextlib.suppress(KafkaFailed):  # The assignor of another program may use another format.
                    found[known.id] = frozenset()
                    found[known.id] = frozenset(place.topic for each in raw for place in decode_assignment(each))
        return found

    def group_shares(self, group: str) -> GroupShares | None:
        """The partition assignment of a group; None while the group rebalances or is empty."""
        for known in self._groups(group):
            if known.state == "Stable":
                members = {member.id: decode_assignment(member.assignment) for member in known.members}
                return GroupShares(known.protocol, members)
        return None

    def _groups(self, group: str) -> list[Any]:
        """The description of a group; empty if it is absent. Raises AccessRefused if this client may not see it."""
        # The newer requests about groups are not used, because librdkafka can crash in them (``committed_offsets``).
        what, right = f"describe group {group}", Right("Describe", "group", group)
        found = self._read(lambda: self._admin.list_groups(group, timeout=self._try_s), what, right)
        if not any(known.id == group for known in found):
            self._check_group(group)
        ours: list[Any] = [known for known in found if known.id == group]
        return ours

    def _reader(self, group: str) -> Consumer:
        reader = self._readers.get(group)
        if reader is None:
            settings = {"bootstrap.servers": self.bootstrap, **self._extra, "group.id": group}
            settings |= {"enable.auto.commit": False, "isolation.level": "read_committed"}
            reader = self._readers[group] = Consumer(settings, logger=library_logger())
        return reader

    def _check_group(self, group: str) -> None:
        """Raise AccessRefused if this client may not see the group, because brokers report such a group as absent."""
        self._committed(group, [TopicPartition(_NO_TOPIC, 0)], f"describe group {group}")

    def _committed(self, group: str, places: list[TopicPartition], what: str) -> list[TopicPartition]:
        """Read committed offsets. Attempts are short, because librdkafka retries a refused request without an error."""
        reader, right = self._reader(group), Right("Describe", "group", group)

        def ask() -> Any:
            try:
                return reader.committed(places, timeout=self._try_s if errors else _FIRST_TRY_S)
            except KafkaException:
                message = reader.poll(0)
                error = None if message is None else message.error()
                errors.append(error)
                if error is not None and error.code() in REFUSALS:
                    # Close the consumer, because a consumer reports a refusal only once. The next call opens another.
                    self._readers.pop(group).close()
                    raise refused(what, right, self._principal) from None
                raise

        errors: list[KafkaError | None] = []
        answer: list[TopicPartition] = self._read(ask, what, right)
        return answer

    def _check_visible(self, topics: Iterable[str]) -> None:
        for name in topics:
            found = self._read(partial(self._admin.list_topics, name, timeout=self._try_s), "list the topics").topics
            error = found[name].error if name in found else None
            if error is not None and error.code() in REFUSALS:
                raise refused(f"describe topic {name}", Right("Describe", "topic", name), self._principal)

    def _is_visible(self, name: str) -> bool:
        found = self._read(partial(self._admin.list_topics, name, timeout=self._try_s), "list the topics").topics
        topic = found.get(name)
        led = topic is not None and topic.error is None and all(part.leader >= 0 for part in topic.partitions.values())
        return led and name in self.describe([name])

    def _read(self, ask: Callable[[], Any], what: str, right: Right | None = None) -> Any:
        """Make a request and translate its errors; retry it while no broker answers, up to the timeout."""

        def attempt() -> Any:
            try:
                return ask()
            except KafkaException as failure:
                raise self._failure(failure, what, right) from failure

        return self._patient(attempt)

    def _offsets(self, topic: str, spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        listed = self._read(lambda: self._admin.list_topics(topic, timeout=self._try_s), f"describe topic {topic}")
        facts = listed.topics.get(topic)
        if facts is not None and facts.error is not None and facts.error.code() in REFUSALS:
            raise refused(f"describe topic {topic}", Right("Describe", "topic", topic), self._principal)
        if facts is None or facts.error is not None:
            raise KafkaFailed(
                f"Topic {topic} can't be read: {facts.error if facts is not None else 'the topic does not exist'}.",
                action="Create the topic, or correct its name.",
                topic=topic,
            )
        request = {TopicPartition(topic, number): spec for number in facts.partitions}
        right = Right("Describe", "topic", topic)

        def ask() -> dict[int, int]:
            futures = self._admin.list_offsets(request, isolation_level=level, request_timeout=self._timeout_s)
            return {
                partition.partition: self._result(future, f"list the offsets of {topic}", right).offset
                for partition, future in futures.items()
            }

        return self._patient(ask)

    def _patient(self, ask: Callable[[], Answer]) -> Answer:
        """Retry a request while a coordinator or leader moves or loads, for example after a broker's start.

        A request without an answer is retried too, because librdkafka may lose its own retries.
        """
        return retry(ask, lambda failed: isinstance(failed, CoordinatorMoving | BrokerUnreachable), self._timeout_s)

    def _result(
        self, future: Future[Any], what: str, right: Right | None = None, *, absent_is_none: bool = False
    ) -> Any:
        try:
            return future.result(self._timeout_s + 5)
        except KafkaException as failure:
            if absent_is_none and failure.args[0].code() in _ABSENT:
                return None
            raise self._failure(failure, what, right) from failure

    def _failure(self, failure: KafkaException, what: str, right: Right | None = None) -> KafkaFailed:
        error = failure.args[0]
        if right is not None and error.code() in REFUSALS:
            return refused(what, right, self._principal)
        if error.code() in _MOVING:
            return CoordinatorMoving(
                f"Kafka could not {what} within {self._timeout_s:g} s: {error.name()}.",
                action="Check that all brokers run; then try again: the group's coordinator moves or loads.",
                error=error.name(),
            )
        if error.code() in _LEADERLESS:
            return LeaderMoving(
                f"Kafka could not {what} within {self._timeout_s:g} s: {error.name()}.",
                action="Check that all brokers run: each partition needs a leader.",
                error=error.name(),
            )
        if error.code() in AWAY:
            self._admin.poll(0)
            if self._not_admitted is not None:
                return self._refused_entry(self._not_admitted)
            return BrokerUnreachable(
                f"Kafka at {self.bootstrap} did not {what} within {self._timeout_s:g} s: {error.str()}.",
                action="Check that the brokers run, their address, the network and the security settings.",
                bootstrap=self.bootstrap,
            )
        return KafkaFailed(
            f"Kafka refused to {what}: {error.name()} ({error.str()}).",
            action="Check the name, and the rights of this client.",
            error=error.name(),
        )

    def _note(self, error: KafkaError) -> None:
        if error.code() in _NOT_ADMITTED:
            self._not_admitted = error

    def _refused_entry(self, error: KafkaError) -> BrokerUnreachable:
        self._not_admitted = None
        cause = "user and password" if error.code() == KafkaError._AUTHENTICATION else "certificates"
        return BrokerUnreachable(
            f"Kafka at {self.bootstrap} did not authenticate {self._principal}, because of {cause}: {error.str()}.",
            action="Correct `security.protocol`, `sasl.*` and `ssl.*` in `HOLDFAST_KAFKA__CLIENT_CONFIG`.",
            bootstrap=self.bootstrap,
        )


def _asks_for_security(bootstrap: str, listening: str) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"A program listens at {listening}, but does not answer as a broker that needs neither password nor TLS.",
        action="If it asks for them, set `security.protocol`, `sasl.*` and `ssl.*` in `HOLDFAST_KAFKA__CLIENT_CONFIG`; "
        "else correct the address.",
        bootstrap=bootstrap,
    )
