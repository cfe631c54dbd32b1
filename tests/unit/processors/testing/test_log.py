"""The log of one partition: markers, the last stable offset, compaction, and logs that lost their head or tail."""

from __future__ import annotations

from holdfast.processors.testing.log import PartitionLog

Seen = list[tuple[int, bytes | None, bytes | None]]


def put(log: PartitionLog, key: bytes | None, value: bytes | None, producer: int | None = None) -> int:
    return log.append(key, value, 1, None, producer)


def end(log: PartitionLog, producer: int, *, commit: bool) -> None:
    log.end_transaction(producer, commit=commit, timestamp_ms=1)


def seen(log: PartitionLog, *, committed: bool = True, start: int = 0) -> Seen:
    entries, _ = log.read(start, 1000, committed=committed)
    return [(entry.offset, entry.key, entry.value) for entry in entries]


def history() -> PartitionLog:
    """Offsets: 0 a, 1 b, 2 marker, 3 a (aborted), 4 marker, 5 b deleted, 6 a, 7 marker, 8 c (open transaction), 9 a."""
    log = PartitionLog()
    put(log, b"a", b"1", 1)
    put(log, b"b", b"1", 1)
    end(log, 1, commit=True)
    put(log, b"a", b"aborted", 1)
    end(log, 1, commit=False)
    put(log, b"b", None, 1)
    put(log, b"a", b"2", 1)
    end(log, 1, commit=True)
    put(log, b"c", b"open", 2)
    put(log, b"a", b"3")
    return log


def test_the_oldest_open_transaction_holds_the_last_stable_offset() -> None:
    log = PartitionLog()
    put(log, b"a", b"1")
    put(log, b"b", b"1", 7)
    put(log, b"c", b"1", 8)
    put(log, b"d", b"1")
    assert (log.last_stable, log.end) == (1, 4)
    assert seen(log) == [(0, b"a", b"1")]
    end(log, 8, commit=True)
    assert (log.last_stable, log.end) == (1, 5)
    end(log, 7, commit=False)
    assert (log.last_stable, log.end) == (6, 6)
    assert seen(log) == [(0, b"a", b"1"), (2, b"c", b"1"), (3, b"d", b"1")]


def test_readers_of_everything_see_what_is_open_and_aborted_but_no_markers() -> None:
    assert [offset for offset, _, _ in seen(history(), committed=False)] == [0, 1, 3, 5, 6, 8, 9]


def test_the_position_counts_markers_and_aborted_records() -> None:
    log = history()
    assert log.read(0, 1000, committed=True)[1] == 8
    assert log.read(0, 2, committed=True)[1] == 2
    assert log.read(2, 1, committed=True)[1] == 6


def test_cleaning_keeps_the_latest_of_a_key_below_the_last_stable_offset() -> None:
    log = history()
    log.compact(drop_tombstones=False)
    assert seen(log) == [(5, b"b", None), (6, b"a", b"2")]
    assert seen(log, committed=False) == [(5, b"b", None), (6, b"a", b"2"), (8, b"c", b"open"), (9, b"a", b"3")]
    assert (log.start, log.end, log.last_stable) == (0, 10, 8)


def test_deletes_and_markers_go_only_when_told_so() -> None:
    log = history()
    log.compact(drop_tombstones=False)
    assert log.read(0, 1000, committed=True)[1] == 8  # the position is after the marker at 7
    log.compact(drop_tombstones=True)
    assert seen(log) == [(6, b"a", b"2")]
    assert (log.start, log.end, log.last_stable) == (0, 10, 8)


def test_a_reader_passes_offsets_below_an_open_transaction_that_hold_no_record_any_more() -> None:
    log = history()
    log.compact(drop_tombstones=True)
    assert log.read(0, 1000, committed=True)[1] == 8  # the marker at 7 is gone; the position is at the open transaction
    assert log.read(7, 1000, committed=True) == ([], 8)
    assert log.read(0, 1, committed=False)[1] == 7


def test_a_reader_reaches_the_end_where_the_tail_was_cleaned_away() -> None:
    log = history()
    end(log, 2, commit=False)
    log.compact(drop_tombstones=True)
    assert seen(log) == [(9, b"a", b"3")]
    entries, position = log.read(0, 1000, committed=True)
    assert (len(entries), position) == (1, 11)
    put(log, b"x", None)
    log.compact(drop_tombstones=True)
    assert log.read(0, 1000, committed=True)[1] == 12
    assert log.read(11, 1000, committed=True) == ([], 12)
    assert log.read(12, 1000, committed=True) == ([], 12)
    assert (log.end, log.last_stable) == (12, 12)
    assert put(log, b"y", b"1") == 12


def test_records_without_a_key_do_not_survive_cleaning() -> None:
    log = PartitionLog()
    put(log, None, b"1")
    put(log, b"k", b"1")
    log.compact(drop_tombstones=False)
    assert seen(log) == [(1, b"k", b"1")]


def test_a_lost_head_moves_the_start() -> None:
    log = history()
    log.truncate(start=6, end=None)
    assert (log.start, log.end, log.last_stable) == (6, 10, 8)
    assert seen(log) == [(6, b"a", b"2")]


def test_a_lost_tail_moves_the_end_and_its_offsets_are_given_again() -> None:
    log = history()
    log.truncate(start=None, end=6)
    assert (log.start, log.end, log.last_stable) == (0, 6, 6)
    assert put(log, b"z", b"1") == 6


def test_a_transaction_that_lost_its_records_holds_nothing() -> None:
    log = history()
    log.truncate(start=9, end=None)
    assert (log.start, log.last_stable) == (9, 10)
    log = history()
    put(log, b"d", b"open, too", 2)
    log.truncate(start=None, end=9)
    assert log.last_stable == 8
    end(log, 2, commit=True)
    assert (log.last_stable, log.end) == (10, 10)
