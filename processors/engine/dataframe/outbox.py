"""Records that wait to be sent: one by one as they are made, and by topic as they are sent."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.infra.kafka.records import Headers


@dataclass(frozen=True, slots=True)
class Output:
    """One record to send; partition is chosen by the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = None


class Outbox:
    """The records of one topic, as parallel lists in their order; ``headers`` by index, of those that have any.

    The lists stay the same objects, so that compiled steps can hold on to them.
    """

    __slots__ = ("headers", "keys", "timestamps", "topic", "values")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, Headers] = {}

    def add(self, output: Output) -> None:
        """Put one record at the end."""
        if output.headers:
            self.headers[len(self.values)] = output.headers
        self.values.append(output.value)
        self.keys.append(output.key)
        self.timestamps.append(output.timestamp_ms)

    def keep(self, count: int) -> None:
        """Take back all records but the first ``count``; those taken back have no headers."""
        del self.values[count:], self.keys[count:], self.timestamps[count:]

    def clear(self) -> None:
        """Forget all records."""
        self.keep(0)
        self.headers.clear()


class Outboxes(dict[str, Outbox]):
    """The outboxes of a task by topic; one that is asked for is made."""

    def __missing__(self, topic: str) -> Outbox:
        box = self[topic] = Outbox(topic)
        return box

    def add(self, output: Output) -> None:
        """Put one record into the box of its topic."""
        self[output.topic].add(output)
