"""Fingerprints of buckets (keys grouped by hash) add up to the fingerprint of the whole set.

They show in which bucket two sets differ.
"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.engine.state.buckets import BUCKETS, BucketPrints, bucket_of, in_buckets
from holdfast.processors.engine.state.fingerprint import BATCH_PAIRS, Fingerprint, fingerprint_of
from tests.bucketing import buckets_of, one_by_one, pair_hash

PAIRS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=60)


def many(count: int) -> list[tuple[bytes, bytes]]:
    rng = random.Random(3)
    return [(b"%d" % number, rng.randbytes(rng.randrange(60))) for number in range(count)]


@given(PAIRS)
def test_the_buckets_are_the_plain_sums_of_their_pairs(pairs: list[tuple[bytes, bytes]]) -> None:
    found = buckets_of(pairs)
    for number in {bucket_of(key) for key, _ in pairs} | {0, BUCKETS - 1}:
        assert found.bucket(number) == fingerprint_of(pair for pair in pairs if bucket_of(pair[0]) == number)
    assert found.whole == fingerprint_of(pairs)


def test_more_pairs_than_one_batch_add_up() -> None:
    pairs = many(2 * BATCH_PAIRS + 7)
    plain = one_by_one(pairs)
    assert buckets_of(pairs).whole == fingerprint_of(reversed(pairs)) == plain
    assert plain.count == 2 * BATCH_PAIRS + 7


def test_sums_wrap_around_at_64_bits() -> None:
    high = next(pair for pair in many(50) if pair_hash(*pair) >> 63)
    assert buckets_of([high, high]).whole == Fingerprint(2, 0, 2 * pair_hash(*high) & (1 << 64) - 1)


def test_only_the_bucket_of_what_differs_differs() -> None:
    pairs = dict(many(1000))
    other = {**pairs, b"7": b"another"}
    del other[b"8"]
    wanted = tuple(sorted({bucket_of(b"7"), bucket_of(b"8")}))
    assert buckets_of(pairs.items()).differing(buckets_of(other.items())) == wanted
    assert buckets_of(pairs.items()) == buckets_of(reversed(pairs.items()))
    assert buckets_of(pairs.items()) != buckets_of(other.items())


def test_a_pair_that_occurs_twice_differs() -> None:
    pairs = many(10)
    assert buckets_of(pairs).differing(buckets_of([*pairs, pairs[3], pairs[3]])) == (bucket_of(pairs[3][0]),)


def test_whole_buckets_of_somebody_else_are_added() -> None:
    found, pairs = BucketPrints(), many(300)
    for number in range(BUCKETS):
        found.put(number, fingerprint_of(pair for pair in pairs if bucket_of(pair[0]) == number))
    assert found == buckets_of(pairs)


def test_reading_buckets_gives_their_keys_and_every_value() -> None:
    pairs = [*many(1000), (b"5", b"again")]
    wanted = frozenset({bucket_of(b"5"), 3})
    found = in_buckets(iter(pairs), wanted)
    assert {bucket_of(key) for key in found} == wanted
    assert set(found) == {key for key, _ in pairs if bucket_of(key) in wanted}
    assert found[b"5"] == [value for key, value in pairs if key == b"5"]
