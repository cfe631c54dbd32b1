"""Which state a worker may answer from, and when it must refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast import Application
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.queries.demand import Demand, Position
from holdfast.processors.engine.queries.errors import QueryWrong, StateAway, StoreUnknown
from holdfast.processors.engine.queries.held_state import Elsewhere, opened, spec_of
from holdfast.processors.engine.runtime.ownership.freshness import GAP_S_MAX, Freshness
from holdfast.processors.engine.runtime.task.facts import TaskFacts, TaskPhase
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.rocksdb import export
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.testing.clock import VirtualClock

SESSION_S = 10.0


class Commits:
    """Notes when a commit is due."""

    due = 0

    def commit_in(self, seconds: float, now: float) -> None:
        self.due += 1


class OwnTask(TaskFacts):
    """A task that notes when it must commit."""

    must_commit = False

    def commit_again(self) -> None:
        self.must_commit = True


@dataclass
class Held:
    """One worker with the task of partition 0 of the topic `in`."""

    path: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    freshness: Freshness = field(default_factory=lambda: Freshness(SESSION_S))
    slot: str = "0"
    progress: Mapping[str, float | None] | None = None
    work: Commits = field(default_factory=Commits)

    def __post_init__(self) -> None:
        app = Application("localhost:1", consumer_group="queries", loglevel=None)
        app.dataframe(app.topic("in")).apply(lambda value, state: value, stateful=True, store="totals")
        self.topology = app.topology()
        self.task = OwnTask("in-0", "in", 0, ("in",))
        self.task.opened(TaskStore(MemoryDatabases(export), self.path))

    def owned(self) -> Sequence[OwnTask]:
        return [] if self.task.phase is TaskPhase.CLOSED else [self.task]

    def followed(self) -> Sequence[TaskFacts]:
        return ()

    def restore_progress(self, task: str) -> Mapping[str, float | None] | None:
        return self.progress

    def runs(self, offset: int = 7) -> Held:
        """The task is restored, and has committed this offset."""
        self.task.move(TaskPhase.RUNNING)
        return self.commits(offset)

    def commits(self, offset: int) -> Held:
        transaction = self.task.meta.transaction + 1
        self.task.write((), inputs={"in": offset}, transaction=transaction, complete_at=self.clock.time())
        return self

    def turns(self) -> Held:
        """The worker's loop makes a turn."""
        self.freshness.turn(self.owned(), self.work, self.clock.monotonic())
        return self

    def passes(self, seconds: float) -> None:
        """Time passes, and the worker does nothing."""
        self.clock.advance_to(self.clock.monotonic() + seconds)

    def position(self, demand: Demand | None = None) -> Position:
        """Where an answer stands."""
        with opened(self, "totals", 0, demand or Demand()) as read:
            return read.position


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path / "task")
    yield made
    made.task.release()


def test_an_owned_task_answers_with_its_last_commit(held: Held) -> None:
    held.runs(7).turns()
    held.passes(0.25)
    position = held.position()
    assert (position.inputs, position.source, position.age_s) == ({"in": 7}, "owner", 0.25)
    assert position.as_dict()["after"] == "in:0:7"
    assert held.commits(9).position().inputs == {"in": 9}


def test_a_worker_that_is_not_in_its_group_refuses(held: Held) -> None:
    held.runs()
    with pytest.raises(StateAway, match="not in its group") as refused:
        held.position()
    assert refused.value.waits
    held.turns()
    held.position()
    held.freshness.left()
    with pytest.raises(StateAway, match="not in its group"):
        held.position()


def test_a_silent_worker_refuses_and_answers_again_after_a_commit(held: Held) -> None:
    held.runs().turns()
    held.position()
    held.passes(GAP_S_MAX + 0.1)
    with pytest.raises(StateAway, match="silent for a long time"):
        held.position()  # it has just woken up, and its loop has not turned
    held.turns()
    with pytest.raises(StateAway, match="silent for a long time"):
        held.position()  # its client may not know yet that the task is lost
    assert (held.work.due, held.task.must_commit) == (1, True)
    held.turns()
    with pytest.raises(StateAway):
        held.position()
    assert held.work.due == 1
    held.commits(8).turns()
    assert held.position().inputs == {"in": 8}


