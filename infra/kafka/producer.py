"""The engine's producer: transactional for exactly-once, idempotent for at-least-once.

Invariants:
    - Every failure leaves here as one of: TransactionAborted, ProducerFenced, OutcomeUnknown, KafkaFailed.
    - No transaction begins in an epoch of which a request may still arrive: it could end that transaction.
    - After OutcomeUnknown this producer is of no more use: make a new one with the same transactional id
      (a delayed EndTxn of the first protocol version could end a later transaction).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from operator import length_hint
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from holdfast.infra.kafka.client import library_logger
from holdfast.infra.kafka.errors import (
    AccessRefused,
    BrokerUnreachable,
    KafkaFailed,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from holdfast.infra.kafka.guarded_calls import WAIT_STEP_S, CallHangs, GuardedCalls
from holdfast.infra.kafka.records import GroupMetadata, Headers, Partition
from holdfast.infra.kafka.rights import Kind, not_writable, principal_of, refusal_of

_log = structlog.get_logger("kafka.producer")

#: A batch is no larger than this; every topic takes so much unless its own limit is lower.
BATCH_BYTES_MAX = 1_000_000

#: How long a record may wait for others, in milliseconds. Nobody sees a record of a transaction before its end, and a
#: flush waits for nothing: fuller batches cost both sides less.
LINGER_MS = 5
LINGER_IN_TRANSACTIONS_MS = 25

#: Told with the offset that a record got.
OnDelivered = Callable[[int], None]

#: A call that has not come back so many seconds after its own timeout is given up.
HANG_AFTER_S = 5.0
#: An abort is waited for so long. After a broker's restart the library can keep it for half a minute and more in the
#: queue of a connection that it does not open; a new producer is heard at once, and its start ends what is open.
ABORT_WITHIN_S = 5.0

#: The library sends a request again by itself when its answer is lost, after at least 0.8 of this; it tells nobody.
RETRY_BACKOFF_MS = 500
#: A step of a commit that took so many seconds may have been sent twice, and one of the two may still be under way.
DOUBTFUL_AFTER_S = 0.4

_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.FENCED_INSTANCE_ID,
)
#: Sent again, these records would be refused again.
_FOR_GOOD = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
)


class EngineProducer:
    """Sends outputs, changelog records and offsets.

    Args:
        bootstrap: Kafka's bootstrap servers.
        transactional_id: Stable for one worker slot; None for at-least-once.
        config: Further library settings; they win over ours.
        transaction_timeout_s: The broker aborts a transaction that is open for longer.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str | None,
        *,
        config: Mapping[str, Any] | None = None,
        transaction_timeout_s: float = 15.0,
    ) -> None:
        self._transactional = transactional_id is not None
        self._timeout_s = transaction_timeout_s
        #: The first record that was refused since the transaction began: why, and what it was for.
        self._refused: tuple[KafkaError, str] | None = None
        self._written: set[str] = set()
        self._calls = GuardedCalls(f"transactions-{transactional_id}")
        #: Called about once a second while a request waits for an answer.
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
            "partitioner": "murmur2_random",
            "reconnect.backoff.max.ms": 1000,
            "retry.backoff.ms": RETRY_BACKOFF_MS,
            **(config or {}),
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
            settings.setdefault("transaction.timeout.ms", int(transaction_timeout_s * 1000))
            self._timeout_s = float(settings["transaction.timeout.ms"]) / 1000
        else:
            settings["on_delivery"] = self._on_delivery
            # What arrived needs no call of ours, and offsets are told in transactions only.
            settings.setdefault("delivery.report.only.error", True)
        self._doubtful = False
        self._init_timeout_s = 2 * self._timeout_s
        self._settings = settings
        self._producer = Producer(settings, logger=library_logger())

    def init(self, timeout_s: float) -> None:
        """Abort what a former holder of this transactional id left open, and fence it.

        Raises:
            BrokerUnreachable: No answer within ``timeout_s``.
        """
        if not self._transactional:
            return
        self._init_timeout_s = timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._call(lambda: self._producer.init_transactions(WAIT_STEP_S), WAIT_STEP_S, "start the producer")
                return
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    self.on_wait()
                    continue
                if error.retriable() or error.code() == KafkaError._TIMED_OUT:
                    raise BrokerUnreachable(
                        f"The transaction coordinator did not answer within {timeout_s:g} s: {error.str()}.",
                        action="Check that the broker runs and is reachable.",
                    ) from failure
                raise self._translate(error, "start the transactional producer") from failure

    def begin(self) -> None:
        """Open a transaction; in a new epoch when a request of the last one may still be under way.

        Raises:
            ProducerFenced, BrokerUnreachable, KafkaFailed: As ``init`` does.
        """
        if self._doubtful:
            _log.info("a step of the last commit was slow, and may arrive again: going on in a new epoch")
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
        """Queue one record; partition -1 leaves the choice to the key (murmur2, as Java and Spark do).

        ``on_delivered`` is told the record's offset, in a transaction.

        Raises:
            KafkaFailed: The record can't be sent at all (too large, topic unknown).
        """
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
        """Queue many records, in order; headers by index, of those that have any.

        Raises:
            KafkaFailed: A record can't be sent at all (too large, topic unknown); those before it are queued.
        """
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
                # By position: names would cost as much as the call does.
                rest = (left, islice(keys, first, None), repeat(partition), repeat(None), repeat(None), times)
                deque(map(produce, repeat(topic), *rest), maxlen=0)
                return
            except BufferError:
                first = count - length_hint(left) - 1
                self._serve(lambda: self._producer.poll(0.1))
            except KafkaException as failure:
                raise self._not_taken(failure.args[0], topic) from failure

    def poll(self) -> None:
        """Serve delivery reports."""
        self._serve(lambda: self._producer.poll(0))

    def flush(self, timeout_s: float) -> None:
        """Wait until every queued record is acknowledged.

        Raises:
            OutcomeUnknown: Some were not within ``timeout_s``.
            TransactionAborted: A record was refused for a reason that may pass.
            KafkaFailed: A record was refused for good.
        """
        deadline = time.monotonic() + timeout_s
        left = self._flush_step()
        while left and self._refused is None and time.monotonic() < deadline:
            self.on_wait()
            left = self._flush_step()
        if self._refused is not None:
            raise self._refusal()
        if left:
            raise OutcomeUnknown(
                f"{left} records were not acknowledged within {timeout_s:g} s.",
                action="The engine finds out what was committed and goes on from there.",
            )

    def _flush_step(self) -> int:
        return int(self._serve(lambda: self._producer.flush(WAIT_STEP_S)))

    def _serve(self, call: Callable[[], int]) -> int:
        """Let the library hand out delivery reports."""
        try:
            return call()
        except KafkaException as failure:
            raise self._translate(failure.args[0], "deliver the records") from failure
        except SystemError as clash:
            # It called our report with its own fatal error already raised: ask it for that error.
            raise self._fatal("deliver the records") from clash

    def _not_taken(self, error: KafkaError, topic: str) -> KafkaFailed:
        """Why a record was not even queued."""
        if error.code() == KafkaError._FATAL:
            return self._fatal(f"send a record to {topic}")
        if self._transactional and error.code() == KafkaError._STATE:
            # The transaction failed in the background; the reports have the reason.
            self._serve(lambda: self._producer.poll(0))
            if self._refused is not None:
                return self._refusal()
            try:
                self._producer.commit_transaction(0)  # a failed transaction can't be committed: this tells why
            except KafkaException as reason:
                error = reason.args[0]
            if error.code() not in _FENCED and error.code() not in _FOR_GOOD:
                return TransactionAborted(
                    f"Told to send a record to {topic}, the client answered that the transaction has failed: "
                    f"{error.name()} ({error.str()}).",
                    action="Nothing is lost: the batch is processed again.",
                    error=error.name(),
                )
        return self._translate(error, f"send a record to {topic}", topic)

    def _refusal(self) -> KafkaFailed:
        """The error for the first refused record; forgets it."""
        assert self._refused is not None
        (error, place), self._refused = self._refused, None
        if error.code() in _FENCED:
            return self._translate(error, "deliver the records")
        if not error.fatal() and error.code() not in _FOR_GOOD:
            return TransactionAborted(
                f"A record for {place} was not delivered: {error.name()} ({error.str()}).",
                action="The batch is processed again.",
                error=error.name(),
                place=place,
            )
        missing = self._missing_right(error, f"write to {place}", place.rpartition("[")[0])
        return missing or _refused_for_good(f"Kafka refused a record for {place}:", error)

    def _fatal(self, what: str) -> KafkaFailed:
        """The library only says that it has failed for good: the next call names the reason."""
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._FATAL:
                return self._translate(failure.args[0], what)
        return ProducerFenced(
            f"Told to {what}, the client answered that it can't go on.",
            action="Nothing is lost: a new producer takes over. Let no two processes run with the same slot.",
        )

    def send_offsets(self, offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
        """Make the inputs' next offsets part of the open transaction."""
        places = [TopicPartition(part.topic, part.number, offset) for part, offset in offsets.items()]
        self._until_answered(
            lambda left_s: self._producer.send_offsets_to_transaction(places, metadata, left_s), "send offsets"
        )

    def commit(self) -> None:
        """Commit the open transaction.

        Raises:
            TransactionAborted, ProducerFenced, OutcomeUnknown: See the module.
        """
        self._until_answered(self._producer.commit_transaction, "commit")

    def abort(self) -> None:
        """Abort the open transaction."""
        self._until_answered(self._producer.abort_transaction, "abort", within_s=ABORT_WITHIN_S)
        self._refused = None

    def close(self) -> None:
        """Drop what is queued and go."""
        self._calls.close()
        try:
            self._producer.purge()
            self._producer.flush(0.2)
        except (KafkaException, SystemError) as failure:  # a fenced producer raises even here; it holds nothing
            _log.debug("a producer was closed after a fatal error", error=str(failure))

    def _until_answered(self, call: Callable[[float], None], what: str, *, within_s: float | None = None) -> None:
        # By default as long as a transaction lasts: what is not answered by then, the broker has aborted.
        deadline = time.monotonic() + (self._timeout_s if within_s is None else within_s)
        while True:
            left_s = max(1.0, deadline - time.monotonic())
            try:
                self._in_time(partial(call, left_s), left_s, what)
                return
            except KafkaException as failure:
                error = failure.args[0]
                if error.retriable() and not error.txn_requires_abort() and time.monotonic() < deadline:
                    self.on_wait()
                    time.sleep(0.02)
                    continue
                raise self._translate(error, what) from failure

    def _in_time(self, call: Callable[[], None], timeout_s: float, what: str) -> None:
        """Make a call, and note when it took long enough to have been sent twice, whatever became of it."""
        began = time.monotonic()
        try:
            self._call(call, timeout_s, what)
        finally:
            if time.monotonic() - began >= DOUBTFUL_AFTER_S:
                self._doubtful = True

    def _call(self, call: Callable[[], None], timeout_s: float, what: str) -> None:
        """Make a call that has its own timeout, and hold it to that.

        Raises:
            OutcomeUnknown: It did not come back.
            KafkaException: What the library answered.
        """
        try:
            self._calls.run(call, limit_s=timeout_s + HANG_AFTER_S, on_wait=self.on_wait)
        except CallHangs as hangs:
            raise OutcomeUnknown(
                f"Told to {what}, the client library did not come back within {timeout_s + HANG_AFTER_S:.0f} s.",
                action="The engine goes on with a new producer, and finds out what was committed.",
            ) from hangs

    def _translate(self, error: KafkaError, what: str, topic: str = "") -> KafkaFailed:
        missing = self._missing_right(error, what, topic)
        if missing is not None:
            return missing
        seen = f"{error.name()} ({error.str()})"
        if error.code() in _FENCED:
            return ProducerFenced(
                f"Told to {what}, Kafka answered that a newer producer took over: {seen}.",
                action="Nothing is lost. Make sure that no two processes run with the same slot.",
                error=error.name(),
            )
        if error.code() in _FOR_GOOD:
            return _refused_for_good(f"Told to {what}, Kafka answered", error)
        if error.txn_requires_abort():
            return TransactionAborted(
                f"Told to {what}, Kafka answered {seen}; the transaction must be aborted.",
                action="Nothing is lost: the batch is processed again.",
                error=error.name(),
            )
        if error.retriable() or error.code() in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
            return OutcomeUnknown(
                f"Told to {what}, Kafka gave no answer in time: {seen}.",
                action="The engine finds out what was committed and goes on from there.",
                error=error.name(),
            )
        return KafkaFailed(
            f"Told to {what}, Kafka refused: {seen}.",
            action="Check the record's size against the topic's limit, and the rights of this client.",
            error=error.name(),
        )

    def _missing_right(self, error: KafkaError, what: str, topic: str) -> AccessRefused | None:
        if not topic and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            topic = next(iter(not_writable(self._settings, self._written)), "")
        names: dict[Kind, str] = {"topic": topic, "transactional-id": str(self._settings.get("transactional.id", ""))}
        return refusal_of(error, what, principal_of(self._settings), names=names)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        if error is not None and self._refused is None and error.code() not in purged:
            self._refused = (error, f"{message.topic()}[{message.partition()}]")


def _refused_for_good(begin: str, error: KafkaError) -> KafkaFailed:
    return KafkaFailed(
        f"{begin} {error.name()} ({error.str()}).",
        action="Make the value smaller, or raise the topic's max.message.bytes; check the topic's policies and the "
        "rights of this client; then restart the processor: nothing is lost.",
        error=error.name(),
    )


def _offset_of(
    told: OnDelivered, failed: Callable[[KafkaError | None, Message], None]
) -> Callable[[KafkaError | None, Message], None]:
    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset() if error is None else None
        if offset is not None:
            told(offset)
        else:
            # Answered to be a duplicate of one that had arrived, a record has no offset: what rests on it is not known.
            failed(error if error is not None else KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER), message)

    return delivered
