"""Compares the copies of a store's partition (RocksDB, changelog, table) at one offset; finds the differing keys.

All functions are pure.

    compare fingerprints of partitions ─► of 256 buckets ─► entries of the buckets that differ ─► keys

Copies are never compared at different offsets. The result for one partition at one changelog offset is called a
``Moment``; it has two or three copies.

Invariants:
    - Every differing key is counted; the first ``SHOWN`` differing keys are kept with their values.
    - The entries of only a few buckets are in memory at a time, never a whole store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from holdfast.processors.engine.state.buckets import BUCKETS, BucketPrints, bucket_of
from holdfast.processors.engine.state.fingerprint import Fingerprint

#: Maximum number of differing keys that a result keeps with their values, and that a report shows.
SHOWN = 20
#: Maximum number of entries (keys with values) of each copy that are in memory while keys are compared.
ENTRIES_AT_ONCE = 200_000


class Side(Enum):
    """The three kinds of copies of a store, in the order in which data flows: store, changelog, warehouse."""

    STORE = "store"
    CHANGELOG = "changelog"
    WAREHOUSE = "warehouse"


class Odd(Enum):
    """Names the copies that differ.

    This is one copy if the two others are equal, both copies if only two were compared, or all three.
    """

    STORE = "store"
    CHANGELOG = "changelog"
    WAREHOUSE = "warehouse"
    ALL = "all three"
    STORE_CHANGELOG = "store and changelog"
    CHANGELOG_WAREHOUSE = "changelog and warehouse"
    STORE_WAREHOUSE = "store and warehouse"

    @property
    def where(self) -> str:
        """Where the copies differ, as the end of a sentence, for example ``in the store only``."""
        if self is Odd.ALL:
            return "in all three"
        return f"between {self.value}" if " and " in self.value else f"in the {self.value} only"


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of one key in one copy of the store.

    ``values`` is empty if the key is absent, and normally has one value otherwise. ``offset`` and ``timestamp_ms`` are
    those of the key's newest record; None if unknown.
    """

    values: tuple[bytes, ...] = ()
    offset: int | None = None
    timestamp_ms: int | None = None


ABSENT = Entry()


class Copy(Protocol):
    """One copy of one partition at the offset of the comparison."""

    def prints(self) -> BucketPrints:
        """The fingerprints of 256 buckets.

        A bucket has all keys with the same bucket number, which is computed from the key's hash.
        """

    def entries(self, buckets: frozenset[int]) -> Mapping[bytes, Entry]:
        """The keys of the copy in these buckets, with their values."""


#: Function that returns those of the given keys that have a changelog record at or after the compared offset.
#: Compaction may have removed earlier records of these keys.
Superseded = Callable[[Collection[bytes]], frozenset[bytes]]


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a changelog: topic id and offset.

    The state at this point is the result of all records before the offset.
    """

    topic_id: str
    offset: int


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """One key whose value differs between the copies, with the key's value, offset and time in each copy."""

    partition: int
    offset: int
    key: bytes
    odd: Odd
    entries: Mapping[Side, Entry]


@dataclass(frozen=True, slots=True)
class Moment:
    """The result of comparing the copies of one partition at one offset: their fingerprints, and the differing keys.

    ``unjudged`` is the number of keys that cannot be judged, because compaction removed the changelog's record and the
    other copies show no difference.
    """

    partition: int
    place: Place
    prints: Mapping[Side, BucketPrints]
    odd: Mapping[Odd, int] = field(default_factory=dict)
    #: Bucket -> number of differing keys; buckets without differences are left out.
    by_bucket: Mapping[int, int] = field(default_factory=dict)
    first: tuple[KeyDifference, ...] = ()
    unjudged: int = 0

    @property
    def wholes(self) -> dict[Side, Fingerprint]:
        """Maps each copy to the fingerprint of all its keys in this partition."""
        return {side: prints.whole for side, prints in self.prints.items()}

    @property
    def differing(self) -> int:
        """The number of differing keys."""
        return sum(self.odd.values())

    @property
    def sentence(self) -> str | None:
        """The differences of the partition as text, without a full stop; None if all copies are equal."""
        if not self.differing:
            return None
        copies = ", ".join(f"{side.value} is {_shown(found)}" for side, found in self.wholes.items())
        how = ", ".join(
            f"{'1 key differs' if count == 1 else f'{count:,} keys differ'} {odd.where}"
            for odd, count in self.odd.items()
        )
        return f"partition {self.partition} at offset {self.place.offset}: the {copies}: {how}"


