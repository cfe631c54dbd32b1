"""Fingerprints of the buckets of pairs in memory."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.processors.engine.state.buckets import BucketPrints


def buckets_of(pairs: Iterable[tuple[bytes, bytes]]) -> BucketPrints:
    """The fingerprints of the buckets of a set of pairs."""
    found = BucketPrints()
    held = list(pairs)
    found.add_pairs([key for key, _ in held], [value for _, value in held])
    return found
