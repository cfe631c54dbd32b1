"""Counts lost, duplicate and disordered records of an output topic, by the sequence number in each record.

A processor numbers the updates of each key 1, 2, 3, … A missing number is a lost record. A repeated number is a
duplicate. A number smaller than the previous number of the key is a disordered record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast.infra.kafka.records import Record
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics


@dataclass(frozen=True, slots=True)
class SequenceCheck:
    """Counts of lost, duplicate and disordered records in one output topic; without errors, all are 0."""

    records: int
    keys: int
    lost: int
    doubled: int
    disordered: int
    unexpected: int

    @property
    def mismatches(self) -> int:
        """The number of all errors: lost, duplicate, disordered and unexpected records."""
        return self.lost + self.doubled + self.disordered + self.unexpected


def check_sequences(updates: Iterable[tuple[str, int]], expected: Mapping[str, int]) -> SequenceCheck:
    """Count the errors in the updates of a topic.

    Args:
        updates: Pairs (key, sequence number), in the order of the offsets in each partition.
        expected: Key -> expected number of updates.
    """
    records = disordered = 0
    last: dict[str, int] = {}
    # Key -> its sequence numbers, only for keys whose numbers did not arrive in the order 1, 2, 3, …
    odd: dict[str, set[int]] = {}
    for key, number in updates:
        records += 1
        before = last.get(key, 0)
        last[key] = number
        if number == before + 1 and key not in odd:
            continue
        disordered += number < before
        odd.setdefault(key, set(range(1, before + 1))).add(number)
    seen: dict[str, Collection[int]] = {key: odd.get(key) or range(1, number + 1) for key, number in last.items()}
    distinct = sum(len(numbers) for numbers in seen.values())
    lost = sum(
        sum(number not in seen.get(key, ()) for number in range(1, count + 1)) for key, count in expected.items()
    )
    rightful = sum(sum(1 <= number <= expected.get(key, 0) for number in numbers) for key, numbers in seen.items())
    return SequenceCheck(
        records=records,
        keys=len(seen),
        lost=lost,
        doubled=records - distinct,
        disordered=disordered,
        unexpected=distinct - rightful,
    )


class _Update(msgspec.Struct):
    flights: int


class _Window(msgspec.Struct):
    start: int


def committed(
    topics: Topics, topic: str, starts: Mapping[int, int] | None = None, ends: Mapping[int, int] | None = None
) -> Iterator[Record]:
    """Yield the committed records of a topic between two offsets of each partition; by default, all records.

    ``starts`` and ``ends`` map a partition to an offset.
    """
    starts = topics.start_offsets(topic) if starts is None else starts
    for partition, end in (topics.settled_end_offsets(topic) if ends is None else ends).items():
        if starts[partition] < end:
            yield from read_range(topics.bootstrap, topic, partition, starts[partition], end)


def updates_of(records: Iterable[Record]) -> Iterator[tuple[str, int]]:
    """Yields key and sequence number of each record of an output topic.

    The number is the field ``flights`` of the value.
    """
    decode = msgspec.json.Decoder(_Update).decode
    return (((record.key or b"").decode(), decode(record.value or b"{}").flights) for record in records)


def starts_of(records: Iterable[Record]) -> Iterator[tuple[str, int]]:
    """Yield (key, start) of each window in the records of an output topic."""
    decode = msgspec.json.Decoder(_Window).decode
    return (((record.key or b"").decode(), decode(record.value or b"{}").start) for record in records)


def write_lines(records: Iterable[Record], path: Path) -> Path:
    """Write each record as a line of JSON: the value's fields, and the key as ``message_key``. Returns ``path``."""
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(dict[str, Any]).decode
    with path.open("wb") as file:
        for record in records:
            line = {"message_key": (record.key or b"").decode(), **decode(record.value or b"{}")}
            file.write(encode(line) + b"\n")
    return path
