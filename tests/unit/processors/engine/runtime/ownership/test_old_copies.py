"""Old copies of tasks' state in the folder of a slot (a worker's place), after their changelogs were created again.

Some of these copies are kept for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.settings import CheckpointSettings, load_settings
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.checkpoints import decision
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.testing import InlineProcess, InMemoryCluster

RECORD = key_prefix(b"k") + b"n", encode_value(9, 0)


def count(value: Any, state: Any) -> int:
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


class World:
    """A topic with one partition, two stores, and two machines that run the worker in turn."""

    def __init__(self, root: Path) -> None:
        self.root, self.cluster = root, InMemoryCluster()
        self.cluster.create_topic("in")

    def run(self, machine: str, begin_empty: Mapping[str, str] | None = None, feed: int = 0) -> None:
        for _ in range(feed):
            self.cluster.produce("in", b"1", b"k")
        app = Application(
            consumer_group="p", auto_offset_reset="earliest", loglevel=None, state_dir=self.root / machine
        )
        stream = app.dataframe(app.topic("in")).update(count, stateful=True, store="a")
        stream.update(count, stateful=True, store="b")
        app.with_run_overrides(slot="0", auto_create_topics=True, start=Start(begin_empty=begin_empty or {}))
        self.cluster.run(app)

    def create_again(self, store: str, *records: tuple[bytes, bytes]) -> str:
        """Delete a changelog and create it again with these records. Returns its topic id."""
        name = f"p-{store}-changelog"
        self.cluster.delete_topic(name)
        self.cluster.create_topic(name, config={"cleanup.policy": "compact"})
        for key, value in records:
            self.cluster.produce(name, value, key)
        return self.cluster.connect(self.process()).topics().describe([name])[name].topic_id

    def process(self) -> InlineProcess:
        """A new process that is connected to this cluster."""
        return InlineProcess(self.cluster.clock)

    def copy(self, machine: str, name: str = "in-0") -> TaskMeta | None:
        """The offsets in a task's old copy, or None if there is no copy."""
        path = self.root / machine / "p" / "0" / name
        if not path.exists():
            return None
        store = TaskStore(RocksDatabases(), path)
        try:
            return store.meta()
        finally:
            store.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Machine ``old`` has a copy at input offset 3, and machine ``new`` has the state at offset 5."""
    made = World(tmp_path)
    made.run("old", feed=3)
    made.run("new", feed=2)
    return made


def assert_the_old_copy_is_kept(world: World) -> None:
    kept = world.copy("old", "in-0.former")
    assert kept is not None
    assert kept.inputs == {"in": 3}


def test_an_old_copy_is_kept_until_the_changelogs_prove_whole(world: World) -> None:
    world.create_again("a", RECORD)
    with pytest.raises(StateIncoherent, match="store a holds nothing of it"):
        world.run("old")
    assert_the_old_copy_is_kept(world)


def test_what_was_restored_in_part_does_not_take_the_place_of_the_old_copy(world: World) -> None:
    for _ in range(3):
        world.create_again("a", RECORD)
        with pytest.raises(StateIncoherent, match="store a holds nothing of it"):
            world.run("old")
    assert_the_old_copy_is_kept(world)


def test_an_old_copy_is_kept_also_where_another_store_was_dropped(world: World) -> None:
    world.create_again("a", RECORD)
    dropped = world.create_again("b")
    with pytest.raises(StateIncoherent, match="store a holds nothing of it"):
        world.run("old", {"b": dropped})
    assert_the_old_copy_is_kept(world)


def test_a_checkpoint_does_not_take_the_place_of_an_old_copy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old copy of a task's state stays on disk although a checkpoint was unpacked.

    The worker dies directly after it has unpacked the checkpoint. The new changelogs may still be incomplete at this
    time, so the old copy may still be needed.
    """
    monkeypatch.setattr(decision, "SPARES_AT_LEAST", 1)
    settings = load_settings(home=world.root / "home", checkpoints=CheckpointSettings(stop_wait_s=10.0))
    monkeypatch.setattr(
        world.cluster, "_process_for", lambda app: nullcontext((world.cluster.connect(world.process()), settings))
    )
    world.run("third", {"a": world.create_again("a")}, feed=2)
    monkeypatch.setattr(Assignment, "_finish", killed)
    with pytest.raises(Killed):
        world.run("old")
    unpacked, kept = world.copy("old"), world.copy("old", "in-0.former")
    assert unpacked is not None
    assert unpacked.inputs == {"in": 7}
    assert kept is not None
    assert kept.inputs == {"in": 3}


class Killed(Exception):
    """Raised in place of a crash: the process ends."""


def killed(*_: object) -> None:
    raise Killed
