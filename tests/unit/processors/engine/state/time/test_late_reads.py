"""A late message of a join reads only the times that it needs, however many later times its key has."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.dated_values import NUMBERS, DatedValues, Dating, Rest, line_of
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import StreamTime

KEY = b"k"


def kept() -> tuple[DeclaredState, DatedValues]:
    plain = StoreState("s", TaskStore(MemoryDatabases(lambda path, items: None), Path("unused")))
    state = DeclaredState(plain, None)
    dating = Dating(("l/",), lambda name, raw, look_ms, now_ms: Rest(raw), 10)
    dated = state.keep_dated(DatedValues(state, StreamTime(), dating))
    state.point_at(KEY, 0)
    return state, dated


def commit(state: DeclaredState) -> None:
    state._backend.write(state.rocks_changes(state.writes()), TaskMeta())
    state.committed()


@pytest.mark.parametrize("younger", [100, 2_000])
def test_a_late_message_reads_its_own_times_alone(monkeypatch: pytest.MonkeyPatch, younger: int) -> None:
    state, dated = kept()
    line = line_of(KEY, b"l/")
    for at in (5, 6, 7, *range(1_000_000, 1_000_000 + younger)):
        dated.put(line, at * NUMBERS, b"v")
    commit(state)
    # this read puts the times from 1,000,000 on into memory
    assert len(dated.moments(line, 1_000_000, 2_000_000)) == younger
    read, former = list[bytes](), StoreState.stored

    def counted(self: StoreState, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        for found in former(self, message_key, first):
            read.append(found[0])
            yield found

    monkeypatch.setattr(StoreState, "stored", counted)
    assert list(dated.moments(line, 5, 6)) == [5 * NUMBERS, 6 * NUMBERS]
    assert list(dated.moments(line, 7, 999)) == [7 * NUMBERS]
    assert list(dated.moments(line, -9, -1)) == []
    assert len(read) <= 7


@pytest.mark.parametrize("committed", [True, False])
def test_a_late_value_reads_one_of_its_time_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    state, dated = kept()
    line = line_of(KEY, b"l/")
    assert dated.moments(line, 1_000_000, 2_000_000) == ()  # this read puts the times from 1,000,000 on into memory
    read, former = list[bytes](), StoreState.stored_back

    def counted(self: StoreState, message_key: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
        for found in former(self, message_key, end):
            read.append(found[0])
            yield found

    monkeypatch.setattr(StoreState, "stored_back", counted)
    for at in (4, 6):
        dated.put(line, at * NUMBERS, b"v")
    names = []
    for number in range(200):
        assert dated.last(line, 5) == (5 * NUMBERS + number - 1 if number else None)
        names.append(dated.put(line, 5 * NUMBERS + number, b"v"))
        if committed:
            commit(state)
    assert names == ["l/000000000000005", *(f"l/000000000000005/{number:09d}" for number in range(1, 200))]
    assert len(read) <= 2 * len(names)
    assert list(dated.moments(line, 5, 5)) == [5 * NUMBERS + number for number in range(200)]
    assert dated.last(line, 5_000_000) is None
