"""Requests the current end offsets of inputs from Kafka.

They are needed for the lags on the status page, and before a task reports that its inputs are read to their ends.

A consumer knows only the end offset at its last fetch. If the leader of a partition is unreachable, or the partition is
paused, this offset is out of date. The partition then looks completely read.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember

_log = structlog.get_logger("runtime.fresh_ends")

#: Timeout of one request, in seconds. It is short, because the worker's main loop waits for the answer.
REQUEST_TIMEOUT_S = 1.0
#: Seconds until the next request after a failed request.
AGAIN_S = 2.0


class FreshEnds:
    """Requests the end offsets of topics, and caches them until ``begin`` discards them."""

    def __init__(self, cluster: Cluster, waits: str = "tasks behind group_by wait") -> None:
        self._cluster = cluster
        self._waits = waits
        self._ends: dict[str, Mapping[int, int]] = {}
        self._again_at = 0.0
        self._begun_at = float("-inf")

    def begin(self, every_s: float = 0.0) -> None:
        """Discards end offsets that are at least ``every_s`` seconds old, so that they are requested again."""
        now = self._cluster.clock.monotonic()
        if now - self._begun_at >= every_s:
            self._begun_at = now
            self._ends.clear()

    def end_of(self, place: Partition, member: GroupMember) -> int | None:
        """Returns the current end offset of a partition; None if Kafka does not answer."""
        if place.topic not in self._ends:
            if member.brokers_down_s or self._cluster.clock.monotonic() < self._again_at:
                return None
            try:
                topics = self._cluster.topics(REQUEST_TIMEOUT_S)
                self._ends[place.topic] = topics.end_offsets(place.topic, committed=False)
            except KafkaFailed as away:
                self._again_at = self._cluster.clock.monotonic() + AGAIN_S
                _log.warning(
                    f"{self._waits}: the end of an input can't be read",
                    topic=place.topic,
                    error=away.message,
                    next="nothing, if the broker of its partitions comes back",
                )
                return None
        return self._ends[place.topic].get(place.number, 0)

    def is_read(self, place: Partition, member: GroupMember) -> bool:
        """Whether the partition has no records after those that the consumer has fetched.

        The end offset of the consumer's last fetch is compared with the current end offset.
        """
        end, fetched = self.end_of(place, member), member.high_watermark(place)
        return end is not None and fetched is not None and fetched >= end
