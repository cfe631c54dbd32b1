"""Queries read the same state as the owner command ``read``, over random topologies.

Two readers know which entries of a store are a user's and which have expired: the command on the worker's loop, and the
reader of queries on other threads. This test compares both when a worker's tasks close, for each store of each task.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.orchestration.commands.reports.readable_rows import is_internal
from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.engine.commands.read import _is_over
from holdfast.processors.engine.queries.entries import MessageKeys, StateKeys, StoreReader
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.views import NoView
from holdfast.processors.engine.state.time.time_records import session_of
from holdfast.processors.engine.state.time.window_keys import window_of
from holdfast.processors.engine.topology import StoreSpec, Topology
from tests.combinations.draw import draw_topology
from tests.combinations.run import quiet, run
from tests.combinations.schedules import draw_schedule
from tests.mechanics.tiers import examples

Entry = tuple[bytes, str]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quiet() as made:
        yield made


def by_command(task: Task, spec: StoreSpec) -> set[Entry]:
    """The entries that the command shows: message key and state key, or the window's times."""
    assert task.store is not None
    found = set()
    for key, stored in task.store.items(spec.name):
        message_key, state_key = split_key(key)
        text = message_key.decode(errors="surrogateescape")
        if not is_internal(spec, text, state_key) and not _is_over(task, spec.name, key, stored):
            window = (session_of(state_key, stored) or window_of(state_key)) if spec.has_windows else None
            found.add((message_key, state_key if window is None else str(window)))
    return found


def by_query(task: Task, spec: StoreSpec) -> set[Entry]:
    """The same entries, in pages of two message keys, and each key's entries once more by themselves."""
    assert task.store is not None
    found, after = set[Entry](), b""
    with task.store.views.open() as view:
        assert view.meta == task.store.meta()
        reader = StoreReader(view, spec)
        while True:
            page = reader.message_keys(MessageKeys(), 2, after)
            for key, entries in page.rows:
                names = [*entries.state, *entries.state_base64]
                names += [str((window["start"], window["end"])) for window in entries.windows]
                found |= {(key, name) for name in names}
                assert reader.entries(key, StateKeys(), 1000) == entries
            if page.after is None:
                return found
            after = page.after


def compare(seen: list[str], topology: Topology, task: Task) -> None:
    for spec in topology.stores:
        if task.running and task.store is not None and spec.name in task.states:
            try:
                read = by_query(task, spec)
            except NoView as reason:  # the schedule killed the worker in a write, or before its first commit
                if str(reason) in ("a write to the state failed", "the task has committed nothing yet"):
                    continue
                raise
            assert read == by_command(task, spec), f"store {spec.name} ({spec.kind}) of {task.name}"
            seen += [spec.name] * len(read)


def test_queries_show_what_the_command_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    close_all = Assignment.close_all

    def compared(assignment: Assignment) -> None:
        for task in assignment.tasks:
            compare(seen, assignment._topology, task)
        close_all(assignment)

    monkeypatch.setattr(Assignment, "close_all", compared)
    for seed in range(examples(200, tested=15)):
        topology = draw_topology(seed)
        run(topology, draw_schedule(topology, seed, 1), folder)
    assert len(seen) > 100
