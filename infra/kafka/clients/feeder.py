"""A producer for use outside of the engine, for source data and archived records. It reports every lost record.

Invariants:
    - ``close`` returns when all in-sync replicas have acknowledged every record; otherwise it raises.
    - The partition is computed from the key in the same way as in Java and Spark. A record without key and partition
      goes to a random partition.
"""

from __future__ import annotations

from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.infra.kafka.clients.client import library_logger
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.records import ClientConfig, Headers

#: Maximum seconds to wait for the acknowledgement of the last records.
FLUSH_TIMEOUT_S = 60.0
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class Feeder:
    """Sends records; used in a ``with`` block. The end of the block waits until all records are acknowledged.

    If the block ends by an error, the records that are still queued are dropped. ``then`` is a sentence that all errors
    contain; it tells the operator how to continue. All methods raise KafkaFailed if Kafka refused a record.
    """

    def __init__(
        self,
        bootstrap: str,
        extra_config: ClientConfig | None = None,
        *,
        then: str = "Then clear the topics, which hold a part of the records, and feed them again.",
    ) -> None:
        self._bootstrap, self._then = bootstrap, then
        self._failed: KafkaError | None = None
        #: Number of records that all in-sync replicas have acknowledged.
        self.acknowledged = 0
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 200_000,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "reconnect.backoff.max.ms": 1000,
            **(extra_config or {}),
            "on_delivery": self._on_delivery,
        }
        self._producer = Producer(settings, logger=library_logger())

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        *,
        partition: int = -1,
        headers: Headers = None,
    ) -> None:
        """Put one record into the producer's queue; waits as long as the queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=timestamp_ms, headers=headers or [])
                return
            except BufferError:
                self.poll(0.1)
            except KafkaException as failure:
                raise self._refused(failure.args[0]) from failure

    def poll(self, wait_s: float = 0.0) -> None:
        """Process the acknowledgements that have arrived; waits at most ``wait_s`` seconds for the first one."""
        self._producer.poll(wait_s)
        if self._failed is not None:
            raise self._refused(self._failed)

    def close(self) -> None:
        """Wait until every record is acknowledged.

        Raises:
            BrokerUnreachable: Records were not acknowledged within ``FLUSH_TIMEOUT_S``.
        """
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        self.poll()
        if left:
            raise BrokerUnreachable(
                f"Kafka at {self._bootstrap} did not acknowledge {left} records within {FLUSH_TIMEOUT_S:g} s.",
                action=f"Check that the brokers run. {self._then}",
                bootstrap=self._bootstrap,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._producer.purge()
            self._producer.flush(0.2)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        elif error.code() not in _PURGED:
            self._failed = error

    def _refused(self, error: KafkaError) -> KafkaFailed:
        return KafkaFailed(
            f"Kafka at {self._bootstrap} refused a record: {error.name()} ({error.str()}).",
            action="Check that the topic exists, its `max.message.bytes`, and the rights of this client. " + self._then,
            error=error.name(),
        )
