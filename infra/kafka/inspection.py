"""What librdkafka has no request for: how large partitions are on disk, and which transactions hold them open.

A second client library asks it: a few requests at a time, nothing of the engine's path.

Invariants:
    - Reading changes nothing; the one change, ``abort``, is made to a transaction that was named with its producer,
      epoch and first offset, and only while that very one is still open.
    - What can't be known is said to be unknown, never zero: brokers that lack a right answer with nothing.
    - A transaction is *hanging* only when it is older than the brokers let any transaction be: those that a
      coordinator knows are ended by it before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar

from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, ClientSettingsInvalid, KafkaFailed
from holdfast.infra.kafka.inspection_settings import admin_settings, quiet_library
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.rights import Right, principal_of, refused

Answer = TypeVar("Answer")

REQUEST_TIMEOUT_S = 20.0
#: Kafka's own default of ``transaction.max.timeout.ms``, for brokers that don't say.
MAX_TIMEOUT_S = 900.0
#: Brokers look for overdue transactions every 10 s, and their clocks and ours may differ.
SLACK_S = 60.0

Standing = Literal["open", "unexplained", "hanging"]

_AGAIN_AFTER_S = 0.1
_OVER = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
_REFUSED = frozenset(
    {
        "TopicAuthorizationFailedError",
        "ClusterAuthorizationFailedError",
        "GroupAuthorizationFailedError",
        "TransactionalIdAuthorizationFailedError",
    }
)
_AWAY = frozenset({"KafkaTimeoutError", "NoBrokersAvailable", "KafkaConnectionError", "NodeNotReadyError"})
_NOT_ADMITTED = frozenset(
    {"AuthenticationFailedError", "SaslAuthenticationFailedError", "UnsupportedSaslMechanismError"}
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written to a partition and is not decided.

    ``since_write_s`` is the time since its last record there, ``age_s`` since its beginning as its coordinator tells.
    What only a coordinator knows is None where none does: ``transactional_id``, ``state``, ``age_s``, ``timeout_s``.
    """

    partition: Partition
    producer_id: int
    producer_epoch: int
    start_offset: int
    since_write_s: float
    transactional_id: str | None = None
    state: str | None = None
    age_s: float | None = None
    timeout_s: float | None = None

    @property
    def open_for_s(self) -> float:
        """For how long it is open at least."""
        return max(0.0, self.since_write_s if self.age_s is None else self.age_s)

    @property
    def sentence(self) -> str:
        """For people."""
        who = "" if self.transactional_id is None else f" of {self.transactional_id}"
        return (
            f"open for {self.open_for_s:.0f} s by producer {self.producer_id} (epoch {self.producer_epoch}){who} since "
            f"offset {self.start_offset}"
        )


def standing(transaction: OpenTransaction, max_timeout_s: float = MAX_TIMEOUT_S) -> Standing:
    """How a transaction is to be taken: ``open``, ``hanging``, or ``unexplained``.

    Unexplained is one that no coordinator told of, but that is young enough to be in order: it began or ended just
    now, or this client may not see whose it is.
    """
    if transaction.transactional_id is not None:
        return "open"
    return "hanging" if transaction.since_write_s > max_timeout_s + SLACK_S else "unexplained"


