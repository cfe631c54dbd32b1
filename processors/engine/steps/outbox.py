"""Outboxes: output records of a task that are not yet passed to the Kafka producer, grouped by topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.infra.kafka.records import Headers


@dataclass(frozen=True, slots=True)
class Output:
    """One record to send. Kafka's partitioner chooses the partition by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = None


class Outbox:
    """The records of one topic that are not yet passed to the producer, in parallel lists.

    ``headers`` maps the index of a record to its headers. Records without headers have no entry.

    The lists are changed in place and never replaced, because compiled steps refer to these list objects.
    """

    __slots__ = ("headers", "keys", "timestamps", "topic", "values")

    #: Whether the producer sends the records; False for results that a sink gets.
    to_kafka: ClassVar[bool] = True

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}

    def add(self, output: Output) -> None:
        """Appends one record."""
        if output.headers:
            self.headers[len(self.values)] = output.headers
        self.values.append(output.value)
        self.keys.append(output.key)
        self.timestamps.append(output.timestamp_ms)

    def keep(self, count: int) -> None:
        """Removes all records after the first ``count``."""
        del self.values[count:], self.keys[count:], self.timestamps[count:]
        for index in [index for index in self.headers if index >= count]:
            del self.headers[index]

    def clear(self) -> None:
        """Removes all records."""
        self.keep(0)

    def drop(self) -> None:
        """Removes all records, because their transaction was aborted."""
        self.clear()


class Outboxes(dict[str, Outbox]):
    """The outboxes of a task, by topic. A missing outbox is created when it is first used."""

    def __missing__(self, topic: str) -> Outbox:
        box = self[topic] = Outbox(topic)
        return box

    def add(self, output: Output) -> None:
        """Appends one record to the outbox of its topic."""
        self[output.topic].add(output)
