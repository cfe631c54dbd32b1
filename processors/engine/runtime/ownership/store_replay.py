"""The replay of one changelog partition into one store: its position, and what it has read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from holdfast.processors.engine.changelog.format import KeyLines
from holdfast.processors.engine.state.coherence import ChangelogFacts


@dataclass(slots=True)
class StoreReplay:
    """The replay of one changelog partition into one store.

    ``position`` is the next changelog offset to replay. ``inputs`` has the input offsets of the last commit that was
    replayed.
    """

    store: str
    facts: ChangelogFacts
    position: int
    inputs: Mapping[str, int]
    prefix: bytes
    #: Text lines that describe the store's keys, from the last commit that was replayed (module ``steps.meaning``).
    keys: KeyLines = msgspec.UNSET
    #: Whether the last replayed record ends a commit, so that the store has whole commits only; None before a record.
    ends_commit: bool | None = None

    @property
    def done(self) -> bool:
        """Whether the replay has reached its target."""
        return self.position >= self.facts.end

    def held(self, committed: Mapping[str, int | None]) -> Mapping[str, int]:
        """Returns the input offsets up to which the replayed store is complete.

        For a changelog, these are the offsets of the last replayed commit. A table may be restored from its source
        topic. The offset of this topic is then the position of the replay. The table does not depend on other inputs,
        so their offsets are the committed offsets.
        """
        log = self.facts.source
        if log is None:
            return self.inputs
        others = {topic: offset for topic, offset in committed.items() if offset is not None}
        nothing = committed.get(log.topic) is None and self.position <= self.facts.start
        return others if nothing else {**others, log.topic: self.position}

    @property
    def noted(self) -> Mapping[str, int]:
        """Returns the input offsets that are stored with the data at the current position.

        For a table that is restored from its source topic, the result is empty until the first replay has ended. After
        a restart, an empty result shows that the first replay was interrupted. The next replay then reads the topic
        again, and misses no tombstones (``doubt_of_tail``).
        """
        if self.facts.source is None or not (self.done or self.inputs):
            return self.inputs
        return {self.facts.topic: self.position}


def note_whole(known: dict[str, bool], replays: Collection[StoreReplay]) -> bool:
    """Notes which stores have whole commits only, after a replay. Returns whether all stores of the task have.

    A replay without records changes nothing. If it is the first one, the content that was opened is whole: if it ended
    within a commit, the changelog would have the rest of that commit. A table that is restored from its source topic is
    whole at any record.
    """
    for replay in replays:
        if replay.facts.source is not None or replay.ends_commit is not None:
            known[replay.store] = replay.facts.source is not None or bool(replay.ends_commit)
    return all(known.get(replay.store, True) for replay in replays)