class Inspector:
    """Asks one cluster; to be closed, or used in a ``with`` block.

    Args:
        bootstrap: Kafka's bootstrap servers.
        client_config: The installation's librdkafka settings.
        timeout_s: How long one request may take.

    Raises:
        ClientSettingsInvalid: A setting has no counterpart in the second library; nothing was asked.
        BrokerUnreachable: Nobody answered, or nobody let us in.

    All methods raise BrokerUnreachable when nobody answers, AccessRefused when a right is missing, and KafkaFailed when
    the cluster refuses for another reason.
    """

    def __init__(
        self,
        bootstrap: str,
        client_config: Mapping[str, str | int | float | bool] | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        from kafka import KafkaAdminClient

        quiet_library()
        config = dict(client_config or {})
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._principal = principal_of(config)
        settings = admin_settings(config)
        self._admin: Any = self._ask(
            lambda: KafkaAdminClient(
                bootstrap_servers=bootstrap.split(","),
                client_id="holdfast-inspection",
                request_timeout_ms=int(timeout_s * 1000),
                bootstrap_timeout_ms=int(timeout_s * 1000),
                **settings,
            ),
            "let this client in",
            Right("Describe", "cluster"),
        )

    def __enter__(self) -> Inspector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        with suppress(Exception):
            self._admin.close()

    def sizes(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Bytes of a topic's partitions on disk, of the largest copy of each; without those no broker has."""
        right = Right("Describe", "cluster")
        numbers = sorted(partitions)
        what = f"tell how large {topic} is on disk"
        answers = self._ask(lambda: self._admin.describe_log_dirs({topic: numbers}), what, right)
        if not all(answer["log_dirs"] for answer in answers):
            # A broker always has a folder: one that lists none withheld it.
            raise refused(what, right, self._principal)
        found: dict[int, int] = {}
        for answer in answers:
            for folder in answer["log_dirs"]:
                for told in folder["topics"]:
                    for part in told["partitions"]:
                        if told["name"] == topic and not part["is_future_key"]:
                            number = part["partition_index"]
                            found[number] = max(found.get(number, 0), part["partition_size"])
        return found

    def committed(self, groups: Iterable[str]) -> dict[str, dict[Partition, int]]:
        """The offsets that groups have committed, by group, in one request for each of their coordinators."""
        wanted = sorted(set(groups))
        if not wanted:
            return {}
        right = Right("Describe", "group", wanted[0] if len(wanted) == 1 else "*")
        answer = self._ask(lambda: self._admin.list_group_offsets(wanted), "tell the offsets of groups", right)
        return {
            group: {Partition(place.topic, place.partition): told.offset for place, told in answer[group].items()}
            for group in wanted
            if group in answer
        }

    def open_transactions(self, topic: str, partitions: Iterable[int]) -> tuple[OpenTransaction, ...]:
        """The transactions that are open on these partitions, in order.

        What ends while we look is left out: producers are asked before and after the coordinators.
        """
        numbers = sorted(partitions)
        before = self._producers(topic, numbers)
        if not before:
            return ()
        known = self._coordinated({producer[0] for _, producer in before})
        still = self._producers(topic, numbers)
        now_ms = time.time() * 1000
        found = []
        for place, producer in sorted(before):
            if (place, producer) not in still:
                continue
            transaction_id, described = known.get((producer[0], place), (None, None))
            found.append(
                OpenTransaction(
                    partition=place,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    start_offset=producer[2],
                    since_write_s=(now_ms - still[place, producer]) / 1000,
                    transactional_id=transaction_id,
                    state=None if described is None else str(described.state.value),
                    age_s=None if described is None else (now_ms - described.transaction_start_time_ms) / 1000,
                    timeout_s=None if described is None else described.transaction_timeout_ms / 1000,
                )
            )
        return tuple(found)

    def max_timeout_s(self) -> float:
        """How long the brokers let any transaction be, in seconds; Kafka's default where they don't tell."""
        from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType

        entry = "transaction.max.timeout.ms"

        def ask() -> str:
            broker = str(self._admin.describe_cluster()["brokers"][0]["broker_id"])
            resources = [ConfigResource(ConfigResourceType.BROKER, broker, [entry])]
            told = self._admin.describe_configs(resources, config_filter=ConfigFilterType.ALL)
            return str(told["broker"][broker][entry]["value"])

        try:
            return int(self._ask(ask, "tell its configuration", Right("DescribeConfigs", "cluster"))) / 1000
        except (AccessRefused, LookupError, ValueError):  # what a broker withholds is not in its answer
            return MAX_TIMEOUT_S

    def abort(self, transaction: OpenTransaction) -> bool:
        """Write the mark that ends a hanging transaction; False when that very one is not open any more.

        Meant for transactions that hang: one that its coordinator knows is ended by its producer or by time.
        """
        from kafka import TopicPartition
        from kafka.admin._transactions import AbortTransactionSpec

        place = transaction.partition
        wanted = (place, (transaction.producer_id, transaction.producer_epoch, transaction.start_offset))
        if wanted not in self._producers(place.topic, [place.number]):
            return False
        spec = AbortTransactionSpec(
            TopicPartition(place.topic, place.number), transaction.producer_id, transaction.producer_epoch
        )
        what = f"abort the transaction of producer {transaction.producer_id} on {place.topic}[{place.number}]"
        self._ask(lambda: self._admin.abort_transaction(spec), what, Right("Alter", "cluster"))
        return True

    def _producers(self, topic: str, numbers: list[int]) -> dict[tuple[Partition, tuple[int, int, int]], int]:
        """Those with an open transaction: (partition, (id, epoch, first offset)) -> time of the last record, ms."""
        from kafka import TopicPartition

        places = [TopicPartition(topic, number) for number in numbers]
        right = Right("Read", "topic", topic)
        answer = self._ask(
            lambda: self._admin.describe_producers(places), f"tell the producers of topic {topic}", right
        )
        return {
            (
                Partition(place.topic, place.partition),
                (each.producer_id, each.producer_epoch, each.current_transaction_start_offset),
            ): each.last_timestamp
            for place, state in answer.items()
            for each in state.active_producers
            if each.current_transaction_start_offset >= 0
        }

    def _coordinated(self, producers: set[int]) -> dict[tuple[int, Partition], tuple[str, Any]]:
        """What coordinators tell of these producers' undecided transactions: (id, partition) -> (its name, facts)."""
        right = Right("Describe", "transactional-id", "*")
        wanted = sorted(producers)
        listed = self._ask(
            lambda: self._admin.list_transactions(producer_id_filters=wanted), "list the transactions", right
        )
        names = [each.transactional_id for each in _flat(listed) if each.state.value not in _OVER]
        described: dict[str, Any] = {}
        for name in names:
            try:
                told = self._ask(
                    lambda name=name: self._admin.describe_transactions([name]),  # type: ignore[misc]
                    f"describe transaction {name}",
                    Right("Describe", "transactional-id", name),
                )
            except (AccessRefused, KafkaFailed):  # it ended meanwhile, or is not ours to see
                continue
            described.update(told)
        return {
            (told.producer_id, Partition(place.topic, place.partition)): (name, told)
            for name, told in described.items()
            for place in told.topic_partitions
        }

    def _ask(self, ask: Callable[[], Answer], what: str, right: Right) -> Answer:
        """Ask, and ask again while a leader or a coordinator moves, for up to the timeout."""
        from kafka import errors

        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except errors.KafkaError as failure:
                kind = type(failure).__name__
                moving = isinstance(failure, errors.RetriableError) and kind not in _AWAY
                if not moving or time.monotonic() > deadline:
                    raise self._failure(failure, what, right) from failure
            time.sleep(_AGAIN_AFTER_S)

    def _failure(self, failure: Exception, what: str, right: Right) -> KafkaFailed:
        kind = type(failure).__name__
        if kind in _REFUSED:
            return refused(what, right, self._principal)
        if kind in _NOT_ADMITTED:
            return BrokerUnreachable(
                f"Kafka did not let {self._principal} in: {kind}.",
                action="Correct sasl.mechanisms, sasl.username and sasl.password of HOLDFAST_KAFKA__CLIENT_CONFIG.",
            )
        if kind in _AWAY or getattr(failure, "retriable", False):
            return BrokerUnreachable(
                f"No answer from Kafka at {self._bootstrap} within {self._timeout_s:g} s, to {what}: {kind}.",
                action="Check that the broker runs and that address, security settings and network are right.",
                bootstrap=self._bootstrap,
            )
        return KafkaFailed(
            f"Kafka refused to {what}: {kind}.", action="Check the name and the rights of this client.", error=kind
        )


def _flat(listed: Mapping[int, Iterable[Any]]) -> list[Any]:
    return [each for several in listed.values() for each in several]


__all__ = [
    "MAX_TIMEOUT_S",
    "SLACK_S",
    "ClientSettingsInvalid",
    "Inspector",
    "OpenTransaction",
    "Standing",
    "standing",
]
