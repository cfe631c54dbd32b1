"""Reads a run's output topic: the number of records, the last record of each key, and the append times.

Records in output topics have the broker's append time as their timestamp. It is the same clock for all contenders, and
costs them no work.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from confluent_kafka import Consumer, KafkaError, TopicPartition

from holdfast.infra.kafka.topics.topics import Topics
from tests.bench.measured import RunWrong
from tests.bench.stream import Totals

#: Seconds to wait for the commit markers of the last transaction.
SETTLE_S = 60.0
SILENCE_S = 60.0
#: The share of a run (from its start) that does not count as warm, because runtimes still compile their code.
WARM_AFTER = 0.4
_decode = msgspec.json.Decoder(Totals).decode


@dataclass(slots=True)
class Outputs:
    """The outputs of a run. ``appended_ms`` has the append time of each record."""

    count: int = 0
    last: dict[bytes, bytes] = field(default_factory=dict)
    appended_ms: Any = field(default_factory=lambda: array("q"))

    def add(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Add the next record of a partition."""
        self.last[key] = value
        self.appended_ms.append(appended_ms)

    def final(self) -> dict[bytes, Totals]:
        return {key: _decode(value) for key, value in self.last.items()}

    def moments(self) -> tuple[float, float, float]:
        """Append times of the first record, the one at ``WARM_AFTER``, and the last one, in seconds since the epoch."""
        stamps = sorted(self.appended_ms)
        first, warm, last = stamps[0], stamps[int(len(stamps) * WARM_AFTER)], stamps[-1]
        return first / 1000, min(warm, last - 1) / 1000, last / 1000


class Takes(Protocol):
    """An object to which output records can be added."""

    def add(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Add the next record of a partition."""


def read_outputs(bootstrap: str, topics: Topics, topic: str) -> Outputs:
    """All committed records of a topic.

    Raises:
        RunWrong: Some records can't be read.
    """
    seen = Outputs()
    read_into(seen, bootstrap, topics, topic)
    seen.count = len(seen.appended_ms)
    return seen


def read_into(seen: Takes, bootstrap: str, topics: Topics, topic: str) -> None:
    """Add all committed records of a topic to ``seen``.

    Raises:
        RunWrong: Some records can't be read.
    """
    ends = topics.settled_end_offsets(topic, SETTLE_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    left, heard = {number for number, end in ends.items() if end}, time.monotonic()
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    while left:
        for message in consumer.consume(5_000, 0.5):
            error = message.error()
            if error is None:
                seen.add(message.key(), message.value(), message.timestamp()[1])
                heard = time.monotonic()
            elif error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= ends[message.partition()]:
                    left.discard(message.partition())
            elif not error.retriable():
                raise RunWrong(f"{topic} can't be read: {error}")
        if time.monotonic() - heard > SILENCE_S:
            raise RunWrong(f"{topic} can't be read to its end")
    consumer.close()
