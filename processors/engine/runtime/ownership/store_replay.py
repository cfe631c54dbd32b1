"""The replay of one changelog into one store: how far it is, and which input offsets the store holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from holdfast.processors.engine.changelog.format import KeyLines
from holdfast.processors.engine.state.coherence import ChangelogFacts


@dataclass(slots=True)
class StoreReplay:
    """One store's replay: ``position`` is the next offset, ``inputs`` those of the last meta record."""

    store: str
    facts: ChangelogFacts
    position: int
    inputs: Mapping[str, int]
    prefix: bytes
    #: What the keys of the store are made of, by the last meta record.
    keys: KeyLines = msgspec.UNSET

    @property
    def done(self) -> bool:
        """Whether it has reached its target."""
        return self.position >= self.facts.end

    def held(self, committed: Mapping[str, int | None]) -> Mapping[str, int]:
        """The input offsets that the store holds, when it is done; of a topic that it is restored from, the position.

        Of other inputs such a store holds nothing, so that it is at any offset of theirs.
        """
        log = self.facts.source
        if log is None:
            return self.inputs
        others = {topic: offset for topic, offset in committed.items() if offset is not None}
        nothing = committed.get(log.topic) is None and self.position <= self.facts.start
        return others if nothing else {**others, log.topic: self.position}

    @property
    def noted(self) -> Mapping[str, int]:
        """The input offsets beside a replay's position. A table's topic names none before a whole replay has ended.

        So the next one knows that it resumes a replay from the beginning, which lacks no deletes (``doubt_of_tail``).
        """
        if self.facts.source is None or not (self.done or self.inputs):
            return self.inputs
        return {self.facts.topic: self.position}
