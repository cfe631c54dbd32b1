"""Reads of entries, compared with plain Python over the same records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.infra.clock import SystemClock
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.queries import entries
from holdfast.processors.engine.queries.entries import Found, MessageKeys, StateKeys, StoreReader
from holdfast.processors.engine.queries.errors import QueryWrong
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.rocksdb import export
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.own_keys import NEWEST
from holdfast.processors.engine.state.time.time_records import OWN, Span
from holdfast.processors.engine.state.time.window_keys import window_key
from holdfast.processors.engine.store_uses import WindowUse
from holdfast.processors.engine.topology import StoreSpec
from tests.mechanics.tiers import examples

PLAIN = StoreSpec("s", ("in",))
WINDOWED = StoreSpec("s", ("in",), uses=(WindowUse("tumbling", False, ()),))
#: State keys with the prefixes of each other, beyond ASCII, and one of Holdfast's own.
STATE_KEYS = st.sampled_from(["", "a", "ab", "abc", "b", "ü", "z", "\U0010ffff", NEWEST])
MESSAGE_KEYS = st.binary(max_size=3) | st.sampled_from([b"\xff", b"\xff\xff", b"aa", b"ab", b"b"])
Records = Mapping[tuple[bytes, str], int]
RECORDS = st.dictionaries(st.tuples(MESSAGE_KEYS, STATE_KEYS), st.integers(0, 9), max_size=25)


@contextmanager
def reader(
    records: Records, spec: StoreSpec = PLAIN, more: Mapping[bytes, bytes] | None = None
) -> Iterator[StoreReader]:
    """A reader of a store with these values. ``more`` has changelog keys with stored bytes."""
    with TemporaryDirectory() as folder:
        store = TaskStore(MemoryDatabases(export), Path(folder) / "task")
        changes = {key_prefix(key) + name.encode(): encode_value(value, 0) for (key, name), value in records.items()}
        # A neighbour store before and after this one, and Holdfast's own records.
        around = {store_prefix(each) + OWN + b"a": b"" for each in ("r", "t")}
        own = {OWN + b"clock": encode_value({"time": 0, "ahead": []}, 0)}
        found = {store_prefix(spec.name) + key: each for key, each in {**changes, **own, **(more or {})}.items()}
        store.write([*found.items(), *around.items()], TaskMeta(inputs={"in": 1}, complete_at=SystemClock().time()))
        with store.views.open() as view:
            yield StoreReader(view, spec)
        store.close()


def shown(records: Records, key: bytes) -> dict[str, int]:
    """The entries of a key that belong to the user, in the order of their bytes."""
    names = sorted((name for of, name in records if of == key and name != NEWEST), key=str.encode)
    return {name: records[key, name] for name in names}


def values(found: Found) -> dict[str, int]:
    return {name: json.loads(bytes(raw)) for name, raw in found.state.items()}


def paged(read: StoreReader, key: bytes, keys: StateKeys, limit: int) -> tuple[dict[str, int], list[int]]:
    """All entries, page by page, and the length of each page."""
    together, lengths, after = dict[str, int](), list[int](), b""
    while True:
        found = read.entries(key, keys, limit, after)
        assert len(found.state) <= limit
        assert not set(together) & set(found.state)
        together |= values(found)
        lengths.append(len(found.state))
        if found.after is None:
            return together, lengths
        after = found.after


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(
    records=RECORDS,
    key=MESSAGE_KEYS,
    prefix=STATE_KEYS,
    start=STATE_KEYS,
    end=st.none() | STATE_KEYS,
    limit=st.integers(1, 5),
)
def test_entries_of_a_key_are_those_of_plain_python(
    records: Records, key: bytes, prefix: str, start: str, end: str | None, limit: int
) -> None:
    expected = {
        name: value
        for name, value in shown(records, key).items()
        if name.startswith(prefix) and name.encode() >= start.encode() and (end is None or name.encode() < end.encode())
    }
    with reader(records) as read:
        found, lengths = paged(read, key, StateKeys(prefix=prefix, start=start, end=end), limit)
        assert list(found.items()) == list(expected.items())
        assert all(length == limit for length in lengths[:-1])
        assert lengths[-1] or lengths == [0], "the last page is empty only if there is no entry"
        for name, value in expected.items():
            one = read.entries(key, StateKeys(one=name), 1)
            assert (values(one), one.after) == ({name: value}, None)
        assert not read.entries(key, StateKeys(one=NEWEST), 1)


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(
    records=RECORDS,
    low=MESSAGE_KEYS,
    high=st.none() | MESSAGE_KEYS,
    limit=st.integers(1, 4),
    by_prefix=st.booleans(),
)
def test_pages_of_keys_are_those_of_plain_python(
    records: Records, low: bytes, high: bytes | None, limit: int, by_prefix: bool
) -> None:
    selected = MessageKeys.beginning_with(low) if by_prefix else MessageKeys(low, high)
    expected = {
        key: entries_of_key
        for key in sorted({key for key, _ in records}, key=lambda each: (len(each), each))
        if (key.startswith(low) if by_prefix else low <= key and (high is None or key < high))
        and (entries_of_key := shown(records, key))
    }
    with reader(records) as read:
        found, after = list[tuple[bytes, dict[str, int]]](), b""
        while True:
            page = read.message_keys(selected, limit, after)
            assert len(page.rows) <= limit
            found += [(key, values(each)) for key, each in page.rows]
            if page.after is None:
                break
            after = page.after
        assert found == list(expected.items())


def test_a_key_with_more_entries_than_a_read_looks_at_is_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRIES_MAX", 3)
    hidden = {(b"k", f"__holdfast/ends/{number}"): 1 for number in range(5)}
    with reader({**hidden, (b"k", "z"): 7}) as read:
        first = read.entries(b"k", StateKeys(), 100)
        assert (first.state, bool(first)) == ({}, True)
        assert paged(read, b"k", StateKeys(), 100)[0] == {"z": 7}
        page = read.message_keys(MessageKeys(), 100)
        assert (page.rows, page.after is None) == ([], False)


def test_a_read_ends_after_enough_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "BYTES_MAX", 200)
    records = {(b"k", f"{number:0100d}"): number for number in range(6)}
    with reader(records) as read:
        found, lengths = paged(read, b"k", StateKeys(), 100)
        assert (list(found.values()), lengths) == ([0, 1, 2, 3, 4, 5], [2, 2, 2])


def test_bytes_are_shown_as_base64() -> None:
    with reader({(b"k", "a"): 1}, more={key_prefix(b"k") + b"b": b"\x01\x02" + bytes(8) + b"\xff"}) as read:
        found = read.entries(b"k", StateKeys(), 9)
        assert (values(found), found.state_base64) == ({"a": 1}, {"b": base64.b64encode(b"\xff").decode()})
        stored = [read.value(b"k", name) for name in ("a", "b", "c")]
        assert [each and entries.raw_value(each) for each in stored] == [
            (b"1", "application/json"),
            (b"\xff", "application/octet-stream"),
            None,
        ]


@settings(max_examples=examples(200, tested=20), deadline=None)
@given(starts=st.sets(st.integers(0, 30), max_size=12), span=st.tuples(st.integers(0, 35), st.integers(0, 35)))
def test_windows_are_those_that_overlap_the_span(starts: set[int], span: tuple[int, int]) -> None:
    records = {(b"k", window_key(start, start + 5)): start for start in starts} | {(b"k", "time"): 1}
    expected = [start for start in sorted(starts) if start < span[1] and start + 5 > span[0]]
    with reader(records, WINDOWED) as read:
        seen, after = list[int](), b""
        while True:
            found = read.windows(b"k", Span(*span), 2, after)
            seen += [each["start"] for each in found.windows]
            assert all(each["end"] == each["start"] + 5 for each in found.windows)
            if found.after is None:
                break
            after = found.after
        assert seen == expected


def test_a_page_of_another_key_is_refused_by_the_reader() -> None:
    with reader({(b"a", "x"): 1, (b"b", "x"): 1}) as read, pytest.raises(QueryWrong, match="another key"):
        read.entries(b"b", StateKeys(), 9, key_prefix(b"a") + b"x")
