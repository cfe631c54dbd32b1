"""Computes fingerprints of key-value pairs in memory: by bucket (keys grouped by hash), or one pair at a time."""

from __future__ import annotations

from collections.abc import Iterable

from xxhash import xxh64_intdigest

from holdfast.processors.engine.state.buckets import BucketPrints
from holdfast.processors.engine.state.fingerprint import SEED, Fingerprint


def buckets_of(pairs: Iterable[tuple[bytes, bytes]]) -> BucketPrints:
    """The fingerprints of a set of key-value pairs, one for each bucket of keys (keys grouped by hash)."""
    found = BucketPrints()
    held = list(pairs)
    found.add_pairs([key for key, _ in held], [value for _, value in held])
    return found


def pair_hash(key: bytes, value: bytes) -> int:
    """The hash of one key-value pair, as an unsigned 64-bit number."""
    return int(xxh64_intdigest(value, xxh64_intdigest(key, SEED)))


def one_by_one(pairs: Iterable[tuple[bytes, bytes]]) -> Fingerprint:
    """The fingerprint of a set of pairs, computed by adding one pair at a time."""
    found = Fingerprint()
    for key, value in pairs:
        hashed = pair_hash(key, value)
        found += Fingerprint(1, hashed, hashed)
    return found
