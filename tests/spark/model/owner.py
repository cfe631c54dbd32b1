"""A model of a store's owner (the worker of its tasks).

It has the content of each partition after each commit, and the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.snapshots.facts import StorePoint
from tests.spark.model.changelog import MemoryChangelog
from tests.spark.model.clock import Clock

PARTITIONS = 2
#: The name and id of the input topic that the owner reads.
INPUT, INPUT_ID = "in", "id-of-in"
#: A store's content: (partition, changelog key) -> stored bytes.
Content = dict[tuple[int, bytes], bytes]
#: Stands for a deleted value. It is a text, because all drawn values are objects.
DELETED = "(deleted)"


@dataclass(frozen=True, slots=True)
class Held:
    """The content, changelog end and input position of a partition after one commit."""

    at: float
    topic_id: str
    end: int
    input: int
    content: Mapping[bytes, bytes]


@dataclass(slots=True)
class Owner:
    """The owner of a store with two partitions. It remembers the state after every commit."""

    log: MemoryChangelog
    clock: Clock
    past: list[list[Held]] = field(default_factory=list)
    #: The newest checkpoint of each partition, and the content of this checkpoint.
    points: dict[int, tuple[StorePoint, Mapping[bytes, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.past = [[Held(self.clock.time(), self.log.topic_id, 0, 0, {})] for _ in range(PARTITIONS)]

    def commit(self, partition: int, changes: Sequence[tuple[int, Any, int]], *, commit: bool = True) -> None:
        """Change keys in one transaction. The transaction may be aborted."""
        entries = [
            (changelog_key(number), None if value is DELETED else encode_value(value, event_ms))
            for number, value, event_ms in changes
        ]
        self.clock.advance(0.002)
        self.log.logs[partition].append(self.clock.time(), entries, commit=commit)
        now = self.past[partition][-1]
        content = dict(now.content)
        for key, value in entries if commit else ():
            content.pop(key, None)
            if value is not None:
                content[key] = value
        self._note(partition, content, now.input + (1 if commit else 0))

    def mend(self, partition: int, number: int, value: Any, event_ms: int) -> None:
        """Change a key only in the owner's database, without a changelog record."""
        self.clock.advance(0.002)
        now = self.past[partition][-1]
        content = {key: held for key, held in now.content.items() if key != changelog_key(number)}
        if value is not DELETED:
            content[changelog_key(number)] = encode_value(value, event_ms)
        self._note(partition, content, now.input)

    def rebuild(self, content: Content | None = None, inputs: Mapping[int, int] | None = None) -> None:
        """Recreate the changelog.

        The new changelog starts with the current content, or with other content at other input positions.
        """
        self.log.recreate()
        for number in range(PARTITIONS):
            now = self.past[number][-1]
            held = dict(now.content)
            if content is not None:
                held = {key: value for (partition, key), value in content.items() if partition == number}
            self.clock.advance(0.002)
            if held:
                self.log.logs[number].append(self.clock.time(), list(held.items()), commit=True)
            self._note(number, held, now.input if inputs is None else inputs[number])

    def checkpoint(self, partition: int, *, files: bool) -> None:
        """Take a checkpoint of one partition. Without ``files``, the checkpoint's files are on another machine."""
        self.clock.advance(0.002)
        now = self.past[partition][-1]
        point = StorePoint(
            partition=partition,
            path=f"/{partition}/{now.topic_id}/{self.clock.time()}",
            topic=self.log.topic,
            topic_id=now.topic_id,
            end=now.end,
            taken_at=self.clock.time(),
            inputs={INPUT: now.input},
            sources={INPUT: INPUT_ID},
            files=files,
        )
        self.points[partition] = point, now.content

    def lose_files(self) -> None:
        """Lose the checkpoints' files on this machine."""
        self.points = {number: (replace(point, files=False), held) for number, (point, held) in self.points.items()}

    def held_at(self, at: float) -> Content:
        """Return the store's content at a moment. Commits at exactly this moment are included."""
        found = ([each for each in commits if each.at <= at][-1:] for commits in self.past)
        return {(number, key): value for number, each in enumerate(found) for key, value in _of(each).items()}

    def _note(self, partition: int, content: Mapping[bytes, bytes], consumed: int) -> None:
        log = self.log
        held = Held(self.clock.time(), log.topic_id, log.logs[partition].end, consumed, content)
        self.past[partition].append(held)


def changelog_key(number: int) -> bytes:
    """The changelog key of a numbered message key."""
    return key_prefix(b"k%d" % number) + b"n"


def _of(held: Sequence[Held]) -> Mapping[bytes, bytes]:
    return held[0].content if held else {}
