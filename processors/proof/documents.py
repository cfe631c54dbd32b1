"""The input and the result of a proof of a version: the documents between operator and process."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message of an input, as it was read."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Material(msgspec.Struct, frozen=True):
    """The last committed messages of each input, and the state of their keys.

    ``messages`` maps topic and partition to messages in order. ``state`` maps store and partition to changelog keys and
    values. ``partitions`` has the number of partitions of each input.
    """

    processor: str
    partitions: dict[str, int]
    messages: dict[str, dict[int, tuple[Message, ...]]]
    state: dict[str, dict[int, tuple[tuple[bytes, bytes], ...]]]


class Failure(msgspec.Struct, frozen=True):
    """One message that failed: its place, the type of its error, and the error's text."""

    topic: str
    partition: int
    offset: int
    error: str
    text: str

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset


class Outcome(msgspec.Struct, frozen=True):
    """The result of a proof's run of one version.

    Args:
        processed: Number of messages that did not fail.
        sent: Output topic -> number of outputs; each output topic of the version has an entry.
        failures: The messages that failed.
        broken: Why the version could not process, as text: ``ended with …``, ``took longer than …``. Otherwise empty.
        unreached: Steps that no message reached.
        gaps: The missing parts of the proof, as texts, such as stores that began empty.
    """

    processed: int = 0
    sent: dict[str, int] = {}
    failures: tuple[Failure, ...] = ()
    broken: str = ""
    unreached: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def outputs(self) -> int:
        """Number of outputs to all topics."""
        return sum(self.sent.values())
