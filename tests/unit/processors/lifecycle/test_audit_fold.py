"""The plain fold of a changelog, and its comparison with a store."""

from __future__ import annotations

from infra.kafka.records import Record
from processors.changelog.format import META_KEY
from processors.lifecycle.audit import compare, fold_changelog
from processors.state.fingerprint import fingerprint_of


def record(key: bytes | None, value: bytes | None, offset: int = 0) -> Record:
    return Record(key, value, offset, 0, None)


def test_the_newest_value_of_each_key_stays() -> None:
    records = [record(b"a", b"1"), record(b"b", b"1"), record(b"a", b"2")]
    assert fold_changelog(records) == {b"a": b"2", b"b": b"1"}


def test_deleted_keys_and_meta_records_are_no_state() -> None:
    records = [record(b"a", b"1"), record(META_KEY, b"{}"), record(b"a", None), record(b"never", None)]
    assert fold_changelog(records) == {}


def test_a_key_set_again_after_its_deletion_is_state() -> None:
    assert fold_changelog([record(b"a", b"1"), record(b"a", None), record(b"a", b"3")]) == {b"a": b"3"}


def test_equal_partitions_do_not_differ() -> None:
    one = fingerprint_of([(b"a", b"1")])
    assert compare({0: one, 1: one}, {0: one, 1: one}) == []


def test_differences_name_the_partition_and_both_sides() -> None:
    one, two = fingerprint_of([(b"a", b"1")]), fingerprint_of([(b"a", b"2")])
    found = compare({0: one, 1: one, 2: one}, {0: one, 1: two, 3: two})
    assert [difference.partition for difference in found] == [1, 2, 3]
    assert one.hex in found[0].sentence
    assert two.hex in found[0].sentence
    assert "the changelog absent" in found[1].sentence
    assert "the store is absent" in found[2].sentence
