"""Folding a changelog: the latest value of each key remains, deleted keys and meta records do not."""

from __future__ import annotations

from holdfast.infra.kafka.records import Record
from holdfast.processors.engine.changelog.format import META_KEY
from tests.oracles.fold import fold_changelog


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
