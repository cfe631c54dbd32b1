"""The input and the result of a proof, which is a test of a new version before its deployment.

A separate process runs the version. The input and the result are exchanged with that process as JSON documents.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message of an input topic, with its key, value, timestamp and headers as in Kafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Material(msgspec.Struct, frozen=True):
    """The input of a proof: the last committed messages of each input topic, and the state of their keys.

    ``messages`` maps topic and partition to messages in offset order. ``state`` maps store and partition to changelog
    keys and values. ``partitions`` maps each input topic to its number of partitions.
    """

    processor: str
    partitions: dict[str, int]
    messages: dict[str, dict[int, tuple[Message, ...]]]
    state: dict[str, dict[int, tuple[tuple[bytes, bytes], ...]]]


class Failure(msgspec.Struct, frozen=True):
    """One message that failed: its topic, partition and offset, the type of its error, and the error's text."""

    topic: str
    partition: int
    offset: int
    error: str
    text: str

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the failed message."""
        return self.topic, self.partition, self.offset


class Outcome(msgspec.Struct, frozen=True):
    """The result of running one version on the messages of a proof.

    Args:
        processed: Number of messages that did not fail.
        sent: Maps each output topic of the version to the number of messages that were sent to it.
        failures: The messages that failed.
        broken: The reason why the version could not process any message, as text, for example ``ended with …``. Empty
            if the version processed messages.
        unreached: Steps of the application that no message reached.
        gaps: Parts that the proof could not test, as texts, for example stores that were empty at the start.
    """

    processed: int = 0
    sent: dict[str, int] = {}
    failures: tuple[Failure, ...] = ()
    broken: str = ""
    unreached: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """Total number of outputs to all topics."""
        return sum(self.sent.values())
