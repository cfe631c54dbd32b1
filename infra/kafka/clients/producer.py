"""The engine's producer: transactional for exactly-once, idempotent for at-least-once.

Invariants:
    - Every failure is raised as one of: TransactionAborted, ProducerFenced, OutcomeUnknown, KafkaFailed.
    - If a request of the present producer epoch may still arrive at the broker, the next transaction begins in a new
      epoch. Otherwise the late request could end the next transaction.
    - After OutcomeUnknown, the caller must create a new producer with the same transactional id. Otherwise, with the
      first version of Kafka's transaction protocol, a delayed EndTxn request could end a later transaction.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from operator import length_hint
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from holdfast.infra.kafka.clients.client import library_logger
from holdfast.infra.kafka.clients.guarded_calls import WAIT_STEP_S, CallHangs, GuardedCalls
from holdfast.infra.kafka.clients.rights import Kind, not_writable, principal_of, refusal_of
from holdfast.infra.kafka.errors import (
    READS_ON,
    AccessRefused,
    BrokerUnreachable,
    KafkaFailed,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from holdfast.infra.kafka.records import GroupMetadata, Headers, NotedOffset, Partition
from holdfast.infra.log import get_logger
from holdfast.infra.waiting import Deadline

_log = get_logger("kafka.producer")

#: Seconds after which the broker aborts an open transaction.
TRANSACTION_S = 15.0
#: Maximum ``batch.size``, bytes. A topic with the default ``max.message.bytes`` accepts batches of this size.
BATCH_BYTES_MAX = 1_000_000

#: ``linger.ms`` outside of transactions: maximum time that a record waits for a fuller batch, milliseconds.
LINGER_MS = 5
#: ``linger.ms`` in transactions. It is longer, because readers see no record before the commit, and a flush sends
#: records without this wait. Larger batches save work of client and broker.
LINGER_IN_TRANSACTIONS_MS = 25

#: Function that gets the offset of a delivered record.
OnDelivered = Callable[[int], None]

#: Seconds after the timeout of a librdkafka call. A call that has not returned by then is abandoned.
HANG_AFTER_S = 5.0
#: Maximum seconds that an abort may take. After a broker's restart, librdkafka can hold the request for half a minute.
#: A new producer is faster: it connects at once, and its start aborts the transaction.
ABORT_WITHIN_S = 5.0

#: ``retry.backoff.ms``. If an answer is lost, librdkafka repeats the request by itself, after at least 80 % of this
#: time.
RETRY_BACKOFF_MS = 500
#: Maximum seconds for a step of a commit. If a step takes longer, librdkafka may have sent its request twice, and the
#: second copy may still arrive.
DOUBTFUL_AFTER_S = 0.4
#: Pause before the retry of a transactional request, seconds.
RETRY_EVERY_S = 0.02

_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.FENCED_INSTANCE_ID,
)
_TWO_PROCESSES = "Nothing is lost. Make sure that no two processes run with the same slot."
#: Errors after which a retry is useless, because Kafka would refuse the same record each time.
_FOR_GOOD = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
)


class EngineProducer:
    """The engine's producer; implements the protocol ``TransactionProducer``.

    ``config`` are librdkafka settings that override the defaults in this class. ``transactional_id=None`` means
    at-least-once. The broker aborts transactions that are open for longer than ``transaction_timeout_s`` seconds.
    ``init`` and ``begin`` also raise BrokerUnreachable.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str | None,
        *,
        config: Mapping[str, Any] | None = None,
        transaction_timeout_s: float = TRANSACTION_S,
    ) -> None:
        self._transactional = transactional_id is not None
        self._timeout_s = transaction_timeout_s
        #: The first record that Kafka refused in the present transaction, as its error and its partition; None if Kafka
        #: refused no record.
        self._refused: tuple[KafkaError, str] | None = None
        self._written: set[str] = set()
        self._calls = GuardedCalls(f"transactions-{transactional_id}")
        self.doubts = 0
        #: Function that is called about once a second while a request waits for its answer.
        self.on_wait: Callable[[], None] = lambda: None
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_IN_TRANSACTIONS_MS if self._transactional else LINGER_MS,
            "batch.num.messages": 10_000,
            "batch.size": BATCH_BYTES_MAX,
            "queue.buffering.max.messages": 500_000,
            "compression.type": "lz4",
            # The partitioner of Java and Spark, so that a key gets the same partition from all producers.
            "partitioner": "murmur2_random",
            "reconnect.backoff.max.ms": 1000,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            "error_cb": self._on_error,
            **(config or {}),
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
            settings.setdefault("transaction.timeout.ms", int(transaction_timeout_s * 1000))
            self._timeout_s = float(settings["transaction.timeout.ms"]) / 1000
        else:
            settings["on_delivery"] = self._on_delivery
            # Outside of transactions, successful deliveries need no report, because their offsets are not needed.
            settings.setdefault("delivery.report.only.error", True)
        self._doubtful = False
        self._init_timeout_s = 2 * self._timeout_s
        self._settings = settings
        self._producer = Producer(settings, logger=library_logger())

    def init(self, timeout_s: float) -> None:
        if not self._transactional:
            return
        self._init_timeout_s = timeout_s
        deadline = Deadline(timeout_s)
        while True:
            try:
                self._call(lambda: self._producer.init_transactions(WAIT_STEP_S), WAIT_STEP_S, "start the producer")
                return
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and not deadline.passed:
                    self.on_wait()
                    continue
                if error.retriable() or error.code() == KafkaError._TIMED_OUT:
                    raise BrokerUnreachable(
                        f"The transaction coordinator did not answer within {timeout_s:g} s: {error.str()}.",
                        action="Check that the brokers run, and that this machine reaches them.",
                    ) from failure
                raise self._translate(error, "start the transactional producer") from failure

    def begin(self) -> None:
        if self._doubtful:
            _log.info("a request of the last commit may arrive twice: the producer takes a new epoch")
            self._producer = Producer(self._settings, logger=library_logger())
            self.init(self._init_timeout_s)
            self._doubtful = False
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            raise self._translate(failure.args[0], "begin a transaction") from failure

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Headers = None,
        on_delivered: OnDelivered | None = None,
    ) -> None:
        self._written.add(topic)
        options: dict[str, Any] = {}
        if timestamp_ms:
            options["timestamp"] = timestamp_ms
        if headers:
            options["headers"] = headers
        if on_delivered is not None:
            options["on_delivery"] = _offset_of(on_delivered, self._on_delivery)
        while True:
            try:
                self._producer.produce(topic, value, key, partition, **options)
                return
            except BufferError:
                self._serve(lambda: self._producer.poll(0.1))
            except KafkaException as failure:
                raise self._not_taken(failure.args[0], topic) from failure

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
        if headers:
            for index, (value, key) in enumerate(zip(values, keys, strict=True)):
                time_ms = timestamps[index] if timestamps is not None else 0
                self.produce(topic, value, key, partition=partition, timestamp_ms=time_ms, headers=headers.get(index))
            return
        self._written.add(topic)
        produce, first, count = self._producer.produce, 0, len(values)
        while first < count:
            left = iter(values[first:])
            times = repeat(0) if timestamps is None else islice(timestamps, first, None)
            try:
                # The arguments are positional, because keywords would double the cost of a call.
                rest = (left, islice(keys, first, None), repeat(partition), repeat(None), repeat(None), times)
                deque(map(produce, repeat(topic), *rest), maxlen=0)
                return
            except BufferError:
                # The queue is full, so the last record that was taken from the iterator was not queued. The loop
                # continues with this record.
                first = count - length_hint(left) - 1
                self._serve(lambda: self._producer.poll(0.1))
            except KafkaException as failure:
                raise self._not_taken(failure.args[0], topic) from failure

    def poll(self) -> None:
        self._serve(lambda: self._producer.poll(0))

    def flush(self, timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        left = self._flush_step()
        while left and self._refused is None and not deadline.passed:
            self.on_wait()
            left = self._flush_step()
        if self._refused is not None:
            raise self._refusal()
        if left:
            raise OutcomeUnknown(
                f"Kafka did not acknowledge {left} records within {timeout_s:g} s.",
                action=READS_ON,
            )

    def _flush_step(self) -> int:
        return int(self._serve(lambda: self._producer.flush(WAIT_STEP_S)))

    def _serve(self, call: Callable[[], int]) -> int:
        """Make a call in which librdkafka may run delivery callbacks, and translate its errors."""
        try:
            return call()
        except KafkaException as failure:
            raise self._translate(failure.args[0], "deliver the records") from failure
        except SystemError as clash:
            # A delivery callback ran while librdkafka raised a fatal error. `_fatal` reads this fatal error.
            raise self._fatal("deliver the records") from clash

    def _not_taken(self, error: KafkaError, topic: str) -> KafkaFailed:
        """The error for a record that librdkafka did not take into its queue, for example because it is too large."""
        if error.code() == KafkaError._FATAL:
            return self._fatal(f"send a record to {topic}")
        if self._transactional and error.code() == KafkaError._STATE:
            # The transaction has failed in the background. The delivery reports contain the reason, so read them.
            self._serve(lambda: self._producer.poll(0))
            if self._refused is not None:
                return self._refusal()
            try:
                # The transaction has failed already, so this commit always fails. Its error contains the reason.
                self._producer.commit_transaction(0)
            except KafkaException as reason:
                error = reason.args[0]
            if error.code() not in _FENCED and error.code() not in _FOR_GOOD:
                return _aborted(f"The transaction failed before a record for {topic} was sent", error)
        return self._translate(error, f"send a record to {topic}", topic)

    def _refusal(self) -> KafkaFailed:
        """The error for the first record that Kafka refused; also resets ``_refused`` to None."""
        assert self._refused is not None
        (error, place), self._refused = self._refused, None
        if error.code() in _FENCED:
            return self._translate(error, "deliver the records")
        if not error.fatal() and error.code() not in _FOR_GOOD:
            return _aborted(f"Kafka did not accept a record for {place}", error)
        missing = self._missing_right(error, f"write to {place}", place.rpartition("[")[0])
        return missing or _refused_for_good(f"Kafka refused a record for {place}:", error)

    def _fatal(self, what: str) -> KafkaFailed:
        """The error to raise after a fatal error, from which the producer can't recover.

        librdkafka reports the reason only in the error of its next call, so this method makes a call.
        """
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._FATAL:
                return self._translate(failure.args[0], what)
        return ProducerFenced(
            f"The producer failed for good when it was asked to {what}.",
            action=_TWO_PROCESSES,
        )

    def send_offsets(self, offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
        places = [
            TopicPartition(part.topic, part.number, int(offset), offset.note if isinstance(offset, NotedOffset) else "")
            for part, offset in offsets.items()
        ]
        self._until_answered(
            lambda left_s: self._producer.send_offsets_to_transaction(places, metadata, left_s), "send the offsets"
        )

    def commit(self) -> None:
        self._until_answered(self._producer.commit_transaction, "commit the transaction")

    def abort(self) -> None:
        self._until_answered(self._producer.abort_transaction, "abort the transaction", within_s=ABORT_WITHIN_S)
        self._refused = None

    def close(self) -> None:
        self._calls.close()
        try:
            self._producer.purge()
            self._producer.flush(0.2)
        # `flush` also fails for a producer that a newer producer has fenced. No record is lost by ignoring the error,
        # because `purge` has already emptied the queue.
        except (KafkaException, SystemError) as failure:
            _log.debug("a producer was closed after a fatal error", error=str(failure))

    def _until_answered(self, call: Callable[[float], None], what: str, *, within_s: float | None = None) -> None:
        # Without `within_s`, wait until the transaction's timeout; then the broker has aborted the transaction.
        deadline = Deadline(self._timeout_s if within_s is None else within_s)
        while True:
            left_s = max(1.0, deadline.left_s)
            try:
                self._in_time(partial(call, left_s), left_s, what)
                return
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and not error.txn_requires_abort() and not deadline.passed:
                    self.on_wait()
                    time.sleep(RETRY_EVERY_S)
                    continue
                raise self._translate(error, what) from failure

    def _in_time(self, call: Callable[[], None], timeout_s: float, what: str) -> None:
        """Make a call, and mark the producer's epoch as doubtful if librdkafka may have sent the request twice.

        librdkafka may have done this if the call took longer than ``DOUBTFUL_AFTER_S``.
        """
        began = time.monotonic()
        try:
            self._call(call, timeout_s, what)
        finally:
            if time.monotonic() - began >= DOUBTFUL_AFTER_S:
                self._doubtful = True
                self.doubts += 1

    def _call(self, call: Callable[[], None], timeout_s: float, what: str) -> None:
        """Make a call that has its own timeout; abandon the call ``HANG_AFTER_S`` seconds after this timeout."""
        try:
            self._calls.run(call, limit_s=timeout_s + HANG_AFTER_S, on_wait=self.on_wait)
        except CallHangs as hangs:
            raise OutcomeUnknown(
                f"The client library did not return within {timeout_s + HANG_AFTER_S:.0f} s when asked to {what}.",
                action="Nothing to do: the engine takes a new producer, and reads what was committed.",
            ) from hangs

    def _translate(self, error: KafkaError, what: str, topic: str = "") -> KafkaFailed:
        missing = self._missing_right(error, what, topic)
        if missing is not None:
            return missing
        seen = f"{error.name()} ({error.str()})"
        if error.code() in _FENCED:
            return ProducerFenced(
                f"A newer producer took over before this one could {what}: {seen}.",
                action=_TWO_PROCESSES,
                error=error.name(),
            )
        if error.code() in _FOR_GOOD:
            return _refused_for_good(f"Kafka refused to {what}:", error)
        if error.txn_requires_abort():
            return _aborted(f"Kafka failed to {what}, so the transaction must be aborted", error)
        if error.retriable() or error.code() in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
            return OutcomeUnknown(
                f"Kafka gave no answer in time to the request to {what}: {seen}.",
                action=READS_ON,
                error=error.name(),
            )
        return KafkaFailed(
            f"Kafka refused to {what}: {seen}.",
            action="Compare the record's size with the topic's `max.message.bytes`; check the rights of this client.",
            error=error.name(),
        )

    def _missing_right(self, error: KafkaError, what: str, topic: str) -> AccessRefused | None:
        if not topic and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            topic = next(iter(not_writable(self._settings, self._written)), "")
        names: dict[Kind, str] = {"topic": topic, "transactional-id": str(self._settings.get("transactional.id", ""))}
        return refusal_of(error, what, principal_of(self._settings), names=names)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            self.doubts += 1

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        if error is not None and self._refused is None and error.code() not in purged:
            self._refused = (error, f"{message.topic()}[{message.partition()}]")


def _aborted(seen: str, error: KafkaError) -> TransactionAborted:
    action = "Nothing to do: the batch is processed again."
    return TransactionAborted(f"{seen}: {error.name()} ({error.str()}).", action=action, error=error.name())


def _refused_for_good(begin: str, error: KafkaError) -> KafkaFailed:
    return KafkaFailed(
        f"{begin} {error.name()} ({error.str()}).",
        action="Make the value smaller, or raise the topic's `max.message.bytes`. Check the topic's policies and the "
        "rights of this client. Then restart the processor; nothing is lost.",
        error=error.name(),
    )


def _offset_of(
    on_offset: OnDelivered, failed: Callable[[KafkaError | None, Message], None]
) -> Callable[[KafkaError | None, Message], None]:
    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset() if error is None else None
        if offset is not None:
            on_offset(offset)
        else:
            # The offset is unknown, because a broker acknowledges a duplicate of an earlier record without an offset.
            failed(error if error is not None else KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER), message)

    return delivered
