"""Fingerprints of sets of (key, value) pairs: equal sets have equal fingerprints, in any order.

The hash of a pair is ``h = xxh64(value, seed=xxh64(key, seed=42))`` over the bytes of the changelog's key and value. A
fingerprint is the count of the pairs, the xor of all h, and their sum modulo 2^64. The xor alone would not show a pair
that occurs twice. Spark's ``xxhash64(key, value)`` is the same h.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import islice, repeat
from operator import xor

from xxhash import xxh64_intdigest

SEED = 42
#: Number of pairs that are hashed in one batch. The number is small, so that the pairs stay in the CPU's caches.
BATCH_PAIRS = 2_048
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of a set of pairs; ``xor`` and ``total`` are unsigned 64-bit integers."""

    count: int = 0
    xor: int = 0
    total: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        """Returns the fingerprint of the union of two disjoint sets."""
        return Fingerprint(self.count + other.count, self.xor ^ other.xor, (self.total + other.total) & _MASK)

    @property
    def hex(self) -> str:
        """Returns the fingerprint as text: count, xor and sum, joined by hyphens."""
        return f"{self.count}-{self.xor:016x}-{self.total:016x}"

    @classmethod
    def of_hex(cls, text: str) -> Fingerprint:
        """Parses the text form that ``hex`` returns; raises ValueError for any other text."""
        count, mixed, total = text.split("-")
        return cls(int(count), int(mixed, 16), int(total, 16))


def fingerprint_of(pairs: Iterable[tuple[bytes, bytes]]) -> Fingerprint:
    """Computes the fingerprint of a set of (key, value) pairs."""
    rest = iter(pairs)
    count = mixed = total = 0
    while batch := list(islice(rest, BATCH_PAIRS)):
        keys, values = zip(*batch, strict=True)
        hashes = list(map(xxh64_intdigest, values, map(xxh64_intdigest, keys, repeat(SEED))))
        count += len(hashes)
        mixed = reduce(xor, hashes, mixed)
        total += sum(hashes)
    return Fingerprint(count, mixed, total & _MASK)
