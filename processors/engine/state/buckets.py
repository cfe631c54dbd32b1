"""Fingerprints of 256 buckets of a set. Two sets differ only in buckets with different fingerprints.

A pair belongs to bucket ``xxh64(key, seed=42) & 255``; the fingerprint needs this hash anyway. Spark's ``xxhash64(key)
& 255`` is the same number. The sum of the buckets' fingerprints is the fingerprint of the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from xxhash import xxh64_intdigest

from holdfast.processors.engine.state.fingerprint import BATCH_PAIRS, SEED, Fingerprint

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Words: TypeAlias = npt.NDArray[np.uint64]

BUCKETS = 256


class BucketPrints:
    """The fingerprints of the buckets of one set, at first the empty set.

    Counts, xors and sums are arrays of unsigned 64-bit integers that wrap around. numpy is imported at the first use:
    verbs need this module's numbers, and an installation of the engine alone has no numpy.
    """

    __slots__ = ("_counts", "_totals", "_xors")

    def __init__(self) -> None:
        import numpy as np

        self._counts: _Words = np.zeros(BUCKETS, np.uint64)
        self._xors: _Words = np.zeros(BUCKETS, np.uint64)
        self._totals: _Words = np.zeros(BUCKETS, np.uint64)

    def add_pairs(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Adds pairs, given as parallel lists of keys and values."""
        seeds = list(map(xxh64_intdigest, keys, repeat(SEED)))
        self.add_hashes(seeds, list(map(xxh64_intdigest, values, seeds)))

    def add_hashes(self, of_keys: Sequence[int], of_pairs: Sequence[int]) -> None:
        """Adds pairs, given as parallel lists of key hashes and pair hashes."""
        import numpy as np

        buckets = (np.array(of_keys, np.uint64) & np.uint64(BUCKETS - 1)).astype(np.intp)
        hashes = np.array(of_pairs, np.uint64)
        self._counts += np.bincount(buckets, minlength=BUCKETS).astype(np.uint64)
        np.bitwise_xor.at(self._xors, buckets, hashes)
        np.add.at(self._totals, buckets, hashes)

    def put(self, bucket: int, of: Fingerprint) -> None:
        """Adds the fingerprint of a whole bucket, computed by Spark."""
        import numpy as np

        self._counts[bucket] += np.uint64(of.count)
        self._xors[bucket] ^= np.uint64(of.xor)
        self._totals[bucket] += np.uint64(of.total)

    def bucket(self, number: int) -> Fingerprint:
        """The fingerprint of one bucket."""
        return Fingerprint(int(self._counts[number]), int(self._xors[number]), int(self._totals[number]))

    @property
    def whole(self) -> Fingerprint:
        """The fingerprint of the set."""
        import numpy as np

        total = int(np.add.reduce(self._totals))  # modulo 2^64, as a fingerprint's sum is
        return Fingerprint(int(self._counts.sum()), int(np.bitwise_xor.reduce(self._xors)), total)

    def differing(self, other: BucketPrints) -> tuple[int, ...]:
        """The numbers of the buckets in which two sets differ, ascending."""
        unequal = (
            (self._counts != other._counts) | (self._xors != other._xors) | (self._totals != other._totals)
        ).nonzero()[0]
        return tuple(int(number) for number in unequal)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketPrints) and not self.differing(other)

    __hash__ = None  # type: ignore[assignment]  # mutable


def bucket_of(key: bytes) -> int:
    """The number of a key's bucket."""
    return int(xxh64_intdigest(key, SEED)) & (BUCKETS - 1)


def in_buckets(pairs: Iterable[tuple[bytes, bytes]], wanted: frozenset[int]) -> dict[bytes, list[bytes]]:
    """The values of each key in the wanted buckets; a list with several values shows a duplicate key."""
    found: dict[bytes, list[bytes]] = {}
    rest = iter(pairs)
    while batch := list(islice(rest, BATCH_PAIRS)):
        hashes: Any = map(xxh64_intdigest, [key for key, _ in batch], repeat(SEED))
        for hashed, (key, value) in zip(hashes, batch, strict=True):
            if hashed & (BUCKETS - 1) in wanted:
                found.setdefault(key, []).append(value)
    return found
