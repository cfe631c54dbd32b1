"""The replay of one changelog into one store: its progress, and the input offsets of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from holdfast.processors.engine.changelog.format import KeyLines
from holdfast.processors.engine.state.coherence import ChangelogFacts


@dataclass(slots=True)
class StoreReplay:
    """One store's replay: ``position`` is the next offset; ``inputs`` are the offsets of the last meta record."""

    store: str
    facts: ChangelogFacts
    position: int
    inputs: Mapping[str, int]
    prefix: bytes
    #: The rules of the store's keys, from the last meta record.
    keys: KeyLines = msgspec.UNSET

    @property
    def done(self) -> bool:
        """Whether the replay has reached its target."""
        return self.position >= self.facts.end

    def held(self, committed: Mapping[str, int | None]) -> Mapping[str, int]:
        """The input offsets of a finished store; for the topic that restores it, the replay's position.

        Such a store has no offsets of other inputs, so it is valid at any offset of them.
        """
        log = self.facts.source
        if log is None:
            return self.inputs
        others = {topic: offset for topic, offset in committed.items() if offset is not None}
        nothing = committed.get(log.topic) is None and self.position <= self.facts.start
        return others if nothing else {**others, log.topic: self.position}

    @property
    def noted(self) -> Mapping[str, int]:
        """The input offsets to note at a replay's position; for a table's topic, none before a full replay has ended.

        So the next replay knows that it resumes one from the beginning, which lacks no deletes (``doubt_of_tail``).
        """
        if self.facts.source is None or not (self.done or self.inputs):
            return self.inputs
        return {self.facts.topic: self.position}
