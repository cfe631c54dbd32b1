"""What the cluster says of topics and groups, and the few changes made to them.

Invariants:
    - Reading changes nothing; a topic that is not there is absent from the answer, never an empty fact.
    - End offsets say which end they mean: the high watermark, or the last stable offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from holdfast.infra.kafka.client import admin_client, library_logger
from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving, KafkaFailed
from holdfast.infra.kafka.group_protocol import decode_assignment
from holdfast.infra.kafka.records import GroupShares, Partition, TopicFacts, TopicSpec
from holdfast.infra.kafka.rights import REFUSALS, Right, principal_of, refused

#: How long one administrative request may take, in seconds.
REQUEST_TIMEOUT_S = 20.0
#: How long the markers of an answered commit may take, in seconds; a transaction itself lives 15 s at the most.
SETTLE_TIMEOUT_S = 20.0
_SETTLE_LOOK_EVERY_S = 0.02
#: The first try of what may be refused in silence is short.
_FIRST_TRY_S = 0.5
#: A topic that nobody has.
_NO_TOPIC = "holdfast-no-topic"

Answer = TypeVar("Answer")

#: How long one try of a request to a group's coordinator may take, in seconds.
TRY_TIMEOUT_S = 3.0

_MOVING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
_LEADERLESS = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
_ABSENT = (
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_NOT_ADMITTED = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)


class LeaderMoving(CoordinatorMoving):
    """A partition has no leader just now, as after its creation or a broker's end."""


class TransactionUndecided(KafkaFailed):
    """A transaction stayed open, or its markers unwritten, for longer than was waited."""


