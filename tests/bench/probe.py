"""Source and sink of the latency case in one process: measures the time from sending a message to its output.

Arguments: bootstrap, source, output, isolation level, messages, keys, messages per second, seconds that count.
Each message carries its send time in microseconds. Its output is timed when a consumer receives it.
"""

from __future__ import annotations

import re
import sys
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.contenders import tell
from tests.bench.stream import PARTITIONS, messages

STEP_S = 0.004
#: How long outputs may take after the last message, in seconds.
LAST_WITHIN_S = 60.0
_SENT_AT = re.compile(rb'"ts": ?(\d+)')


class Sink:
    """Reads outputs until it has ``count``; records the send time and the latency of each, in microseconds."""

    def __init__(self, bootstrap: str, topic: str, isolation: str, count: int) -> None:
        self.seen: list[tuple[int, int]] = []
        self.deadline = float("inf")
        self._count = count
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-sink",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "fetch.min.bytes": 1,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        while len(self.seen) < self._count and time.monotonic() < self.deadline:
            batch = self._consumer.consume(1, 0.1)
            if batch:
                batch += self._consumer.consume(1_000, 0)
            now = time.time_ns() // 1_000
            for message in batch:
                if message.error() is None:
                    sent = int(_SENT_AT.search(message.value())[1])
                    self.seen.append((sent, now - sent))
        self._consumer.close()


def main(arguments: list[str]) -> None:
    bootstrap, source, output, isolation, *numbers = arguments
    count, keys, rate, counted_s = (int(number) for number in numbers)
    sink = Sink(bootstrap, output, isolation, count)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0.5, "acks": 1, "compression.type": "none"})
    rows, sent, began, step = messages(count, keys), 0, time.monotonic(), 0
    while sent < count:
        due = min(count, int((time.monotonic() - began) * rate))
        while sent < due:
            message = next(rows)
            producer.produce(source, message.body(time.time_ns() // 1_000), message.key, message.partition)
            sent += 1
        producer.poll(0)
        step += 1
        time.sleep(max(0.0, began + step * STEP_S - time.monotonic()))
    ended = time.time_ns() // 1_000  # taken before the flush: the last message is sent at this moment
    producer.flush(10)
    sink.deadline = time.monotonic() + LAST_WITHIN_S
    sink.thread.join()
    took = sorted(late for at, late in sink.seen if at >= ended - counted_s * 1_000_000)
    if len(sink.seen) != count or not took:
        raise SystemExit(f"{len(sink.seen)} of {count} outputs came")
    at = {name: took[min(len(took) - 1, int(len(took) * part))] / 1_000 for name, part in _PARTS.items()}
    tell(**at, max=took[-1] / 1_000)


_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

if __name__ == "__main__":
    main(sys.argv[1:])
