"""A restore that gets no new records is stopped with a diagnosis.

The time during which the process was frozen is not counted.
"""

from pathlib import Path

import pytest

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.runtime.ownership.changelog_replay import ABSENT_S, NO_PROGRESS_S, Restorer
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.keep_or_restore import RestorePlan
from holdfast.processors.testing import InlineProcess, InMemoryCluster
from tests.simulation.disk import SimulatedDisk

PLACE = Partition("changelog", 0)
RECORD = (key_prefix(b"k") + b"n", encode_value(1, 0))


@pytest.fixture
def held():
    """A restore whose target is three records beyond the end of the changelog."""
    cluster = InMemoryCluster()
    cluster.create_topic(PLACE.topic)
    for _ in range(3):
        cluster.produce(PLACE.topic, RECORD[1], RECORD[0])
    process = InlineProcess(cluster.clock)
    view = cluster.connect(process)
    task = Task("orders-0", "orders", 0, ("orders",))
    task.open(TaskStore(SimulatedDisk().attach(process), Path("task")), ("counts",))
    known = view.topics().describe([PLACE.topic])[PLACE.topic]
    facts = ChangelogFacts(PLACE.topic, known.topic_id, 0, cluster.log_end(PLACE) + 3, 86_400.0)
    restorer = Restorer(view)
    restorer.begin(task, RestorePlan({"counts": 0}), {"counts": facts}, {"orders": None}, cluster.clock.time())
    assert restorer.step(0.1) == []
    yield cluster, restorer
    restorer.close()


def test_a_process_that_was_frozen_meanwhile_goes_on(held):
    cluster, restorer = held
    cluster.clock.advance_to(cluster.clock.monotonic() + 10 * NO_PROGRESS_S)
    assert restorer.step(0.1) == []
    for _ in range(3):
        cluster.produce(PLACE.topic, RECORD[1], RECORD[0])
    done = []
    while not done:
        cluster.clock.advance_to(cluster.clock.monotonic() + 0.1)
        done = restorer.step(0.1)
    assert [restore.task.name for restore in done] == ["orders-0"]


def test_a_process_that_asks_and_gets_nothing_says_why_it_gives_up(held):
    cluster, restorer = held

    def ask():
        while True:
            cluster.clock.advance_to(cluster.clock.monotonic() + ABSENT_S / 2)
            restorer.step(0.1)

    with pytest.raises(StateIncoherent, match="its end moved back to 3"):
        ask()