class Topics:
    """Facts about topics and groups of one cluster, and the changes to topics.

    Args:
        bootstrap: Kafka's bootstrap servers.
        extra_config: Security settings for the client.
        timeout_s: How long one request may take.

    All methods raise BrokerUnreachable when nobody answers, AccessRefused when a right is missing, and KafkaFailed when
    the cluster refuses for another reason.
    """

    def __init__(
        self,
        bootstrap: str,
        extra_config: Mapping[str, str | int | float | bool] | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._try_s = min(timeout_s, TRY_TIMEOUT_S)
        self._extra = dict(extra_config or {})
        self._principal = principal_of(self._extra)
        #: Why brokers did not let this client in, as it was last told.
        self._not_admitted: KafkaError | None = None
        self._admin = admin_client(bootstrap, extra_config, on_error=self._note)
        self._readers: dict[str, Consumer] = {}

    @property
    def client_config(self) -> Mapping[str, str | int | float | bool]:
        """Security settings, as they were given."""
        return dict(self._extra)

    def ping(self) -> int:
        """The number of brokers that the cluster says it has."""
        try:
            return len(self._admin.list_topics(timeout=self._timeout_s).brokers)
        except KafkaException as failure:
            raise self._failure(failure, "list the brokers") from failure

    def listed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of all topics and of all groups that this client may see, in order; Kafka's own left out."""
        topics = self._read(lambda: self._admin.list_topics(timeout=self._try_s), "list the topics").topics
        groups = self._read(lambda: self._admin.list_groups(timeout=self._timeout_s), "list the groups")
        return tuple(sorted(name for name in topics if not name.startswith("__"))), tuple(sorted(g.id for g in groups))

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""
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
        """Create a topic, and wait until the brokers tell of it; False when it was there already."""
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
        deadline = time.monotonic() + self._timeout_s
        while not self._is_told_of(spec.name) and time.monotonic() < deadline:
            time.sleep(_SETTLE_LOOK_EVERY_S)  # brokers follow the controller a moment later
        return True

    def alter(self, name: str, config: Mapping[str, str]) -> None:
        """Set the given config entries of a topic; others stay as they are."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            self._result(future, f"alter the config of topic {name}", Right("AlterConfigs", "topic", name))

    def delete(self, name: str) -> None:
        """Delete a topic, if it is there, with all its records; wait until the brokers tell of it no more."""
        for future in self._admin.delete_topics([name], request_timeout=self._timeout_s).values():
            self._result(future, f"delete topic {name}", Right("Delete", "topic", name), absent_is_none=True)
        deadline = time.monotonic() + self._timeout_s
        while self.describe([name]) and time.monotonic() < deadline:
            time.sleep(_SETTLE_LOOK_EVERY_S)

    def delete_group(self, group: str) -> None:
        """Delete the offsets of a group that has no member any more; one that is not there is no error."""
        for future in self._admin.delete_consumer_groups([group], request_timeout=self._try_s).values():
            self._result(future, f"delete group {group}", absent_is_none=True)
        self._readers.pop(group, None)

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """Per partition, the last stable offset (``committed``) or the high watermark."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), level)

    def settled_end_offsets(
        self, topic: str, timeout_s: float = SETTLE_TIMEOUT_S, *, upto: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Per partition, the last stable offset, once all that was written before the call is decided.

        A commit is answered before its last markers are written: only then do readers see all that it wrote.

        Args:
            topic: The topic.
            timeout_s: How long to wait.
            upto: The offsets that have to be stable, by partition; others are not waited for. None takes the high
                watermarks as they are now.

        Raises:
            TransactionUndecided: A transaction holds a partition back; fields: topic, partition, seen, expected.
        """
        deadline = time.monotonic() + timeout_s
        wanted = self.end_offsets(topic, committed=False) if upto is None else upto
        while True:
            stable = self.end_offsets(topic, committed=True)
            held = [number for number, end in sorted(wanted.items()) if stable.get(number, 0) < end]
            if not held:
                return stable
            if time.monotonic() > deadline:
                break
            time.sleep(_SETTLE_LOOK_EVERY_S)
        number = held[0]
        raise TransactionUndecided(
            f"{topic}[{number}] is committed up to offset {stable.get(number, 0)} of {wanted[number]} after "
            f"{timeout_s:g} s: an open transaction holds it back.",
            action="Find the hanging transaction on this partition and abort it (kafka-transactions.sh find-hanging).",
            topic=topic,
            partition=number,
            seen=stable.get(number, 0),
            expected=wanted[number],
        )

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Per partition, the first offset that is still there."""
        return self._offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def offsets_of_all(
        self, partitions: Mapping[str, int], which: Literal["start", "stable", "end"]
    ) -> dict[str, dict[int, int]]:
        """Of many topics (name -> its partitions) in one request: the first offset that is there, the last stable one,
        or the high watermark. What is not there is left out.
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
            for place, future in futures.items():
                right = Right("Describe", "topic", place.topic)
                told = self._result(future, f"list the offsets of {place.topic}", right, absent_is_none=True)
                if told is not None:
                    found[place.topic][place.partition] = told.offset

        self._patient(ask)
        return found

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[int, int]:
        """Per partition, the first offset written at that time (ms since 1970) or later; its end when there is none."""
        found = self._offsets(topic, OffsetSpec.for_timestamp(timestamp_ms), IsolationLevel.READ_UNCOMMITTED)
        if all(offset >= 0 for offset in found.values()):
            return found
        ends = self.end_offsets(topic, committed=False)
        return {number: offset if offset >= 0 else ends[number] for number, offset in found.items()}

    def committed_offsets(self, group: str, topics: Iterable[str] = ()) -> dict[Partition, int]:
        """The offsets that a group has committed, pending transactions waited for.

        Asked through a consumer that never joins: the admin client's requests to a group's coordinator can end the
        process when that coordinator is moving (librdkafka issues 4605 and 5040).

        Args:
            group: The group.
            topics: Those whose offsets matter. Brokers hide topics that this client may not see, and their offsets with
                them: a refusal is raised for these, others are left out silently.
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
        """How many members a group has now."""
        return sum(len(known.members) for known in self._groups(group))

    def group_shares(self, group: str) -> GroupShares | None:
        """Who has which partitions; None while the group shares them out anew, or is empty."""
        for known in self._groups(group):
            if known.state == "Stable":
                members = {member.id: decode_assignment(member.assignment) for member in known.members}
                return GroupShares(known.protocol, members)
        return None

    def _groups(self, group: str) -> list[Any]:
        """The group, if there is one; a group that this client may not see is no empty one."""
        # The older of the library's two ways: the newer one has the defect named in ``committed_offsets``.
        what, right = f"describe group {group}", Right("Describe", "group", group)
        found = self._read(lambda: self._admin.list_groups(group, timeout=self._try_s), what, right)
        if not any(known.id == group for known in found):
            self._check_group(group)
        ours: list[Any] = [known for known in found if known.id == group]
        return ours

    def _reader(self, group: str) -> Consumer:
        reader = self._readers.get(group)
        if reader is None:
            reader = self._readers[group] = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    **self._extra,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                },
                logger=library_logger(),
            )
        return reader

    def _check_group(self, group: str) -> None:
        """Groups that this client may not see are told as absent; their coordinator is not given away, though."""
        self._committed(group, [TopicPartition(_NO_TOPIC, 0)], f"look at group {group}")

    def _committed(self, group: str, places: list[TopicPartition], what: str) -> list[TopicPartition]:
        """Asked in short steps: refused a coordinator, the library goes on looking for it, and only polling tells."""
        reader, right = self._reader(group), Right("Describe", "group", group)

        def ask() -> Any:
            try:
                return reader.committed(places, timeout=self._try_s if told else _FIRST_TRY_S)
            except KafkaException:
                message = reader.poll(0)
                error = None if message is None else message.error()
                told.append(error)
                if error is not None and error.code() in REFUSALS:
                    self._readers.pop(group).close()  # a reader is told once only
                    raise refused(what, right, self._principal) from None
                raise

        told: list[KafkaError | None] = []
        answer: list[TopicPartition] = self._read(ask, what, right)
        return answer

    def _check_visible(self, topics: Iterable[str]) -> None:
        for name in topics:
            told = self._read(partial(self._admin.list_topics, name, timeout=self._try_s), "list the topics")
            error = told.topics[name].error if name in told.topics else None
            if error is not None and error.code() in REFUSALS:
                raise refused(f"look at topic {name}", Right("Describe", "topic", name), self._principal)

    def _is_told_of(self, name: str) -> bool:
        told = self._read(lambda: self._admin.list_topics(name, timeout=self._try_s), "list the topics").topics.get(
            name
        )
        led = told is not None and told.error is None and all(part.leader >= 0 for part in told.partitions.values())
        return led and name in self.describe([name])

    def _read(self, ask: Callable[[], Any], what: str, right: Right | None = None) -> Any:
        """Ask, and ask again while nobody answers, for up to the timeout."""

        def attempt() -> Any:
            try:
                return ask()
            except KafkaException as failure:
                raise self._failure(failure, what, right) from failure

        return self._patient(attempt)

    def _offsets(self, topic: str, spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        listed = self._read(lambda: self._admin.list_topics(topic, timeout=self._try_s), f"look at topic {topic}")
        facts = listed.topics.get(topic)
        if facts is not None and facts.error is not None and facts.error.code() in REFUSALS:
            raise refused(f"look at topic {topic}", Right("Describe", "topic", topic), self._principal)
        if facts is None or facts.error is not None:
            raise KafkaFailed(
                f"Topic {topic} can't be read: {facts.error if facts is not None else 'it is not there'}.",
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
        """Ask again while a coordinator or a leader is moving or loading, as they do after a broker's start.

        Also when nothing came back: librdkafka loses some retries of its own, a new request is answered at once.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except (CoordinatorMoving, BrokerUnreachable):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

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
                action="Wait until the group's coordinator is there again.",
                error=error.name(),
            )
        if error.code() in _LEADERLESS:
            return LeaderMoving(
                f"Kafka could not {what} within {self._timeout_s:g} s: {error.name()}.",
                action="Check that all brokers run, so that each partition has a leader.",
                error=error.name(),
            )
        if error.code() in _AWAY:
            self._admin.poll(0)
            if self._not_admitted is not None:
                return self._refused_entry(self._not_admitted)
            return BrokerUnreachable(
                f"No answer from Kafka at {self.bootstrap} within {self._timeout_s:g} s, to {what}: {error.str()}.",
                action="Check that the broker runs and that address, security settings and network are right.",
                bootstrap=self.bootstrap,
            )
        return KafkaFailed(
            f"Kafka refused to {what}: {error.name()} ({error.str()}).",
            action="Check the name and the rights of this client.",
            error=error.name(),
        )

    def _note(self, error: KafkaError) -> None:
        if error.code() in _NOT_ADMITTED:
            self._not_admitted = error

    def _refused_entry(self, error: KafkaError) -> BrokerUnreachable:
        self._not_admitted = None
        why = "user and password" if error.code() == KafkaError._AUTHENTICATION else "certificates"
        return BrokerUnreachable(
            f"Kafka at {self.bootstrap} did not let {self._principal} in, because of {why}: {error.str()}.",
            action="Correct security.protocol, sasl.* and ssl.* of HOLDFAST_KAFKA__CLIENT_CONFIG.",
            bootstrap=self.bootstrap,
        )
