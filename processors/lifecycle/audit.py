"""Audit: whether a store's checkpoint holds exactly what its changelog folds to, at the same offsets.

The fold here is plain Python over a dict, and shares no code with the store: an error in one shows against the other.

Invariants:
    - Reading only; neither changelog nor checkpoint is touched.
    - An offset that the changelog doesn't have is an error at once, never a long wait for records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from infra.errors import HoldfastError
from infra.kafka.reader import read_range
from infra.kafka.records import Record
from infra.kafka.topics import Topics, TransactionUndecided
from processors.changelog.format import META_KEY
from processors.state.fingerprint import Fingerprint, fingerprint_of

#: What to do about a difference.
REMEDY = (
    "Look first whether somebody else wrote to the changelog: if so, take that right away and write tombstones for "
    "the foreign keys. Then stop the processor, delete the local state of these partitions and deploy it again: "
    "state is rebuilt from the changelog. Keep the checkpoint, it shows what went wrong."
)


#: How long the markers of an answered commit may take, in seconds.
MARKERS_WITHIN_S = 10.0


class AuditImpossible(HoldfastError):
    """The changelog doesn't reach the offset that state is said to be at; fields: topic, partition, seen, expected."""


@dataclass(frozen=True, slots=True)
class FoldedPartition:
    """One changelog partition, folded from ``start`` up to ``end`` (excluded)."""

    partition: int
    start: int
    end: int
    #: Data and meta records that were read.
    records: int
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class Difference:
    """A partition whose store and changelog don't agree; None where one side has no such partition."""

    partition: int
    stored: Fingerprint | None
    folded: Fingerprint | None

    @property
    def sentence(self) -> str:
        """For people."""
        return f"partition {self.partition}: the store is {_shown(self.stored)}, the changelog {_shown(self.folded)}"


def fold_changelog(records: Iterable[Record]) -> dict[bytes, bytes]:
    """The state that a changelog's records make: the newest value of each key, without deleted and meta keys."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None or record.key == META_KEY:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def fingerprint_changelog(
    bootstrap: str,
    topic: str,
    partition: int,
    end: int,
    config: Mapping[str, str | int | float | bool] | None = None,
) -> FoldedPartition:
    """Fold one changelog partition from its beginning up to ``end``, committed records only.

    Args:
        bootstrap: Kafka's bootstrap servers.
        topic: The changelog.
        partition: The partition.
        end: The offset to stop before; a checkpoint's changelog offset.
        config: Security settings.

    Raises:
        AuditImpossible: The changelog's committed part ends before ``end``.
        infra.kafka.errors.KafkaFailed: It can't be read.
    """
    topics = Topics(bootstrap, config)
    stable = topics.end_offsets(topic, committed=True).get(partition, 0)
    if stable < end <= topics.end_offsets(topic, committed=False).get(partition, 0):
        try:  # a log that itself is shorter will not catch up; what is written of it may be decided in a moment
            stable = topics.settled_end_offsets(topic, MARKERS_WITHIN_S, upto={partition: end})[partition]
        except TransactionUndecided as held:
            stable = held.fields["seen"]
    if stable < end:
        raise AuditImpossible(
            f"Changelog {topic}[{partition}] is committed up to offset {stable}, the checkpoint is at {end}.",
            action="If the topic was deleted and made again, delete the local state and deploy again; "
            "if a transaction hangs, abort it; then take a new checkpoint.",
            topic=topic,
            partition=partition,
            seen=stable,
            expected=end,
        )
    start = topics.start_offsets(topic).get(partition, 0)
    counted = _Counted(read_range(bootstrap, topic, partition, start, end, extra_config=config))
    state = fold_changelog(counted)
    return FoldedPartition(partition, start, end, counted.count, fingerprint_of(state.items()))


def compare(stored: Mapping[int, Fingerprint], folded: Mapping[int, Fingerprint]) -> list[Difference]:
    """The partitions whose fingerprints differ, or that only one side has; in order."""
    return [
        Difference(partition, stored.get(partition), folded.get(partition))
        for partition in sorted(set(stored) | set(folded))
        if stored.get(partition) != folded.get(partition)
    ]


class _Counted:
    """Records on their way through, counted."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.count = 0
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            self.count += 1
            yield record


def _shown(fingerprint: Fingerprint | None) -> str:
    return "absent" if fingerprint is None else f"{fingerprint.count} keys ({fingerprint.hex})"
