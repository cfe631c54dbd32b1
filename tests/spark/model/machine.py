"""The state machine: what may happen to a store, drawn by hypothesis, with all promises checked after each step."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.engine.schema.types import INFERRED
from holdfast.processors.snapshots.coverage import NotCovered
from holdfast.processors.snapshots.plan import ChangelogMoved, SnapshotImpossible, Wanted
from tests.spark.model.changelog import HOUR
from tests.spark.model.checks import PromiseBroken, check, require
from tests.spark.model.life import Life, World
from tests.spark.model.owner import DELETED, PARTITIONS

#: Things that happen to one store.
STEPS = 6
DAY = 24 * HOUR
#: Retention that differs from age to age within days.
KEEP = MaintenanceSettings(
    keep_snapshots=2, keep_snapshots_days=2.2, keep_times_days=3.2, keep_versions_hours=1, compact_every=3,
    leftovers_hours=24,
)  # fmt: skip

_numbers = st.integers(-3, 3) | st.sampled_from([2**40, 0.5, -1.25])
_leaves = _numbers | st.booleans() | st.none() | st.sampled_from(["", "x", "1", "null", "ä"])
_kinds = _leaves | st.lists(_leaves, max_size=2) | st.dictionaries(st.sampled_from("pq"), _leaves, max_size=2)
_objects = st.dictionaries(st.sampled_from(["a", "b", "offset"]), _kinds, max_size=2)
_times = st.sampled_from([1_700_000_000_000] * 6 + [0, -1, -86_400_000, 1_700_000_000_000_000_000, -(2**63)])
_changes = st.lists(st.tuples(st.integers(0, 4), _objects | st.just(DELETED), _times), min_size=1, max_size=3)
_pauses = st.sampled_from([1.0, 60.0, 0.5 * HOUR, 2 * HOUR, 13 * HOUR, DAY, 2 * DAY, 4 * DAY])


class StoreMachine(RuleBasedStateMachine):
    """A store's life. ``world`` is set by ``run``."""

    world: ClassVar[World]
    ran: ClassVar[list[str]]

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.life: Life

    def tell(self, line: str) -> None:
        self.told.append(line)
        self.ran.append(line)

    @initialize(inferred=st.booleans(), first=_changes, second=_changes)
    def begin(self, inferred: bool, first: Any, second: Any) -> None:
        self.life = Life(self.world, INFERRED if inferred else None, self.tell)
        self.life.owner.commit(0, first)
        self.life.owner.commit(1, second)
        self.snapshot(Wanted.AUTO, apart=0.0)

    # -- what happens to the store -----------------------------------------------------------------------------------

    @rule(partition=st.integers(0, PARTITIONS - 1), changes=_changes, commit=st.booleans(), pause=_pauses)
    def commit(self, partition: int, changes: Any, commit: bool, pause: float) -> None:
        self.life.owner.commit(partition, changes, commit=commit)
        self.life.clock.advance(pause)

    @rule(emptied=st.booleans())
    def rebuild(self, emptied: bool) -> None:
        self.tell(f"rebuild, emptied {emptied}")
        self.life.owner.rebuild(emptied=emptied)

    # -- what Holdfast does ------------------------------------------------------------------------------------------

    @rule(changes=st.lists(_changes, min_size=1, max_size=3), wanted=st.sampled_from([Wanted.AUTO] * 5 + list(Wanted)),
          apart=st.sampled_from([0.0, 0.0, 60.0, HOUR]), more=_changes)  # fmt: skip
    def work(self, changes: Any, wanted: Wanted, apart: float, more: Any) -> None:
        for number, each in enumerate(changes):
            self.life.owner.commit(number % PARTITIONS, each)
        self.snapshot(wanted, apart, more)

    def snapshot(self, wanted: Wanted, apart: float, more: Any = None) -> None:
        life = self.life
        life.checkpoint(0)
        if apart and more:
            life.owner.commit(0, more)
            life.owner.commit(1, more)
            life.clock.advance(apart)
        life.checkpoint(1)
        try:
            life.write(life.plan(wanted))
        except (SnapshotImpossible, ChangelogMoved) as refused:
            self.tell(f"refused: {refused.message}")
            require("never stuck", wanted is not Wanted.AUTO, refused.message)
        check(life, every_tag=False)

    @rule(back=st.floats(0, 1), offset=st.sampled_from([0.0, 0.0005, -0.0005]))
    def past(self, back: float, offset: float) -> None:
        life = self.life
        moments = sorted(each.at for commits in life.owner.past for each in commits)
        at = round(moments[int(back * (len(moments) - 1))] + offset, 4)
        try:
            life.write_past(at)
        except NotCovered as refused:
            self.tell(f"past {at}: {refused.message}")
        check(life, every_tag=False)

    @rule(age=_pauses)
    def maintain(self, age: float) -> None:
        self.life.clock.advance(age)
        self.tell(f"maintenance after {age} s")
        self.life.maintain(KEEP)
        check(self.life, every_tag=True)

    def teardown(self) -> None:
        if hasattr(self, "life"):
            check(self.life, every_tag=True)


def run(world: World, number: int, sequences: int) -> list[str]:
    """Run lives from a seed.

    Raises:
        PromiseBroken: A table is not what the model says.
    """

    class Machine(StoreMachine):
        pass

    Machine.world, Machine.ran = world, []
    limits = settings(
        max_examples=sequences,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(seed(number)(Machine), settings=limits)
    return Machine.ran


__all__ = ["HoldfastError", "PromiseBroken", "StoreMachine", "precondition", "run"]
