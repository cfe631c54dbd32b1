"""Partitioners: the hash functions by which producers choose a key's partition, and their detection from keys."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.infra.kafka.records import KeysOf

MURMUR2, CRC32 = "murmur2", "crc32"
#: Further results of ``spread_of``. "unknown": there are no keys; "neither": the keys match neither hash function.
UNKNOWN, NEITHER = "unknown", "neither"
#: Further value of ``Placing.by``: each key matches one of the two hash functions, but no function matches all keys.
BOTH = "both"
#: A detected partitioner is sure if the probability that its keys match by chance is below this value.
CHANCE_MAX = 1e-3
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key (org.apache.kafka.common.utils.Utils.murmur2), as an unsigned 32-bit number."""
    m, length = 0x5BD1E995, len(data)
    h = (0x9747B28C ^ length) & _MASK
    for start in range(0, length - 3, 4):
        k = (int.from_bytes(data[start : start + 4], "little") * m) & _MASK
        k = ((k ^ (k >> 24)) * m) & _MASK
        h = ((h * m) & _MASK) ^ k
    rest = data[length & ~3 :]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * m) & _MASK
    h = ((h ^ (h >> 13)) * m) & _MASK
    return h ^ (h >> 15)


def offsets_partition(group: str, count: int) -> int:
    """The partition of ``__consumer_offsets`` that stores a group's offsets.

    It is the absolute value of Java's ``String.hashCode`` of the group's name, modulo ``count``.
    """
    units = group.encode("utf-16-be")
    h = 0
    for place in range(0, len(units), 2):
        h = (31 * h + int.from_bytes(units[place : place + 2], "big")) & _MASK
    signed = h - (1 << 32) if h >> 31 else h
    return 0 if signed == -(1 << 31) else abs(signed) % count


#: Name -> function (key, number of partitions) -> partition. murmur2 is used by Java, Spark and Holdfast; crc32 is the
#: default of librdkafka.
PARTITIONERS: Mapping[str, Callable[[bytes, int], int]] = {
    MURMUR2: lambda key, count: (murmur2(key) & 0x7FFFFFFF) % count,
    CRC32: lambda key, count: zlib.crc32(key) % count,
}


def spread_of(keys: Iterable[tuple[int, bytes]], count: int) -> str:
    """The name of the partitioner that matches all pairs (partition, key) of a topic with ``count`` partitions.

    Otherwise ``UNKNOWN`` or ``NEITHER``.
    """
    seen = set(keys)
    if not seen:
        return UNKNOWN
    fits = (name for name, place in PARTITIONERS.items() if all(place(key, count) == number for number, key in seen))
    return next(fits, NEITHER)


@dataclass(frozen=True, slots=True)
class Placing:
    """The detected partitioner of a topic's producers.

    Args:
        by: MURMUR2, CRC32, BOTH, NEITHER or UNKNOWN.
        is_sure: Whether the sample is so large that the result is not chance.
        places: Key -> partitions that contain records with this key.
    """

    by: str
    is_sure: bool
    places: Mapping[bytes, frozenset[int]]

    @property
    def moved(self) -> bytes | None:
        """A key that occurs in more than one partition; None if there is no such key."""
        return next((key for key, numbers in sorted(self.places.items()) if len(numbers) > 1), None)


def placing_of(keys: KeysOf, count: int) -> Placing:
    """Detects the partitioner from the keys of a topic with ``count`` partitions; ``keys`` may be a sample."""
    places: dict[bytes, set[int]] = {}
    for number, found in keys.items():
        for key in found:
            places.setdefault(key, set()).add(number)
    seen = {(number, key) for key, numbers in places.items() for number in numbers}
    fits = {name: {at for at in seen if place(at[1], count) == at[0]} for name, place in PARTITIONERS.items()}
    whole = [name for name, those in fits.items() if those == seen]
    by, chance = UNKNOWN, 1.0
    if len(whole) == 1:  # if both hash functions match, for example with one partition, the result stays UNKNOWN
        by, chance = whole[0], (1 / count) ** len(seen)
    elif not whole:
        union = set().union(*fits.values())
        by, chance = (BOTH, (1 - (1 - 1 / count) ** len(fits)) ** len(seen)) if union == seen else (NEITHER, 0.0)
    return Placing(by, chance < CHANCE_MAX, {key: frozenset(numbers) for key, numbers in places.items()})