def compare_copies(partition: int, place: Place, copies: Mapping[Side, Copy], superseded: Superseded) -> Moment:
    """Compares two or three copies of a partition at the same offset (``place``), and finds the differing keys."""
    prints = {side: copy.prints() for side, copy in copies.items()}
    odd: Counter[Odd] = Counter()
    by_bucket: Counter[int] = Counter()
    first: list[KeyDifference] = []
    unjudged = 0
    for chunk in _chunks(prints):
        entries = {side: copy.entries(chunk) for side, copy in copies.items()}
        unequal = [key for key in _keys(entries) if _of(entries, key, copies) is not None]
        newer = superseded(unequal) if Side.CHANGELOG in copies and unequal else frozenset()
        for key in unequal:
            had = {side: entries[side].get(key, ABSENT) for side in copies}
            judged = dict(had)
            if key in newer and not had[Side.CHANGELOG].values:
                del judged[Side.CHANGELOG]  # compaction removed the record, so its absence is not a difference
            found = classify(judged)
            if found is None:
                unjudged += 1
                continue
            odd[found] += 1
            by_bucket[bucket_of(key)] += 1
            if len(first) < SHOWN:
                first.append(KeyDifference(partition, place.offset, key, found, had))
    counts = {each: odd[each] for each in Odd if odd[each]}
    return Moment(partition, place, prints, counts, dict(sorted(by_bucket.items())), tuple(first), unjudged)


def classify(entries: Mapping[Side, Entry]) -> Odd | None:
    """Names the copies in which one key differs; None if all copies are equal, or if there is only one copy."""
    groups: dict[tuple[bytes, ...], list[Side]] = {}
    for side, entry in entries.items():
        groups.setdefault(entry.values, []).append(side)
    if len(groups) < 2:
        return None
    if len(entries) == 2:
        return Odd(" and ".join(side.value for side in Side if side in entries))
    alone = [sides[0] for sides in groups.values() if len(sides) == 1]
    return Odd(alone[0].value) if len(groups) == 2 else Odd.ALL


def differing_buckets(prints: Mapping[Side, BucketPrints]) -> tuple[int, ...]:
    """The numbers of the buckets in which the copies differ."""
    one, *others = prints.values()
    return tuple(sorted({number for other in others for number in one.differing(other)}))


def _chunks(prints: Mapping[Side, BucketPrints]) -> Iterator[frozenset[int]]:
    """The differing buckets, in groups of about ``ENTRIES_AT_ONCE`` entries each."""
    buckets = differing_buckets(prints)
    largest = max(found.whole.count for found in prints.values())
    size = max(1, ENTRIES_AT_ONCE * BUCKETS // max(largest, 1))
    for begin in range(0, len(buckets), size):
        yield frozenset(buckets[begin : begin + size])


def _keys(entries: Mapping[Side, Mapping[bytes, Entry]]) -> list[bytes]:
    return sorted({key for found in entries.values() for key in found})


def _of(entries: Mapping[Side, Mapping[bytes, Entry]], key: bytes, sides: Collection[Side]) -> Odd | None:
    return classify({side: entries[side].get(key, ABSENT) for side in sides})


def _shown(found: Fingerprint) -> str:
    return f"{found.count:,} keys ({found.hex})"
