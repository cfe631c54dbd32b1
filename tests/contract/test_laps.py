"""Standbys replay a table's topic in laps (one pass after another). Each lap ends at the group's latest commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.keep_or_restore import plan_restore
from holdfast.processors.engine.topology import SourceLog
from holdfast.processors.testing import InlineProcess, InMemoryCluster
from tests.contract.bench import PATIENCE_S, Bench
from tests.simulation.planted_sources import former_positions

ROWS, PER_LAP = 600, 10


def replay_in_laps(bench: Bench, folder: Path) -> None:
    """Replay the topic 10 rows at a time, and check after each lap that the store holds all rows so far."""
    topic, producer = bench.topic(), bench.producer()
    for number in range(ROWS):
        producer.produce(topic, b"%d" % number, b"k%d" % number, partition=0)
    producer.flush(PATIENCE_S)
    topic_id, clock = bench.cluster.topics().describe([topic])[topic].topic_id, bench.cluster.clock
    store, task = TaskStore(RocksDatabases(), folder / "rows-0"), Task("rows-0", "rows", 0, ())
    task.open(store, ("rows",))
    restorer = Restorer(bench.cluster)
    try:
        for end in range(PER_LAP, ROWS + 1, PER_LAP):
            facts = {"rows": ChangelogFacts(topic, topic_id, 0, end, 86_400.0, SourceLog("rows", topic))}
            decided = plan_restore(task.name, task.meta if task.meta.stores else None, facts, clock.time())
            restorer.begin(task, decided, facts, {}, clock.time(), often=True)
            bench.wait_for(lambda: restorer.step(0.0), "the end of the lap")
            assert len(list(store.items("rows"))) == end
    finally:
        restorer.close()
        store.close()


def test_a_lap_leaves_out_no_row_that_the_lap_before_has_fetched(bench: Bench, tmp_path: Path) -> None:
    replay_in_laps(bench, tmp_path)


def test_the_laps_find_a_position_of_an_earlier_assignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: Callable[[str], str]
) -> None:
    """If a consumer reports the position of its former assignment, rows are missing, and the replay must fail."""
    former_positions(monkeypatch)
    cluster = InMemoryCluster()
    bench = Bench(cluster.connect(InlineProcess(cluster.clock)), unique, time.sleep, cluster.delete_topic)
    with pytest.raises(AssertionError):
        replay_in_laps(bench, tmp_path)
