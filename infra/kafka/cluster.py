"""Creates the engine's clients for one real Kafka cluster. Simulations use a cluster in memory instead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer

from holdfast.infra.clock import Clock, SystemClock
from holdfast.infra.kafka.clients.client import check_settings, library_logger
from holdfast.infra.kafka.clients.consumer import SESSION_MS, GroupConsumer
from holdfast.infra.kafka.clients.producer import BATCH_BYTES_MAX, EngineProducer
from holdfast.infra.kafka.clients.restore_consumer import ChangelogConsumer
from holdfast.infra.kafka.inspection.inspection import Inspector
from holdfast.infra.kafka.records import GroupMetadata
from holdfast.infra.kafka.topics.topics import Topics

#: Maximum value of ``queued.max.messages.kbytes`` that librdkafka accepts, KiB.
FETCHED_KB_MAX = 2_097_151


class KafkaCluster:
    """Creates the clients for one Kafka cluster; implements the engine's protocol ``Cluster``.

    ``client_config`` applies to every client; ``consumer_config`` and ``producer_config`` override it.

    Each consumer prefetches at most ``fetched_bytes``, and the producer's queue holds at most ``queued_bytes``. The
    constructor raises ClientSettingsInvalid if a setting is unknown or reserved.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_config: Mapping[str, Any] | None = None,
        consumer_config: Mapping[str, Any] | None = None,
        producer_config: Mapping[str, Any] | None = None,
        fetched_bytes: int = 64 << 20,
        queued_bytes: int = 1 << 30,
    ) -> None:
        self.bootstrap = bootstrap
        self.clock: Clock = SystemClock()
        self._topics: dict[float, Topics] = {}
        self._address = ""
        self._client = dict(client_config or {})
        self._fetched_kb = min(max(1, fetched_bytes >> 10), FETCHED_KB_MAX)
        ahead = {"queued.max.messages.kbytes": self._fetched_kb}
        self._consumer = {**ahead, **self._client, **(consumer_config or {})}
        chosen = {**self._client, **(producer_config or {})}
        # The queue is made large enough for the largest record. Otherwise the producer would wait forever for space.
        room = max(queued_bytes, 2 * (_record_bytes_max(chosen) or 0))
        self._producer = {"queue.buffering.max.kbytes": max(1, room >> 10), **chosen}
        check_settings("the client settings (HOLDFAST_KAFKA__CLIENT_CONFIG)", self._client, Consumer)
        check_settings("the consumer's settings (consumer_extra_config)", self._consumer, Consumer)
        check_settings("the producer's settings (producer_extra_config)", self._producer, Producer)

    def topics(self, timeout_s: float = 20.0) -> Topics:
        # Callers with the same timeout share one client and its connections.
        if timeout_s not in self._topics:
            self._topics[timeout_s] = Topics(self.bootstrap, self._client, timeout_s=timeout_s)
        return self._topics[timeout_s]

    def transactions(self, timeout_s: float) -> Inspector:
        return Inspector(self.bootstrap, self._client, timeout_s=timeout_s)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def session_s(self) -> float:
        return float(self._consumer.get("session.timeout.ms", SESSION_MS)) / 1000

    def be_reached_at(self, address: str) -> None:
        self._address = address

    def group_consumer(self, group: str, client_id: str) -> GroupConsumer:
        return GroupConsumer(self.bootstrap, group, config={"client.id": client_id + self._address, **self._consumer})

    def outside_metadata(self, group: str) -> GroupMetadata:
        """Group metadata for a producer that is no member of the group.

        Kafka accepts offsets with this metadata only while the group has no members.
        """
        settings = {"bootstrap.servers": self.bootstrap, **self._client, "group.id": group}
        consumer = Consumer(settings, logger=library_logger())
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def changelog_consumer(self) -> ChangelogConsumer:
        return ChangelogConsumer(self.bootstrap, config=self._client, fetched_kb=self._fetched_kb)

    @property
    def record_bytes_max(self) -> int | None:
        return _record_bytes_max(self._producer)

    def producer(self, transactional_id: str | None, batch_bytes_max: int = BATCH_BYTES_MAX) -> EngineProducer:
        config = {"batch.size": min(batch_bytes_max, BATCH_BYTES_MAX), **self._producer}
        return EngineProducer(self.bootstrap, transactional_id, config=config)


def _record_bytes_max(settings: Mapping[str, Any]) -> int | None:
    chosen = settings.get("message.max.bytes")
    return None if chosen is None else int(chosen)
