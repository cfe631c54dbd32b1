"""A key is erased in the tables of a store: no file in storage has it afterwards, and everything else is as before."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.assets.spark import history
from holdfast.assets.spark.catalog.versions import Versions
from holdfast.assets.spark.erasing import after_prefix, erase_in_tables, newest_ends
from holdfast.orchestration.erasing import files_with_key
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.snapshots.names import history_name, snapshot_tag, table_name, time_tag

KEY = KeyEntries("alice")


def changed(changelog: Any, number: int) -> None:
    changelog.write(0, [(b"alice", {"secret": number}), (b"bob", number), (b"ali", number)])
    changelog.write(1, [(b"carol", number)])


def test_no_file_in_storage_has_an_erased_key_and_the_next_snapshot_goes_on(
    changelog: Any, spark_settings: Any
) -> None:
    spark, table = changelog.spark, table_name(changelog.processor, "s")
    changelog.write(1, [(b"carol", 0)])
    before = changelog.snapshot().manifest  # a version without the key
    for number in range(3):
        changed(changelog, number)
        newest = changelog.snapshot().manifest
    spark.sql(f"ALTER TABLE {changelog.table_name} CREATE TAG `{time_tag('2026-11-21')}`")
    changelog.write(0, [(b"alice", None)])
    ends = changelog.ends()
    look = partial(files_with_key, spark_settings, KEY, ends)
    assert look(table)
    assert look(history_name(changelog.processor, "s"))

    changelog.snapshot()
    reached = newest_ends(spark, changelog.processor, "s") or {}
    assert all(reached[number] >= end - 1 for number, end in ends.items())
    done = erase_in_tables(spark, changelog.processor, "s", KEY, ends, look)
    assert (done.tables, done.rows) == (2, 4), "three values and the delete"
    assert done.tags >= 3, "the snapshots with the key, and the tag of a time"
    assert not look(table)
    assert not look(history_name(changelog.processor, "s"))
    tags = Versions.of(spark, table).refs
    assert snapshot_tag(before.snapshot_id) in tags, "a version without the key stays"
    assert snapshot_tag(newest.snapshot_id) not in tags
    assert changelog.stored() == changelog.model
    assert changelog.stored(history.live(history.fold(changelog.history()))) == changelog.model

    again = erase_in_tables(spark, changelog.processor, "s", KEY, ends, look)
    assert (again.rows, again.files, again.tags) == (0, 0, 0), "a repeated stage finds nothing"
    changed(changelog, 7)
    after = changelog.snapshot().manifest
    assert after.source == "incremental", after.why
    assert changelog.stored() == changelog.model, "later messages of the key are in the table again"
    assert changelog.stored(history.live(history.fold(changelog.history()))) == changelog.model
    assert not look(table), "they are no copies of what was erased"


def test_the_end_of_a_range_of_keys_is_after_all_keys_with_the_prefix() -> None:
    assert after_prefix(b"ab") == b"ac"
    assert after_prefix(b"a\xff\xff") == b"b"
