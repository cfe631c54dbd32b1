"""Partitioners: the hash functions by which producers choose a key's partition, and their detection from keys."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from holdfast.infra.kafka.records import KeysOf

MURMUR2, CRC32 = "murmur2", "crc32"
#: Results of ``spread_of`` that name no partitioner: "unknown" without keys, "neither" if no hash function matches.
UNKNOWN, NEITHER = "unknown", "neither"
#: Another value of ``Placing.by``: no hash function matches all keys, but each key matches one of the two functions.
BOTH = "both"
#: A detected partitioner counts as certain if the probability that it matches all keys by chance is below this value.
CHANCE_MAX = 1e-3
_MASK = 0xFFFFFFFF
#: Minimum number of keys that are hashed together with numpy. For fewer keys, numpy's calls cost more than they save.
TOGETHER_MIN = 64


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


def murmur2_of(keys: Sequence[bytes]) -> list[int]:
    """``murmur2`` of many keys; with numpy, keys of one length are hashed together."""
    if len(keys) < TOGETHER_MIN or (np := _numpy()) is None:
        return list(map(murmur2, keys))
    found, by_length = [0] * len(keys), dict[int, list[int]]()
    for index, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(index)
    for length, indices in by_length.items():
        hashes = _murmur2_of_length(np, b"".join([keys[index] for index in indices]), length, len(indices))
        for index, made in zip(indices, hashes, strict=True):
            found[index] = made
    return found


def _murmur2_of_length(np: Any, joined: bytes, length: int, count: int) -> list[int]:
    m, h = np.uint32(0x5BD1E995), np.full(count, 0x9747B28C ^ length, np.uint32)
    table = np.frombuffer(joined, np.uint8).reshape(count, length).astype(np.uint32)
    for start in range(0, length - 3, 4):
        word = [table[:, start + place] << np.uint32(8 * place) for place in range(4)]
        k = (word[0] | word[1] | word[2] | word[3]) * m
        h = (h * m) ^ ((k ^ (k >> np.uint32(24))) * m)
    if length & 3:
        for place in range(length & 3):
            h = h ^ (table[:, (length & ~3) + place] << np.uint32(8 * place))
        h = h * m
    h = (h ^ (h >> np.uint32(13))) * m
    hashes: list[int] = (h ^ (h >> np.uint32(15))).tolist()
    return hashes


@cache
def _numpy() -> Any:
    """The module numpy; None if it is not installed. An installation of only the engine may not have numpy."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


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


#: Maps the name of a partitioner to its function: (key, number of partitions) -> partition. murmur2 is used by Java,
#: Spark and Holdfast; crc32 is the default of librdkafka.
PARTITIONERS: Mapping[str, Callable[[bytes, int], int]] = {
    MURMUR2: lambda key, count: (murmur2(key) & 0x7FFFFFFF) % count,
    CRC32: lambda key, count: zlib.crc32(key) % count,
}


def partitions_of(partitioner: str, keys: Sequence[bytes], count: int) -> list[int]:
    """The partition of each key, computed by this partitioner for a topic with ``count`` partitions."""
    if partitioner == MURMUR2:
        return [(each & 0x7FFFFFFF) % count for each in murmur2_of(keys)]
    place = PARTITIONERS[partitioner]
    return [place(key, count) for key in keys]


def spread_of(keys: Iterable[tuple[int, bytes]], count: int) -> str:
    """The name of the partitioner that matches all pairs (partition, key) of a topic with ``count`` partitions.

    ``UNKNOWN`` if there are no keys, and ``NEITHER`` if no partitioner matches.
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
    # If both hash functions match all keys, for example with one partition, the result stays UNKNOWN.
    if len(whole) == 1:
        by, chance = whole[0], (1 / count) ** len(seen)
    elif not whole:
        union = set().union(*fits.values())
        by, chance = (BOTH, (1 - (1 - 1 / count) ** len(fits)) ** len(seen)) if union == seen else (NEITHER, 0.0)
    return Placing(by, chance < CHANCE_MAX, {key: frozenset(numbers) for key, numbers in places.items()})
