"""Computes 256 fingerprints of a set of (key, value) pairs: one for each bucket (keys grouped by hash).

Two sets of pairs are compared by their fingerprints. Only buckets with different fingerprints must be compared pair by
pair.

A pair belongs to bucket ``xxh64(key, seed=42) & 255``, because the fingerprint needs this hash anyway. Spark's
``xxhash64(key) & 255`` is the same number. The sum of all 256 fingerprints is the fingerprint of the whole set.
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
    """The fingerprints of the 256 buckets of one set of pairs. A new object has the fingerprints of the empty set.

    Counts, xors and sums are arrays of unsigned 64-bit integers that wrap around. numpy is imported inside the methods,
    because operator commands import this module, and an installation with only the engine has no numpy.
    """

    __slots__ = ("_counts", "_totals", "_xors")

    def __init__(self) -> None:
        import numpy as np

        self._counts: _Words = np.zeros(BUCKETS, np.uint64)
        self._xors: _Words = np.zeros(BUCKETS, np.uint64)
        self._totals: _Words = np.zeros(BUCKETS, np.uint64)

    def add_pairs(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Adds (key, value) pairs to the set, given as two lists of equal length."""
        seeds = list(map(xxh64_intdigest, keys, repeat(SEED)))
        self.add_hashes(seeds, list(map(xxh64_intdigest, values, seeds)))

    def add_hashes(self, of_keys: Sequence[int], of_pairs: Sequence[int]) -> None:
        """Adds pairs to the set, given as parallel lists: the hashes of the keys, and the hashes of the pairs."""
        import numpy as np

        buckets = (np.array(of_keys, np.uint64) & np.uint64(BUCKETS - 1)).astype(np.intp)
        hashes = np.array(of_pairs, np.uint64)
        self._counts += np.bincount(buckets, minlength=BUCKETS).astype(np.uint64)
        np.bitwise_xor.at(self._xors, buckets, hashes)
        np.add.at(self._totals, buckets, hashes)

    def put(self, bucket: int, of: Fingerprint) -> None:
        """Adds the pairs of one bucket, given as the bucket's fingerprint that Spark has computed."""
        import numpy as np

        self._counts[bucket] += np.uint64(of.count)
        self._xors[bucket] ^= np.uint64(of.xor)
        self._totals[bucket] += np.uint64(of.total)

    def bucket(self, number: int) -> Fingerprint:
        """Returns the fingerprint of one bucket."""
        return Fingerprint(int(self._counts[number]), int(self._xors[number]), int(self._totals[number]))

    @property
    def whole(self) -> Fingerprint:
        """The fingerprint of the complete set."""
        import numpy as np

        total = int(np.add.reduce(self._totals))  # The sum wraps around at 2^64, as the sum of a ``Fingerprint`` does.
        return Fingerprint(int(self._counts.sum()), int(np.bitwise_xor.reduce(self._xors)), total)

    def differing(self, other: BucketPrints) -> tuple[int, ...]:
        """Returns the numbers of the buckets whose fingerprints differ between this set and ``other``, ascending."""
        unequal = (
            (self._counts != other._counts) | (self._xors != other._xors) | (self._totals != other._totals)
        ).nonzero()[0]
        return tuple(int(number) for number in unequal)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketPrints) and not self.differing(other)

    __hash__ = None  # type: ignore[assignment]  # mutable


def bucket_of(key: bytes) -> int:
    """Returns the number of a key's bucket, 0 to 255."""
    return int(xxh64_intdigest(key, SEED)) & (BUCKETS - 1)


def in_buckets(pairs: Iterable[tuple[bytes, bytes]], wanted: frozenset[int]) -> dict[bytes, list[bytes]]:
    """Selects the pairs whose keys are in the wanted buckets, as a map from each key to a list of its values.

    A list with several values shows that the key occurs more than once.
    """
    found: dict[bytes, list[bytes]] = {}
    rest = iter(pairs)
    while batch := list(islice(rest, BATCH_PAIRS)):
        hashes: Any = map(xxh64_intdigest, [key for key, _ in batch], repeat(SEED))
        for hashed, (key, value) in zip(hashes, batch, strict=True):
            if hashed & (BUCKETS - 1) in wanted:
                found.setdefault(key, []).append(value)
    return found
