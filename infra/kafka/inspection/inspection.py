"""Reads sizes of partitions on disk, and open or hanging transactions; can also end a hanging transaction.

librdkafka lacks these requests, so a second client library, kafka-python, makes them. The engine uses this module only
if a transaction may have been left open.

Invariants:
    - Reading changes nothing. ``abort``, ``end`` and ``end_left`` change something only while the transaction is open.
    - An unknown fact is reported as unknown, never as zero. This matters because brokers answer a client without
      rights with empty lists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal, TypeVar

from holdfast.infra.kafka.clients.rights import Right, principal_of, refused
from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.inspection.hanging_transactions import MAX_TIMEOUT_S, OpenTransaction
from holdfast.infra.kafka.inspection.inspection_settings import admin_settings, quiet_library
from holdfast.infra.kafka.records import (
    LOADS_SUFFIX,
    WORKERS_PREFIX,
    ClientConfig,
    LeftOpen,
    Partition,
    ProducerState,
)
from holdfast.infra.waiting import retry

Answer = TypeVar("Answer")

#: Default timeout of one request, seconds.
REQUEST_TIMEOUT_S = 20.0

_OVER = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
_STATES: dict[str, Literal["open", "committed", "aborted", "none"]] = {
    "Ongoing": "open",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
    "Empty": "none",
    "Dead": "none",
}
_REFUSED = frozenset(
    {
        "TopicAuthorizationFailedError",
        "ClusterAuthorizationFailedError",
        "GroupAuthorizationFailedError",
        "TransactionalIdAuthorizationFailedError",
    }
)
_AWAY = frozenset({"KafkaTimeoutError", "NoBrokersAvailable", "KafkaConnectionError", "NodeNotReadyError"})
#: Names of errors that mean that a leader or coordinator is on a broker that is not registered yet. Such a request is
#: retried.
_NOT_THERE_YET = frozenset({"UnknownBrokerIdError", "BrokerNotAvailableError"})
_NOT_ADMITTED = frozenset(
    {"AuthenticationFailedError", "SaslAuthenticationFailedError", "UnsupportedSaslMechanismError"}
)


class Inspector:
    """Reads partition sizes and transactions of one cluster. Call ``close``, or use it in a ``with`` block.

    ``client_config`` has librdkafka's names; the constructor raises ClientSettingsInvalid for a security setting that
    kafka-python does not support. ``timeout_s`` is the timeout of each request, seconds. All methods raise
    BrokerUnreachable if no broker answers or authenticates this client. They raise AccessRefused if a right is missing,
    and KafkaFailed if the cluster refuses for another reason.
    """

    def __init__(
        self, bootstrap: str, client_config: ClientConfig | None = None, *, timeout_s: float = REQUEST_TIMEOUT_S
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
            "connect this client",
            Right("Describe", "cluster"),
        )

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with suppress(Exception):
            self._admin.close()

    def sizes(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Partition -> bytes on disk of its largest replica.

        A partition without a replica on any broker is left out.
        """
        right = Right("Describe", "cluster")
        numbers = sorted(partitions)
        what = f"describe the size of {topic} on disk"
        answers = self._ask(lambda: self._admin.describe_log_dirs({topic: numbers}), what, right)
        if not all(answer["log_dirs"] for answer in answers):
            # Every broker has a log folder. An empty list means that this client lacks the right to see it.
            raise refused(what, right, self._principal)
        found: dict[int, int] = {}
        for answer in answers:
            for folder in answer["log_dirs"]:
                for listed in folder["topics"]:
                    for part in listed["partitions"]:
                        if listed["name"] == topic and not part["is_future_key"]:
                            number = part["partition_index"]
                            found[number] = max(found.get(number, 0), part["partition_size"])
        return found

    def committed(self, groups: Iterable[str]) -> dict[str, dict[Partition, int]]:
        """Maps each group to its committed offsets by partition. Sends one request to each coordinator."""
        wanted = sorted(set(groups))
        if not wanted:
            return {}
        right = Right("Describe", "group", wanted[0] if len(wanted) == 1 else "*")
        answer = self._ask(lambda: self._admin.list_group_offsets(wanted), "list the offsets of groups", right)
        return {
            group: {Partition(place.topic, place.partition): found.offset for place, found in answer[group].items()}
            for group in wanted
            if group in answer
        }

    def open_transactions(self, topic: str, partitions: Iterable[int]) -> tuple[OpenTransaction, ...]:
        """The open transactions on these partitions, sorted by partition.

        The partitions' leaders are asked before and after the coordinators, so that a transaction that ends during the
        inspection is left out.
        """
        numbers = sorted(partitions)
        before = self._producers(topic, numbers)
        if not before:
            return ()
        known = self._coordinated({producer[0] for _, producer in before})
        still = self._producers(topic, numbers)
        now_ms, longest_s = time.time() * 1000, self._longest_s
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
                    since_write_s=(now_ms - still[place, producer].last_timestamp) / 1000,
                    transactional_id=transaction_id,
                    state=None if described is None else str(described.state.value),
                    age_s=None if described is None else (now_ms - described.transaction_start_time_ms) / 1000,
                    timeout_s=None if described is None else described.transaction_timeout_ms / 1000,
                    max_timeout_s=longest_s,
                )
            )
        return tuple(found)

    @cached_property
    def _longest_s(self) -> float:
        return self.max_timeout_s()

    def max_timeout_s(self) -> float:
        """The brokers' ``transaction.max.timeout.ms``, in seconds; ``MAX_TIMEOUT_S`` if they do not report it."""
        from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType

        entry = "transaction.max.timeout.ms"

        def ask() -> str:
            broker = str(self._admin.describe_cluster()["brokers"][0]["broker_id"])
            resources = [ConfigResource(ConfigResourceType.BROKER, broker, [entry])]
            configs = self._admin.describe_configs(resources, config_filter=ConfigFilterType.ALL)
            return str(configs["broker"][broker][entry]["value"])

        try:
            what, right = "describe the brokers' configuration", Right("DescribeConfigs", "cluster")
            return int(self._ask(ask, what, right)) / 1000
        except (AccessRefused, LookupError, ValueError):  # Brokers leave out settings that this client may not read.
            return MAX_TIMEOUT_S

    def abort(self, transaction: OpenTransaction) -> bool:
        """End a hanging transaction by writing its missing marker; returns False if it is no longer open.

        The marker aborts the transaction, with one exception. If a coordinator reports that the last transaction of a
        worker's producer was committed, the marker commits. A worker never begins a transaction before the previous
        transaction has ended. So the committed transaction is the hanging transaction.

        Call this only for hanging transactions. Any other transaction is ended by its producer, or by the coordinator
        at the timeout.
        """
        return self._end_this(transaction, commit=self._committed_last(transaction.producer_id))

    def _end_this(self, transaction: OpenTransaction | LeftOpen, *, commit: bool) -> bool:
        which = (transaction.producer_id, transaction.producer_epoch, transaction.start_offset)
        found = self._producers(transaction.partition.topic, [transaction.partition.number])
        known = found.get((transaction.partition, which))
        if known is not None:
            self._write_marker(transaction.partition, known, commit=commit)
        return known is not None

    def _committed_last(self, producer_id: int) -> bool:
        """Whether the producer is a worker's, and the coordinator reports its last transaction as committed."""
        right = Right("Describe", "transactional-id", "*")
        ask = partial(self._admin.list_transactions, producer_id_filters=[producer_id])
        listed = chain.from_iterable(self._ask(ask, "list the transactions", right).values())
        return any(
            each.transactional_id.startswith(WORKERS_PREFIX) and _STATES.get(str(each.state.value)) == "committed"
            for each in listed
            if each.producer_id == producer_id and not each.transactional_id.endswith(LOADS_SUFFIX)
        )

    def producer_state(self, transactional_id: str) -> ProducerState | None:
        """The coordinator's state of a transactional id; None if no producer has used the id, or the id has expired."""
        from kafka.errors import TransactionalIdNotFoundError

        def ask() -> Any:
            try:
                return self._admin.describe_transactions([transactional_id]).get(transactional_id)
            except TransactionalIdNotFoundError:
                return None

        right = Right("Describe", "transactional-id", transactional_id)
        known = self._ask(ask, f"describe transactional id {transactional_id}", right)
        if known is None:
            return None
        return ProducerState(known.producer_id, known.producer_epoch, _STATES.get(str(known.state.value), "ending"))

    def open_of(self, producer_id: int, partitions: Iterable[Partition]) -> frozenset[Partition]:
        """The subset of ``partitions`` on which the producer has an open transaction."""
        return frozenset(place for place, producer in self._open_on(partitions) if producer[0] == producer_id)

    def left_open(self, partitions: Iterable[Partition]) -> tuple[LeftOpen, ...]:
        """The transactions that are open on these partitions although their coordinator reports their end, sorted.

        The leaders are asked before and after the coordinators. If a transaction is open both times but has ended for
        its coordinator, the coordinator failed to write a marker. No producer continues such a transaction.
        """
        places = tuple(partitions)
        before = self._open_on(places)
        if not before:
            return ()
        right = Right("Describe", "transactional-id", "*")
        ask = partial(self._admin.list_transactions, producer_id_filters=sorted({each[0] for _, each in before}))
        listed = chain.from_iterable(self._ask(ask, "list the transactions", right).values())
        ended = {each.producer_id: each for each in listed if str(each.state.value) in _OVER}
        return tuple(
            LeftOpen(place, *producer, known.transactional_id, str(known.state.value) == "CompleteCommit")
            for place, producer in sorted(before & self._open_on(places))
            if (known := ended.get(producer[0])) is not None
        )

    def end_left(self, left: LeftOpen) -> bool:
        """Write the marker that a coordinator failed to write; returns False if the transaction is no longer open."""
        return self._end_this(left, commit=left.committed)

    def _open_on(self, partitions: Iterable[Partition]) -> set[tuple[Partition, tuple[int, int, int]]]:
        by_topic: dict[str, list[int]] = {}
        for each in partitions:
            by_topic.setdefault(each.topic, []).append(each.number)
        return set(chain.from_iterable(self._producers(topic, numbers) for topic, numbers in by_topic.items()))

    def end(self, partition: Partition, producer_id: int, *, commit: bool) -> None:
        """End the producer's open transaction on the partition by writing its missing marker (commit or abort).

        Does nothing if the producer has no open transaction there.
        """
        for (_, producer), known in self._producers(partition.topic, [partition.number]).items():
            if producer[0] == producer_id:
                self._write_marker(partition, known, commit=commit)

    def _write_marker(self, place: Partition, producer: Any, *, commit: bool) -> None:
        from kafka import TopicPartition
        from kafka.admin._transactions import AbortTransactionSpec
        from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

        # The marker needs the coordinator epoch of the producer's last marker: partitions refuse a smaller epoch.
        epoch = max(0, producer.coordinator_epoch)
        spec = AbortTransactionSpec(TopicPartition(*place), producer.producer_id, producer.producer_epoch, epoch)
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=spec.producer_id,
                    producer_epoch=spec.producer_epoch,
                    transaction_result=commit,
                    topics=[marker.WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.number])],
                    coordinator_epoch=epoch,
                )
            ]
        )

        # Private methods are used, because kafka-python's public method can only write abort markers.
        async def send() -> None:
            leaders = await self._admin._async_get_leader_for_partitions([spec.topic_partition])
            response = await self._admin._manager.send(request, node_id=next(iter(leaders)))
            self._admin._abort_transaction_process_response(response, spec)

        what = f"end the transaction of producer {spec.producer_id} on {place.topic}[{place.number}]"
        self._ask(lambda: self._admin._manager.run(send), what, Right("Alter", "cluster"))

    def _producers(self, topic: str, numbers: list[int]) -> dict[tuple[Partition, tuple[int, int, int]], Any]:
        """The open transactions that the partitions' leaders report.

        Maps (partition, (producer id, epoch, first offset)) to the leader's description of the producer.
        """
        from kafka import TopicPartition

        places = [TopicPartition(topic, number) for number in numbers]
        right = Right("Read", "topic", topic)
        what = f"list the producers of topic {topic}"
        answer = self._ask(lambda: self._admin.describe_producers(places), what, right)
        return {
            (
                Partition(place.topic, place.partition),
                (each.producer_id, each.producer_epoch, each.current_transaction_start_offset),
            ): each
            for place, state in answer.items()
            for each in state.active_producers
            if each.current_transaction_start_offset >= 0
        }

    def _coordinated(self, producers: set[int]) -> dict[tuple[int, Partition], tuple[str, Any]]:
        """Open transactions that coordinators report: (producer id, partition) -> (transactional id, description)."""
        right = Right("Describe", "transactional-id", "*")
        ask = partial(self._admin.list_transactions, producer_id_filters=sorted(producers))
        listed = self._ask(ask, "list the transactions", right)
        known = chain.from_iterable(listed.values())
        names = [each.transactional_id for each in known if each.state.value not in _OVER]
        described: dict[str, Any] = {}
        for name in names:
            ask = partial(self._admin.describe_transactions, [name])
            # Errors are ignored, because the transaction may have ended, or this client may have no right to see it.
            with suppress(KafkaFailed):
                right = Right("Describe", "transactional-id", name)
                described.update(self._ask(ask, f"describe transaction {name}", right))
        return {
            (each.producer_id, Partition(place.topic, place.partition)): (name, each)
            for name, each in described.items()
            for place in each.topic_partitions
        }

    def _ask(self, ask: Callable[[], Answer], what: str, right: Right) -> Answer:
        """Make a request; retry it while a leader or coordinator moves to another broker, up to the timeout."""
        from kafka import errors

        def moving(failure: Exception) -> bool:
            kind = type(failure).__name__
            return kind in _NOT_THERE_YET or (isinstance(failure, errors.RetriableError) and kind not in _AWAY)

        try:
            return retry(ask, moving, self._timeout_s)
        except errors.KafkaError as failure:
            raise self._failure(failure, what, right) from failure

    def _failure(self, failure: Exception, what: str, right: Right) -> KafkaFailed:
        kind = type(failure).__name__
        if kind in _REFUSED:
            return refused(what, right, self._principal)
        if kind in _NOT_ADMITTED:
            return BrokerUnreachable(
                f"Kafka did not authenticate {self._principal}: {kind}.",
                action="Correct the `sasl.*` settings in `HOLDFAST_KAFKA__CLIENT_CONFIG`.",
            )
        if kind in _AWAY | _NOT_THERE_YET or getattr(failure, "retriable", False):
            return BrokerUnreachable(
                f"Kafka at {self._bootstrap} did not {what} within {self._timeout_s:g} s: {kind}.",
                action="Check that the brokers run, their address, the network and the security settings.",
                bootstrap=self._bootstrap,
            )
        return KafkaFailed(
            f"Kafka refused to {what}: {kind}.", action="Check the name, and the rights of this client.", error=kind
        )
