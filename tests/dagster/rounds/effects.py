"""Continuous input, and the proof that each record and each clear took effect exactly once.

The processor counts the records of each key and outputs the count. So the outputs of a key are 1, 2, 3 and so on. If
the state of the key is cleared, they start at 1 again. A lost or repeated record breaks this order, and so does a lost
or repeated clear.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from tests.dagster.rounds.draws import KEYS

#: Pause between two rounds of records, in seconds.
EVERY_S = 0.1


class Feeder:
    """Produces a record of each key repeatedly until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: Counter[str] = Counter()
        #: The input partition of each key.
        self.partition: dict[str, int] = {}
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
        self._topic = topic
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until the broker has confirmed all records."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        assert self._producer.flush(60) == 0

    def row(self) -> None:
        """Send one record of each key."""
        for number in range(KEYS):
            self._producer.produce(self._topic, b"1", f"key-{number}".encode(), on_delivery=self._delivered)
            self.sent[f"key-{number}"] += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.partition[message.key().decode()] = message.partition()

    def _feed(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.row()
            self._producer.poll(0)


class Outputs:
    """All counts that the processor has output, by key, in order."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.counts: dict[str, list[int]] = defaultdict(list)
        self._topics, self._topic = topics, topic
        self._at: dict[int, int] = {}

    def read(self) -> None:
        """Read the new outputs, up to the present end of the topic."""
        for number, end in self._topics.settled_end_offsets(self._topic).items():
            start = self._at.get(number, 0)
            for record in read_range(self._topics.bootstrap, self._topic, number, start, end):
                assert record.key is not None
                assert record.value is not None
                key = record.key.decode()
                self.counts[key].append(json.loads(record.value))
            self._at[number] = end


def wrong_counts(sent: Counter[str], counts: dict[str, list[int]], clears: Counter[str]) -> list[str]:
    """Describe each error in the outputs. ``clears`` is the number of times that each key was cleared."""
    found = []
    for key, number in sorted(sent.items()):
        seen = counts.get(key, [])
        if len(seen) != number:
            found.append(f"{key}: {number} records in, {len(seen)} out")
        begins = [place for place, (before, now) in enumerate(pairwise(seen), 1) if now != before + 1]
        if odd := [seen[place - 1 : place + 1] for place in begins if seen[place] != 1]:
            found.append(f"{key}: counts {odd} follow each other")
        if seen[:1] not in ([], [1]):
            found.append(f"{key}: the first count is {seen[0]}")
        if len(begins) != clears[key]:
            found.append(f"{key}: cleared {clears[key]} times, and begins again {len(begins)} times at {begins}")
    return found


def last_counts(counts: dict[str, list[int]]) -> dict[str, int]:
    """The expected state: the last output of each key."""
    return {key: seen[-1] for key, seen in counts.items() if seen}
