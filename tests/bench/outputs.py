"""What a run has left in its output topic: how many records, the last of each key, and when the broker got them.

Output topics carry the broker's own time of append, the same clock for every contender and no work for any.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from confluent_kafka import Consumer, KafkaError, TopicPartition

from holdfast.infra.kafka.topics import Topics
from tests.bench.measured import RunWrong
from tests.bench.stream import Totals

#: How long the last transaction's markers may take, in seconds.
SETTLE_S = 60.0
SILENCE_S = 60.0
#: The first part of a run, in which runtimes warm up.
WARM_AFTER = 0.4
_decode = msgspec.json.Decoder(Totals).decode


@dataclass(slots=True)
class Outputs:
    """``appended_ms`` has each record's time of append."""

    count: int = 0
    last: dict[bytes, bytes] = field(default_factory=dict)
    appended_ms: Any = field(default_factory=lambda: array("q"))

    def add(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Take the next record of a partition."""
        self.last[key] = value
        self.appended_ms.append(appended_ms)

    def final(self) -> dict[bytes, Totals]:
        return {key: _decode(value) for key, value in self.last.items()}

    def moments(self) -> tuple[float, float, float]:
        """When the first record, the one at ``WARM_AFTER``, and the last was appended, seconds since 1970."""
        stamps = sorted(self.appended_ms)
        first, warm, last = stamps[0], stamps[int(len(stamps) * WARM_AFTER)], stamps[-1]
        return first / 1000, min(warm, last - 1) / 1000, last / 1000


class Takes(Protocol):
    """What takes records of outputs."""

    def add(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Take the next record of a partition."""


def read_outputs(bootstrap: str, topics: Topics, topic: str) -> Outputs:
    """All committed records of a topic.

    Raises:
        RunWrong: Some can't be read.
    """
    seen = Outputs()
    read_into(seen, bootstrap, topics, topic)
    seen.count = len(seen.appended_ms)
    return seen


def read_into(seen: Takes, bootstrap: str, topics: Topics, topic: str) -> None:
    """Give all committed records of a topic away.

    Raises:
        RunWrong: Some can't be read.
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
