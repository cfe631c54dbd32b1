"""Random sequences of writes to a store.

Each snapshot equals the store's content, and the history gives the same content.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.assets.spark import current, history
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.writing import snapshot as steps
from holdfast.processors.engine.changelog.format import META_KEY, key_prefix
from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.snapshots.names import snapshot_tag
from holdfast.processors.snapshots.plan import Wanted

ROUNDS, ROUNDS_FEW = 7, 3


def checkpoint(model: dict[tuple[int, bytes], bytes], partition: int, folder: Path) -> Path:
    """A checkpoint of the task that owns this partition of the model."""
    database = RocksDatabases().open(folder / "live")
    held = [(key, value) for (number, key), value in model.items() if number == partition]
    database.write([(store_prefix("s") + key_prefix(key) + b"n", value) for key, value in held])
    database.write([(META_KEY, b"{}")])
    database.checkpoint(folder / "copy")
    database.close()
    return folder / "copy"


class Life:
    """One store with random writes. ``done`` has the store's content at each snapshot so far."""

    def __init__(self, changelog: Any, seed: int, folder: Path) -> None:
        self.changelog, self.rng, self.folder = changelog, random.Random(seed), folder
        self.done: dict[str, dict[tuple[int, bytes], bytes]] = {}
        self.sources: list[str] = []

    def write(self) -> None:
        for partition in range(2):
            for _ in range(self.rng.randrange(3)):
                entries = [
                    (b"k%d" % self.rng.randrange(12), None if self.rng.random() < 0.35 else self.rng.randrange(1000))
                    for _ in range(self.rng.randrange(1, 6))
                ]
                self.changelog.write(partition, entries, commit=self.rng.random() < 0.85)

    def snapshot(self, number: int) -> None:
        wanted = self.rng.choice([Wanted.AUTO, Wanted.AUTO, Wanted.AUTO, Wanted.CHECKPOINT, Wanted.CHANGELOG])
        paths = {part: str(checkpoint(self.changelog.model, part, self.folder / f"{number}-{part}")) for part in (0, 1)}
        plan = self.changelog.plan(paths=paths, wanted=wanted)
        stored = {part: fingerprint_checkpoint(Path(path), "s") for part, path in paths.items()}
        if self.rng.random() < 0.4:
            self.die(plan)
        result = self.changelog.snapshot(plan, stored=stored if self.rng.random() < 0.5 else None)
        self.sources.append(result.manifest.source)
        self.done[plan.snapshot_id] = dict(self.changelog.model)
        shutil.rmtree(self.folder)

    def die(self, plan: Any) -> None:
        work = steps.Work(self.changelog.spark, plan, self.changelog.source, None, None)
        steps_done = self.rng.randrange(1, 5)
        if plan.published:
            return
        with current.aligned_plans(self.changelog.spark):
            steps.feed_history(work)
            if steps_done > 1:
                steps.write_branch(work)
            if steps_done > 2:
                steps.seal(work, steps.audit_branch(work))
            if steps_done > 3:
                steps.publish_history(work)

    def check(self) -> None:
        changelog = self.changelog
        folded = history.live(history.fold(changelog.history()))
        assert changelog.stored() == changelog.model
        assert changelog.stored(folded) == changelog.model


@pytest.mark.thorough
@pytest.mark.usefixtures("generated_code")
@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(11, ROUNDS_FEW), *((seed, ROUNDS) for seed in (11, 12, 13))],
)
def test_snapshots_and_history_are_what_the_store_held(changelog: Any, seed: int, rounds: int, tmp_path: Path) -> None:
    life = Life(changelog, seed, tmp_path / "copies")
    for number in range(rounds):
        if number and life.rng.random() < 0.2:
            changelog.recreate()
        life.write()
        life.snapshot(number)
        life.check()
    table = f"holdfast.{changelog.processor}.s"
    for snapshot_id, model in life.done.items():
        rows = versions.at_version(changelog.spark, table, snapshot_tag(snapshot_id))
        assert changelog.stored(rows) == model, f"{snapshot_id} of {life.sources}"
