"""The producer of the in-memory cluster, with or without transactions. ``Network.fate`` says which requests succeed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.infra.kafka.errors import BrokerUnreachable, OutcomeUnknown, TransactionAborted
from holdfast.infra.kafka.records import GroupMetadata, Headers, Partition
from holdfast.processors.engine.runtime.ports import TransactionProducer
from holdfast.processors.testing.broker import Broker
from holdfast.processors.testing.groups import Group
from holdfast.processors.testing.network import Fate
from holdfast.processors.testing.process import Process

#: Maximum seconds that a transactional request waits for its answer: twice the transaction timeout, as in the real
#: producer.
ANSWER_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.05
_WAIT_STEP_S = 1.0


class ClientRaised(Exception):
    """Raised by the simulated network, to test an exception that the client library does not document."""


@dataclass(slots=True)
class _Queued:
    partition: Partition
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    on_delivered: Callable[[int], None] | None


class InMemoryProducer(TransactionProducer):
    """A producer, which sends in transactions if it has a ``transactional_id``, otherwise without transactions."""

    def __init__(self, broker: Broker, process: Process, transactional_id: str | None) -> None:
        self._broker = broker
        self._process = process
        self._id = transactional_id
        self._producer_id, self._epoch = -1, -1
        self._queue: list[_Queued] = []
        self._sent = False
        self.on_wait: Callable[[], None] = lambda: None

    @property
    def doubts(self) -> int:  # type: ignore[override]
        return self._broker.network.outages

    def init(self, timeout_s: float) -> None:
        if self._id is None:
            return
        self._process.point("init:before")
        deadline = self._broker.clock.monotonic() + timeout_s
        told_at = self._broker.clock.monotonic()
        while True:
            given = self._broker.transactions.register(self._id) if self._broker.network.brokers_up else None
            if given is not None:
                break
            now = self._broker.clock.monotonic()
            if now >= deadline:
                raise BrokerUnreachable(
                    f"The transaction coordinator did not answer within {timeout_s:g} s.",
                    action="Check that the broker runs and is reachable.",
                )
            if now - told_at >= _WAIT_STEP_S:
                told_at = now
                self.on_wait()
            self._process.sleep(_LOOK_EVERY_S)
        self._producer_id, self._epoch = given
        self._process.point("init:after")

    def begin(self) -> None:
        """Starts a transaction. The coordinator knows the transaction only after its first record."""
        self._sent = False

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        *,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Headers = None,
        on_delivered: Callable[[int], None] | None = None,
    ) -> None:
        key, value = _taken("key", key), _taken("value", value)
        place = Partition(topic, partition) if partition >= 0 else self._broker.partition_for(topic, key)
        self._queue.append(_Queued(place, key, value, timestamp_ms, headers, on_delivered))

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
        raises = self._broker.network.fate(self._process.name, "queue") is Fate.RAISES
        for index, (value, key) in enumerate(zip(values, keys, strict=True)):
            if raises and index == len(values) // 2:
                raise ClientRaised("the client library raised while it took records")
            self.produce(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamps[index] if timestamps else 0,
                headers=headers.get(index) if headers else None,
            )

    def poll(self) -> None:
        """Sends the queued records; in the real client library, a background thread does this."""
        if self._queue and self._broker.network.brokers_up:
            self._process.point("produce:before")
            self._deliver()

    def flush(self, timeout_s: float) -> None:
        self._process.point("flush:before")
        fate = self._broker.network.fate(self._process.name, "produce") if self._queue else Fate.OK
        if fate in (Fate.LOST, Fate.DELAYED):
            if fate is Fate.DELAYED:
                late, self._queue = self._queue, []
                self._broker.clock.call_later(self._broker.network.delay_s, lambda: self._deliver_late(late))
            self._unanswered(timeout_s, "flush")
        deadline = self._broker.clock.monotonic() + timeout_s
        self._deliver(len(self._queue) // 2)
        if self._queue:
            self._process.point("flush:half")
        self._deliver()
        while self._queue:
            if self._broker.clock.monotonic() >= deadline:
                self._unanswered(0.0, "flush")
            self._process.sleep(_LOOK_EVERY_S)
            self.on_wait()
            self._deliver()
        if fate is Fate.REPLY_LOST:
            self._unanswered(timeout_s, "flush")
        self._process.point("flush:after")

    def send_offsets(self, offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
        self._process.point("send_offsets:before")
        group, member_id, generation = metadata
        sent = dict(offsets)
        self._request("send_offsets", lambda: self._add_offsets(group, member_id, generation, sent))
        self._process.point("send_offsets:after")

    def commit(self) -> None:
        """Sends all queued records, then commits the transaction."""
        self._process.point("commit:before")
        if self._queue:
            self.flush(ANSWER_TIMEOUT_S)
        sent, self._sent = self._sent, False
        self._request(
            "commit", lambda: self._end(sent, commit=True), between=lambda: self._process.point("commit:sent")
        )
        self._process.point("commit:after")

    def abort(self) -> None:
        self._process.point("abort:before")
        self._queue.clear()
        sent, self._sent = self._sent, False
        self._request("abort", lambda: self._end(sent, commit=False))
        self._process.point("abort:after")

    def close(self) -> None:
        """Drops all queued records."""
        self._queue.clear()

    # -- internal methods ------------------------------------------------------------------------------------------

    def _request(self, name: str, effect: Callable[[], bool], between: Callable[[], None] = lambda: None) -> None:
        """Sends a request. Retries while ``effect`` returns False, because the coordinator is then busy."""
        fate = self._broker.network.fate(self._process.name, name)
        if fate is Fate.DELAYED:
            self._broker.clock.call_later(self._broker.network.delay_s, lambda: _quietly(effect))
        if fate in (Fate.LOST, Fate.DELAYED):
            self._unanswered(ANSWER_TIMEOUT_S, name)

        def done() -> bool:
            return self._broker.network.brokers_up and effect()

        if not self._broker.passes(self._process, done, ANSWER_TIMEOUT_S, meanwhile=self.on_wait):
            self._unanswered(0.0, name)
        between()
        if fate is Fate.REPLY_LOST:
            self._unanswered(ANSWER_TIMEOUT_S, name)

    def _unanswered(self, timeout_s: float, what: str) -> None:
        waited = 0.0
        while waited < timeout_s:
            self._process.sleep(_WAIT_STEP_S)
            self.on_wait()
            waited += _WAIT_STEP_S
        raise OutcomeUnknown(
            f"Told to {what}, Kafka gave no answer in time.",
            action="Nothing: the engine reads the committed offsets and continues there.",
        )

    def _add_offsets(self, group: Group, member_id: str, generation: int, offsets: Mapping[Partition, int]) -> bool:
        assert self._id is not None
        refusal = group.refusal(member_id, generation)
        if refusal is not None:
            raise TransactionAborted(
                f"Told to send offsets, Kafka answered {refusal}; the transaction must be aborted.",
                action="Nothing is lost: the batch is processed again.",
                error=refusal,
            )
        name = next(name for name, known in self._broker.groups.items() if known is group)
        if not self._broker.transactions.add_offsets(self._id, self._epoch, name, offsets):
            return False
        group.pending.setdefault(self._producer_id, {}).update(offsets)
        self._sent = True
        return True

    def _end(self, sent: bool, *, commit: bool) -> bool:
        assert self._id is not None
        if sent or self._broker.transactions.is_open(self._id, self._epoch):
            self._broker.transactions.end(self._id, self._epoch, commit=commit)
        return True

    def _deliver(self, count: int | None = None) -> None:
        """Writes queued records to their partitions, in order, until the coordinator refuses a record."""
        if not self._broker.network.brokers_up:
            return
        done = 0
        for queued in self._queue[:count]:
            if not self._arrives(queued):
                break
            done += 1
        del self._queue[:done]

    def _deliver_late(self, late: list[_Queued]) -> None:
        _quietly(lambda: all(self._arrives(queued) for queued in late))

    def _arrives(self, queued: _Queued) -> bool:
        if not self._broker.takes_time(queued.partition.topic, queued.timestamp_ms):
            raise TransactionAborted(
                f"Kafka did not accept a record for {queued.partition.topic}[{queued.partition.number}]: "
                "INVALID_TIMESTAMP.",
                action="Nothing to do: the batch is processed again.",
                error="INVALID_TIMESTAMP",
            )
        producer = None
        if self._id is not None:
            if not self._broker.transactions.add_partition(self._id, self._epoch, queued.partition):
                return False
            producer = self._producer_id
            self._sent = True
        offset = self._broker.append(
            queued.partition, queued.key, queued.value, queued.timestamp_ms, queued.headers, producer
        )
        if queued.on_delivered is not None:
            queued.on_delivered(offset)
        return True


def _taken(part: str, given: object) -> bytes | None:
    """Converts a key or a value to bytes, as the client library does: bytes stay unchanged, a text becomes UTF-8."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a record's {part} is {type(given).__name__}, expected bytes or str")


def _quietly(effect: Callable[[], bool]) -> None:
    """Executes a request that arrives after the sender's timeout.

    Ignores its errors, because the sender no longer waits for an answer.
    """
    try:
        effect()
    except Exception:
        return