def test_a_worker_that_nobody_asks_proves_nothing(held: Held) -> None:
    held.runs().turns()
    held.passes(GAP_S_MAX * 2)
    held.turns()
    assert (held.work.due, held.task.must_commit) == (0, False)
    with pytest.raises(StateAway):
        held.position()
    held.turns()
    assert held.work.due == 1


def test_a_second_gap_during_the_proof_needs_a_commit_after_it(held: Held) -> None:
    held.runs().turns()
    held.position()
    held.passes(GAP_S_MAX * 2)
    held.turns()
    held.passes(GAP_S_MAX * 2)
    held.commits(8)  # this commit was sent before the second gap
    held.turns()
    with pytest.raises(StateAway):
        held.position()
    assert held.work.due == 2


def test_a_short_session_makes_the_gap_short(held: Held) -> None:
    held.freshness = Freshness(2.0)
    held.runs().turns()
    held.position()
    held.passes(1.1)
    with pytest.raises(StateAway, match="silent"):
        held.position()


def test_a_task_that_is_restored_says_how_long_it_takes(held: Held) -> None:
    held.turns()
    held.progress = {"remaining": 1200, "seconds_left": 7.5}
    with pytest.raises(StateAway, match="1,200 records are left") as refused:
        held.position()
    assert (refused.value.retry_after_s, refused.value.fields["remaining"]) == (7.5, 1200)


def test_a_task_of_another_worker_is_elsewhere(held: Held) -> None:
    held.runs().turns()
    held.task.release()
    held.task.move(TaskPhase.CLOSED)
    with pytest.raises(Elsewhere):
        held.position()


@pytest.mark.parametrize(
    ("demand", "met"),
    [
        (Demand(after={Partition("in", 0): 7}), True),
        (Demand(after={Partition("in", 0): 8}), False),
        (Demand(after={Partition("in", 3): 99}), True),  # of another task
        (Demand(max_age_s=0.3), True),
        (Demand(max_age_s=0.2), False),
    ],
)
def test_a_demand_is_met_or_waited_for(held: Held, demand: Demand, met: bool) -> None:
    held.runs(7).turns()
    held.passes(0.25)
    if met:
        held.position(demand)
        return
    with pytest.raises(StateAway) as refused:
        held.position(demand)
    assert refused.value.waits


def test_a_position_of_a_topic_that_the_task_does_not_read_is_wrong(held: Held) -> None:
    held.runs().turns()
    with pytest.raises(QueryWrong, match="names topic other"):
        held.position(Demand(after={Partition("other", 0): 1}))


def test_an_unknown_store_is_named_with_the_known_ones(held: Held) -> None:
    with pytest.raises(StoreUnknown, match=r"no store 'total'; its stores are totals"):
        spec_of(held.topology, "total")


def test_state_that_is_replaced_is_not_read(held: Held) -> None:
    held.runs().turns()
    store = held.task.store
    assert store is not None
    store.load([b"\x06totals\x01\x00\x00\x00\x01kn"], [None])
    with pytest.raises(StateAway, match="being replaced"):
        held.position()
    assert held.commits(8).position().inputs == {"in": 8}


def test_stale_answers_come_from_a_silent_owner_too(held: Held) -> None:
    held.runs().turns()
    held.passes(20)
    assert held.position(Demand(stale_ok_s=30)).age_s == 20
    with pytest.raises(StateAway, match="knew 20.000 s ago that it owns the task; the query accepts 10 s"):
        held.position(Demand(stale_ok_s=10))


def test_a_turn_after_a_silence_does_not_make_the_state_of_an_owner_younger(held: Held) -> None:
    """The process was frozen, and its loop turns again: until a commit, another worker may have newer state."""
    held.runs().turns()
    held.passes(20)
    held.turns()
    assert held.position(Demand(stale_ok_s=30)).age_s == 20
    with pytest.raises(StateAway, match="knew 20.000 s ago"):
        held.position(Demand(stale_ok_s=10))
    held.turns().commits(8).turns()
    assert held.position(Demand(stale_ok_s=10)).age_s == 0
