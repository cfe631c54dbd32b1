"""A producer for source data: idempotent, keyed like every other client, with nothing lost unnoticed.

Invariants:
    - ``close`` returns only when each record was acknowledged by all in-sync replicas; else it raises.
    - A record's partition follows from its key as Java and Spark would choose it; without a key it is random.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.infra.kafka.client import library_logger
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed

#: How long the last records may take to be acknowledged, in seconds.
FLUSH_TIMEOUT_S = 60.0


class Feeder:
    """Sends source records; use it in a ``with`` block.

    Args:
        bootstrap: Kafka's bootstrap servers.
        extra_config: Security settings.
    """

    def __init__(self, bootstrap: str, extra_config: Mapping[str, str | int | float | bool] | None = None) -> None:
        self._bootstrap = bootstrap
        self._failed: KafkaError | None = None
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

    def send(self, topic: str, key: bytes | None, value: bytes, timestamp_ms: int) -> None:
        """Queue one record; waits while the queue is full.

        Raises:
            KafkaFailed: This record can't be sent, or one before it was refused.
        """
        while True:
            try:
                self._producer.produce(topic, value, key, timestamp=timestamp_ms)
                return
            except BufferError:
                self.poll(0.1)
            except KafkaException as failure:
                raise self._refused(failure.args[0]) from failure

    def poll(self, wait_s: float = 0.0) -> None:
        """Look at what was acknowledged.

        Raises:
            KafkaFailed: A record was refused.
        """
        self._producer.poll(wait_s)
        if self._failed is not None:
            raise self._refused(self._failed)

    def close(self) -> None:
        """Wait until every record is acknowledged.

        Raises:
            KafkaFailed: A record was refused.
            BrokerUnreachable: Some were not answered in time.
        """
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        self.poll()
        if left:
            raise BrokerUnreachable(
                f"{left} records sent to {self._bootstrap} were not acknowledged within {FLUSH_TIMEOUT_S:g} s.",
                action="Check that the broker runs; the topics then hold a part of the feed: clear them, feed again.",
                bootstrap=self._bootstrap,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._producer.purge()
            self._producer.flush(0.2)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._failed = error

    def _refused(self, error: KafkaError) -> KafkaFailed:
        return KafkaFailed(
            f"A source record was not delivered to {self._bootstrap}: {error.name()} ({error.str()}).",
            action="Check that the topics exist, their size limits and the rights of this client.",
            error=error.name(),
        )
