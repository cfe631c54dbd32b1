"""Proves that compaction has removed a key's records from a changelog.

    offset 0 ─────────────── offset after the deletes ─────────── end
    every value of the key must be gone      values are of later messages

Kafka compacts a segment only after a later record closed it. So the owners write a record to each partition until
compaction has passed. All records are read, also those of aborted transactions.

Invariants:
    - A partition counts as proven only after it was read from its first offset to the offset after the deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from holdfast.infra.kafka.records import Record
from holdfast.infra.waiting import wait_until
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet
from holdfast.processors.lifecycle.plans.apply import ProgressLog

#: Maximum seconds until compaction has removed a key's records. Kafka's log cleaner runs every 15 s by default, and
#: cleans one partition after the other.
CLEANED_WITHIN_S = 900.0
LOOK_EVERY_S = 2.0

#: Function of topic, partition, first offset and end offset that yields all records, also aborted ones.
ReadAll = Callable[[str, int, int, int], Iterator[Record]]


def prove_compacted(
    topic: str,
    entries: KeyEntries,
    ends: Mapping[int, int],
    starts: Mapping[int, int],
    read: ReadAll,
    close_segments: Callable[[], None],
    tell: ProgressLog,
) -> Found:
    """Wait until no value of the key is left before ``ends``, the offsets after the deletes.

    ``close_segments`` makes the owners write a record to each partition.

    Raises:
        NotYetGone: Compaction did not remove the records in time.
    """
    left = {number: _values(read(topic, number, starts.get(number, 0), end), entries) for number, end in ends.items()}
    left = {number: found for number, found in left.items() if found}
    had = sum(map(len, left.values()))
    deletes = sum(
        _tombstones(read(topic, number, starts.get(number, 0), end), entries) for number, end in sorted(ends.items())
    )

    def gone() -> bool:
        close_segments()
        for number in sorted(left):
            first, last = left[number][0], left[number][-1]
            found = _values(read(topic, number, first, last + 1), entries)
            if found:
                left[number] = found
            else:
                del left[number]
        if left:
            tell(f"compaction of {topic}: {sum(map(len, left.values()))} records of the key are left")
        return not left

    if left and not wait_until(gone, CLEANED_WITHIN_S, every_s=LOOK_EVERY_S):
        raise not_yet(
            topic,
            f"Kafka has not compacted {topic} in {CLEANED_WITHIN_S:.0f} s: partition "
            f"{', '.join(map(str, sorted(left)))} still has records of the key",
            "Check the broker's log cleaner (check `compaction_healthy` of the changelog).",
        )
    where = f"all {len(ends)} partitions were read from the first offset to the offset after the deletes"
    if not had and not deletes:
        return Found("absent", f"{where}: no record of the key")
    kept = "; its deletes (records without a value) go with `delete.retention.ms`" if deletes else ""
    return Found("gone", f"{where}, with aborted records: compaction left no value of the key{kept}")


def _values(records: Iterator[Record], entries: KeyEntries) -> list[int]:
    """The offsets of the key's records with a value."""
    return [each.offset for each in records if each.value is not None and entries.has(each.key)]


def _tombstones(records: Iterator[Record], entries: KeyEntries) -> int:
    return sum(each.value is None and entries.has(each.key) for each in records)
