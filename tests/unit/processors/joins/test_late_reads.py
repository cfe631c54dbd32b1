"""A late message of a join reads the times that it asks for, however many younger ones its key has."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.processors.engine.state.dated_values import DatedValues, Dating, Rest, line_of
from holdfast.processors.engine.state.declared import DeclaredState
from holdfast.processors.engine.state.memory import MemoryDatabases
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.stream_time import StreamTime
from holdfast.processors.engine.state.task_store import TaskMeta, TaskStore

KEY = b"k"


@pytest.mark.parametrize("younger", [100, 2_000])
def test_a_late_message_reads_its_own_times_alone(monkeypatch: pytest.MonkeyPatch, younger: int) -> None:
    plain = StoreState("s", TaskStore(MemoryDatabases(lambda path, items: None), Path("unused")))
    state = DeclaredState(plain, None)
    dating = Dating(("l/",), lambda name, raw, look_ms, now_ms: Rest(raw), 10)
    dated = state.keep_dated(DatedValues(state, StreamTime(), dating))
    state.point_at(KEY, 0)
    line = line_of(KEY, b"l/")
    for at in (5, 6, 7, *range(1_000_000, 1_000_000 + younger)):
        dated.put(line, at, b"v", is_new=True)
    state._backend.write(state.rocks_changes(state.writes()), TaskMeta())
    state.committed()
    assert len(dated.times(line, 1_000_000, 2_000_000)) == younger  # in memory, from its floor on
    read, former = list[bytes](), StoreState.stored

    def counted(self: StoreState, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        for found in former(self, message_key, first):
            read.append(found[0])
            yield found

    monkeypatch.setattr(StoreState, "stored", counted)
    assert list(dated.times(line, 5, 6)) == [5, 6]
    assert list(dated.times(line, 7, 999)) == [7]
    assert list(dated.times(line, -9, -1)) == []
    assert len(read) <= 7
