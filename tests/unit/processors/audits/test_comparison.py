"""Compares copies of the state at one moment. Finds the differing keys, counts them, and names the deviating copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.audits import comparison
from holdfast.processors.audits.comparison import SHOWN, Entry, Moment, Odd, Place, Side, classify, compare_copies
from holdfast.processors.engine.state.buckets import BucketPrints, bucket_of, in_buckets
from tests.bucketing import buckets_of

AT = Place("topic-id", 100)
S, C, W = Side.STORE, Side.CHANGELOG, Side.WAREHOUSE


class Held:
    """A copy of the state in memory.

    It records which buckets (keys grouped by hash) the comparison has read.
    """

    def __init__(self, pairs: Mapping[bytes, bytes] | list[tuple[bytes, bytes]]) -> None:
        self.pairs = list(pairs.items()) if isinstance(pairs, Mapping) else pairs
        self.asked: list[frozenset[int]] = []

    def prints(self) -> BucketPrints:
        return buckets_of(self.pairs)

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        self.asked.append(buckets)
        return {key: Entry(tuple(sorted(values))) for key, values in in_buckets(self.pairs, buckets).items()}


def nothing_newer(keys: Collection[bytes]) -> frozenset[bytes]:
    return frozenset()


def compared(copies: Mapping[Side, object], newer: frozenset[bytes] = frozenset()) -> Moment:
    held = {side: pairs if isinstance(pairs, Held) else Held(pairs) for side, pairs in copies.items()}  # type: ignore[arg-type]
    return compare_copies(0, AT, held, lambda keys: newer & frozenset(keys))


GOOD = {b"%d" % number: b"value %d" % number for number in range(2_000)}


@pytest.mark.parametrize(
    ("store", "changelog", "warehouse", "odd"),
    [
        (b"x", b"y", b"y", Odd.STORE),
        (b"y", b"x", b"y", Odd.CHANGELOG),
        (b"y", b"y", b"x", Odd.WAREHOUSE),
        (b"x", b"y", b"z", Odd.ALL),
        (None, b"y", b"y", Odd.STORE),
        (b"y", None, b"y", Odd.CHANGELOG),
        (b"y", b"y", None, Odd.WAREHOUSE),
        (b"x", None, None, Odd.STORE),
        (None, b"x", None, Odd.CHANGELOG),
        (None, None, b"x", Odd.WAREHOUSE),
        (b"x", b"y", None, Odd.ALL),
    ],
)
def test_who_stands_alone_is_named(
    store: bytes | None, changelog: bytes | None, warehouse: bytes | None, odd: Odd
) -> None:
    sides = {S: store, C: changelog, W: warehouse}
    copies = {side: GOOD if value is None else {**GOOD, b"key": value} for side, value in sides.items()}
    found = compared(copies)
    assert found.odd == {odd: 1}
    assert [(one.key, one.odd) for one in found.first] == [(b"key", odd)]
    assert {side: entry.values for side, entry in found.first[0].entries.items()} == {
        side: () if value is None else (value,) for side, value in sides.items()
    }
    assert found.by_bucket == {bucket_of(b"key"): 1}


@pytest.mark.parametrize(
    ("sides", "odd"),
    [((S, C), Odd.STORE_CHANGELOG), ((C, W), Odd.CHANGELOG_WAREHOUSE), ((S, W), Odd.STORE_WAREHOUSE)],
)
def test_two_copies_can_not_say_which_is_wrong(sides: tuple[Side, Side], odd: Odd) -> None:
    assert compared({sides[0]: GOOD, sides[1]: {**GOOD, b"0": b"x"}}).odd == {odd: 1}


def test_equal_copies_are_never_read_a_second_time() -> None:
    store, changelog = Held(GOOD), Held(dict(reversed(GOOD.items())))
    found = compared({S: store, C: changelog})
    assert (found.differing, found.sentence, found.by_bucket) == (0, None, {})
    assert store.asked == changelog.asked == []


def test_only_the_buckets_that_differ_are_read() -> None:
    store, changelog = Held(GOOD), Held({**GOOD, b"7": b"x", b"new": b"y"})
    compared({S: store, C: changelog})
    assert store.asked == changelog.asked == [frozenset({bucket_of(b"7"), bucket_of(b"new")})]


def test_a_pair_that_a_table_has_twice_is_a_difference() -> None:
    found = compared({S: GOOD, C: GOOD, W: [*GOOD.items(), (b"3", GOOD[b"3"])]})
    assert found.odd == {Odd.WAREHOUSE: 1}
    assert found.first[0].entries[W].values == (GOOD[b"3"],) * 2


def test_all_are_counted_and_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ENTRIES_AT_ONCE", 100)
    changed = dict.fromkeys(GOOD, b"x")
    store, changelog = Held(GOOD), Held(changed)
    found = compared({S: store, C: changelog})
    assert found.odd == {Odd.STORE_CHANGELOG: len(GOOD)}
    assert len(found.first) == SHOWN
    assert sum(found.by_bucket.values()) == len(GOOD)
    assert len(store.asked) > 10
    assert max(len(buckets) for buckets in store.asked) == 100 * 256 // len(GOOD)


def test_what_compaction_took_is_no_difference_and_is_counted_apart() -> None:
    changelog = {key: value for key, value in GOOD.items() if key not in (b"1", b"2")}
    found = compared({C: changelog, W: GOOD}, newer=frozenset({b"1"}))
    assert (found.odd, found.unjudged) == ({Odd.CHANGELOG_WAREHOUSE: 1}, 1)
    assert [one.key for one in found.first] == [b"2"]


def test_where_the_changelog_can_not_be_asked_store_and_table_still_can() -> None:
    changelog = {key: value for key, value in GOOD.items() if key not in (b"1", b"2")}
    found = compared({S: {**GOOD, b"1": b"x"}, C: changelog, W: GOOD}, newer=frozenset({b"1", b"2"}))
    assert (found.odd, found.unjudged) == ({Odd.STORE_WAREHOUSE: 1}, 1)


def test_a_newer_record_excuses_no_wrong_value_that_is_still_there() -> None:
    found = compared({C: {**GOOD, b"1": b"x"}, W: GOOD}, newer=frozenset({b"1"}))
    assert found.odd == {Odd.CHANGELOG_WAREHOUSE: 1}


def test_a_sentence_says_where_and_how_much() -> None:
    found = compared({S: GOOD, C: {**GOOD, b"a": b"1", b"b": b"2"}, W: GOOD})
    assert found.sentence is not None
    assert found.sentence.startswith("partition 0 at offset 100: the store is 2,000 keys (2000-")
    assert found.sentence.endswith("2 keys differ in the changelog only")


SMALL = st.dictionaries(st.integers(0, 12).map(lambda n: b"%d" % n), st.sampled_from([b"a", b"b"]), max_size=12)


@given(SMALL, SMALL, SMALL)
def test_found_is_exactly_what_a_plain_comparison_finds(
    store: dict[bytes, bytes], changelog: dict[bytes, bytes], warehouse: dict[bytes, bytes]
) -> None:
    copies = {S: store, C: changelog, W: warehouse}
    expected = {
        key
        for key in store.keys() | changelog.keys() | warehouse.keys()
        if not store.get(key) == changelog.get(key) == warehouse.get(key)
    }
    found = compared(copies)
    assert {one.key for one in found.first} == expected
    assert found.differing == len(expected)
    for one in found.first:
        assert one.odd is classify({side: one.entries[side] for side in copies})
