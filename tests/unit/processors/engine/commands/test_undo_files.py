"""A command writes an undo file with everything that it removes, however often the command is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, State
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta, decode_value, split_key
from holdfast.processors.engine.commands import content, sweep
from holdfast.processors.engine.commands.table import COMMANDS
from holdfast.processors.engine.runtime.owner_commands.commands import Adopt, Clear, CommandWrong
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from tests.window_lives import carry_out, stored

KEYS = ("a", "b", "c")
OTHER = "other-content"


def count(value: Any, state: State) -> int:
    state.set("n", (state.get("n") or 0) + 1)
    return state.get("n") or 0


def counting() -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in")).apply(count, stateful=True, store="counts").to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    made.create_topic("out")
    feed(made, 3)
    made.run(counting())
    return made


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small batches, so that a command takes many transactions."""
    for module, name in ((sweep, "ENTRIES_MAX"), (sweep, "LOOKS_MAX"), (content, "LOOKS_MAX")):
        monkeypatch.setattr(module, name, 1)
    return


def feed(cluster: InMemoryCluster, times: int, keys: tuple[str, ...] = KEYS) -> None:
    for _ in range(times):
        for key in keys:
            cluster.produce("in", b"1", key.encode())


def counts_in(lines: list[bytes]) -> dict[str, int]:
    return {line["key"]: line["value"] for line in map(json.loads, lines)}


def held(cluster: InMemoryCluster) -> dict[str, int]:
    """The counts in the store, read from its changelog."""
    return {split_key(key)[0].decode(): decode_value(value) for key, value in _entries(cluster)}


def _entries(cluster: InMemoryCluster) -> list[tuple[bytes, bytes]]:
    return list(stored(cluster, counting(), "counts").items())


def other(cluster: InMemoryCluster, *keys: str) -> dict[int, int]:
    """A second changelog, in which these keys have the count 9. Returns its end offsets."""
    entries = _entries(cluster)
    topic = f"{OTHER}-{len(keys)}"
    cluster.create_topic(topic)
    for key, value in entries:
        if any(name.encode() in key for name in keys):
            cluster.produce(topic, value[:-1] + b"9", key)
    cluster.produce(topic, ChangelogMeta({}, 0, "").encode(), META_KEY)
    return {0: len(cluster.read(topic))}


def twice(cluster: InMemoryCluster, command: Adopt) -> list[dict[str, Any]]:
    """Send a command twice to a paused worker. Returns both results.

    To the first result, ``lines`` is added: the lines of the undo file that it names.
    """
    app, told = counting(), list[dict[str, Any]]()

    def errand(worker: Owner, ticket: Ticket) -> Work:
        worker.maintenance.waits = True
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        worker.maintenance.waits = False
        worker.pause()  # type: ignore[attr-defined]
        yield
        for _ in range(2):
            told.append((yield from COMMANDS.work_of(command, worker, ticket)))
        told[0]["lines"] = Path(told[0]["export"]["path"]).read_bytes().splitlines()
        worker.stop()  # type: ignore[attr-defined]
        return told[-1]

    app._errand = errand
    cluster.run(app)
    return told


def test_messages_that_come_during_a_clear_are_in_the_file_or_in_the_store(cluster: InMemoryCluster) -> None:
    """A worker that is not paused counts messages between the export and the deletes of a clear.

    Each of these messages must be in the undo file or in the store.
    """
    app, told = counting(), dict[str, int]()

    def errand(worker: Owner, ticket: Ticket) -> Work:
        worker.maintenance.waits = True
        while not worker.assignment.tasks or not all(task.running for task in worker.assignment.tasks):
            yield
        worker.maintenance.waits = False
        work = COMMANDS.work_of(Clear(store="counts", export=True, all=True), worker, ticket)
        while True:
            try:
                next(work)
            except StopIteration as done:
                lines = Path(done.value["export"]["path"]).read_bytes().splitlines()
                told.update(counts_in(lines))
                worker.stop()  # type: ignore[attr-defined]
                return done.value
            feed(cluster, 1)
            yield

    app._errand = errand
    cluster.run(app)
    cluster.run(counting())
    sent = len(cluster.read("in"))
    assert sent > 9, "messages came during the clear"
    assert sum(told.values()) + sum(held(cluster).values()) == sent


def test_a_clear_that_is_sent_again_writes_no_file_of_what_was_set_since(cluster: InMemoryCluster) -> None:
    asked = Clear(store="counts", export=True, all=True, once="apply 7, stage 2")
    assert counts_in(carry_out(cluster, counting(), asked)["lines"]) == {"a": 3, "b": 3, "c": 3}
    feed(cluster, 1)
    cluster.run(counting())
    again = carry_out(cluster, counting(), asked)
    assert "export" not in again, "put back, this file would undo what was counted since"
    assert held(cluster) == {"a": 1, "b": 1, "c": 1}


def test_an_adoption_writes_the_entries_that_it_replaces_first(cluster: InMemoryCluster) -> None:
    before = held(cluster)
    upto = other(cluster, "a", "b")
    asked = Adopt(store="counts", changelog=f"{OTHER}-2", upto=upto, export=True, once="apply 7, stage 3")
    done, again = twice(cluster, asked)
    assert counts_in(done["lines"]) == before == {"a": 3, "b": 3, "c": 3}
    assert held(cluster) == {"a": 9, "b": 9}
    assert (again["set"], again["deleted"]) == (0, 0)
    assert "export" not in again, "the file of the first attempt has the entries of before"
    assert again["before"] == [done["export"]["path"]], "whoever repeats it is told that file"


def test_a_file_is_put_back_with_a_file_of_its_keys_only(cluster: InMemoryCluster) -> None:
    upto = other(cluster, "b")
    asked = Adopt(store="counts", changelog=f"{OTHER}-1", upto=upto, keep=True, export=True, keys=("b",))
    assert counts_in(carry_out(cluster, counting(), asked)["lines"]) == {"b": 3}
    assert held(cluster) == {"a": 3, "b": 9, "c": 3}
    with pytest.raises(CommandWrong, match="an export, which is not asked for"):
        carry_out(cluster, counting(), Adopt(store="counts", changelog=f"{OTHER}-1", upto=upto, keys=("b",)))
