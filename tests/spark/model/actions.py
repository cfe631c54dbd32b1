"""The actions on a modelled store, and their weights. After each action, all promises (invariants) are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from holdfast.assets.spark import past
from holdfast.assets.spark.writing.branch_audit import SnapshotAuditFailed
from holdfast.infra.errors import HoldfastError
from holdfast.processors.snapshots.coverage import NotCovered
from holdfast.processors.snapshots.plan import ChangelogMoved, SnapshotImpossible, Wanted
from tests.spark.model import drawn
from tests.spark.model.changelog import OffsetsLost
from tests.spark.model.checks import check, compare, content_of, require
from tests.spark.model.life import STORE, Life
from tests.spark.model.owner import DELETED, PARTITIONS
from tests.spark.model.restores import Inputs, restore
from tests.spark.model.runs import Run, alone, together
from tests.spark.model.seams import Killed
from tests.spark.model.upkeep import check_upkeep, kept_names

#: A snapshot makes about this number of table commits.
COMMITS = 18


@dataclass
class Actions:
    """The actions on one store. ``tell`` logs a line for each action."""

    life: Life
    tell: Callable[[str], None]
    #: Whether a snapshot of the newest checkpoints is published.
    published: bool = False

    def begin(self, first: Any, second: Any) -> None:
        """Write the first records and take the first snapshot."""
        self.life.owner.commit(0, first)
        self.life.owner.commit(1, second)
        self.checkpoints(0.0, first)
        self.snapshot(Wanted.AUTO)

    # -- actions on the store ---------------------------------------------------------------------------------------

    def live(self, first: Any, second: Any, event: str, pause: float) -> None:
        self.life.owner.commit(0, first)
        self.life.clock.advance(pause)
        self.happen(event)
        self.life.owner.commit(1, second)

    def happen(self, event: str) -> None:
        """Apply an event to the changelog or to the owner (the worker of the store's tasks)."""
        life = self.life
        match event:
            case "clean":
                for log in life.log.logs:
                    log.clean(life.clock.time())
            case "truncate":
                log = life.log.logs[0]
                log.truncate(log.end - 1)
            case "rebuild":
                life.owner.rebuild()
            case "clear":
                life.owner.rebuild({})
            case "lose files":
                life.owner.lose_files()
            case "abort":
                life.owner.commit(0, [(0, {"a": "aborted"}, 0), (1, {"a": "aborted"}, 0)], commit=False)

    def checkpoints(self, apart: float, between: Any) -> None:
        """Take a checkpoint of each partition.

        If ``apart`` is not 0, this time passes between the two checkpoints, and both partitions change (``between``).
        """
        life, self.published = self.life, False
        life.checkpoint(0)
        if apart:
            life.clock.advance(apart / 2)
            life.owner.commit(0, between)
            life.owner.commit(1, between)
            life.clock.advance(apart / 2)
        life.checkpoint(1)

    # -- actions of Holdfast ----------------------------------------------------------------------------------------

    def work(self, changes: Any, between: Any, wanted: Wanted, apart: float, tag: bool) -> None:
        self.life.owner.commit(len(changes) % PARTITIONS, changes)
        self.checkpoints(apart, between)
        self.snapshot(wanted)
        if tag:
            self.life.tag_time()

    def stale(self, changes: Any, event: str, pause: float, between: bool) -> None:
        """Take a snapshot of checkpoints that are older than the newest records in the changelog.

        With ``between``, the second checkpoint is taken after the changes, so only the first one is old.
        """
        life, self.published = self.life, False
        life.owner.commit(1, changes)
        life.checkpoint(0)
        if not between:
            life.checkpoint(1)
        life.clock.advance(pause)
        life.owner.commit(0, changes)
        self.happen(event)
        if between:
            life.owner.commit(1, changes)
            life.checkpoint(1)
        self.snapshot(Wanted.AUTO, sure=False)

    def mend(self, number: int, values: Any) -> None:
        """Change a value twice, only in the owner's database.

        No changelog record has the changed value, so a snapshot must correct the history.
        """
        life = self.life
        for value in values[:2]:
            life.owner.mend(0, number, value, drawn.USUAL_MS)
            self.checkpoints(0.0, [])
            self.snapshot(Wanted.CHECKPOINT)
        at = life.clock.time()
        life.clock.advance(0.002)
        self.checkpoints(0.002, [(5, {"n": 1}, drawn.USUAL_MS)])
        self.snapshot(Wanted.AUTO)
        rows = past.state_at(life.spark, life.processor, STORE, at).select("store_partition", "key", "value").collect()
        seen = content_of({**row.asDict(), "key": bytes(row["key"]), "value": bytes(row["value"])} for row in rows)
        compare("past", seen, life.owner.held_at(at), f"the state at {at}")
        life.owner.rebuild()  # rebuild the changelog, which lacks the changed values
        self.published = False

    def meddled(self, changes: Any, event: str, pause: float) -> None:
        """Change the changelog between the plan of a snapshot and the snapshot's write."""
        self.life.owner.commit(0, changes)
        self.checkpoints(0.0, changes)

        def meanwhile() -> None:
            self.life.clock.advance(pause)
            self.life.owner.commit(1, changes)
            self.happen(event)

        self.snapshot(Wanted.AUTO, sure=False, meanwhile=meanwhile)

    def crash(self, pause: float, changes: Any, wanted: Wanted, dies_at: int, again: bool) -> None:
        self.life.clock.advance(pause)
        self.life.owner.commit(0, changes)
        self.checkpoints(0.0, changes)
        self.snapshot(wanted, dies_at=dies_at)
        if again:
            self.snapshot(Wanted.AUTO)

    def snapshot(
        self,
        wanted: Wanted,
        *,
        sure: bool = True,
        dies_at: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Take a snapshot of the newest checkpoints.

        With ``sure``, the checkpoints are fresh, so the product must not refuse the snapshot.
        """
        life = self.life
        try:
            plan = life.plan(wanted)
        except SnapshotImpossible as refused:
            self.tell(f"  refused: {refused.message}")
            require("never stuck", not sure or wanted is not Wanted.AUTO, refused.message)
            return
        require("kept", "is unknown" not in plan.why, plan.why)
        others = life.branches(but=plan.snapshot_id)
        if meanwhile is not None:
            meanwhile()
        one = alone(life.world.seams, Run(lambda: life.write(plan), dies_at))
        life.shape_known = one.failure is None
        if one.died:
            self.tell(f"  died before {one.died_before}")
        elif isinstance(one.failure, ChangelogMoved | OffsetsLost) and meanwhile is not None:
            self.tell(f"  refused: {one.failure}")
        elif one.failure is not None:
            raise one.failure
        else:
            require("published", life.published() == plan.snapshot_id, f"{life.published()}, not {plan.snapshot_id}")
            self.published = sure
            gone = others - life.branches()
            require("kept", not gone, f"a publish dropped branches of other runs: {gone}")
        life.settle()
        check(life, every_tag=False)

    def race(self, other: str, changes: Any, turns: list[int], dies_at: int | None, keep: Any) -> None:
        """Run a snapshot at the same time as another run."""
        life = self.life
        life.owner.commit(0, changes)
        self.checkpoints(0.0, changes)
        plan = newer = life.plan(Wanted.AUTO)
        if other == "newer":
            life.owner.commit(1, changes)
            self.checkpoints(0.0, changes)
            newer = life.plan(Wanted.AUTO)
        seen = life.tables.seen(STORE)
        kept = kept_names(life, seen, keep) if seen is not None else set()
        # the history includes all changes up to the time of this snapshot
        newest = life.taken[life.newest or plan.snapshot_id]
        at = round(min(point.taken_at for point in newest.points.values()) - 0.001, 4)
        second: Callable[[], object] = {
            "maintenance": lambda: life.maintain(keep, beside=True),
            "past": lambda: life.write_past(at, beside=True),
        }.get(other, lambda: life.write(newer, beside=True))
        runs = [Run(lambda: life.write(plan), dies_at), Run(second)]
        together(life.world.seams, runs, turns)
        life.shape_known = False
        for run in runs:
            self.tell(f"  ended: {run.failure!r} after {run.commits} commits")
            if run.failure is not None and not isinstance(run.failure, HoldfastError | Killed):
                raise run.failure
            require("two runs", not isinstance(run.failure, SnapshotAuditFailed), run.failure)
        alive = [run for run in runs if not run.died]
        before = life.newest
        life.settle()
        able = [run for run in alive if not isinstance(run.failure, NotCovered)]
        refused = [str(run.failure) for run in able if run.failure is not None]
        done = life.newest != before or len(refused) < len(able) or not able
        # The run was refused, because the dead run had already extended the history. The refusal asks for another run.
        if not done and runs[0].died:
            self.snapshot(Wanted.AUTO)
            done = life.newest != before
        require("two runs", done and (other != "past" or runs[1] not in able or not runs[1].failure), refused)
        if other == "maintenance" and seen is not None:
            check_upkeep(life, seen, kept & seen.tags.keys(), exactly=False)
        check(life, every_tag=other == "maintenance")

    def past(self, back: int, offset: float, dies_at: int | None, changes: Any) -> None:
        """Write the state at a past moment as a table version (Iceberg snapshot).

        With ``changes``, a snapshot is taken before, so that the history includes the moment.
        """
        life = self.life
        if changes:
            life.owner.commit(1, changes)
            self.checkpoints(0.0, [])
            self.snapshot(Wanted.AUTO)
        moments = sorted({each.at for commits in life.owner.past for each in commits})
        at = round(moments[-1 - min(back, len(moments) - 1)] + offset, 4)
        one = alone(life.world.seams, Run(lambda: life.write_past(at), dies_at))
        if one.failure is not None:
            self.tell(f"  past {at}: {one.failure}")
            if not isinstance(one.failure, NotCovered | Killed):
                raise one.failure
        check(life, every_tag=False)

    def maintain(self, age: float, keep: Any, dies_at: int | None, tag: bool) -> None:
        life = self.life
        life.clock.advance(age)
        if tag:  # the newest snapshot gets the time tag, because the store has no newer changes
            life.tag_time()
        seen = life.tables.seen(STORE)
        if seen is None:
            return
        kept = kept_names(life, seen, keep)
        one = alone(life.world.seams, Run(lambda: life.maintain(keep), dies_at))
        if one.failure is not None and not one.died:
            raise one.failure
        check_upkeep(life, seen, kept, exactly=not one.died)
        check(life, every_tag=True)

    def restore(self, at: int | Literal["latest"], inputs: Inputs, then: str) -> None:
        """Restore the newest snapshot, or a tag. Tags are numbered back from the newest commit.

        Then the store continues from the restored state, or the restore stays unfinished.
        """
        life = self.life
        seen = life.tables.seen(STORE)
        if seen is None:
            return
        tags = sorted(seen.tags, key=lambda tag: (-seen.versions[seen.tags[tag]][1], tag))
        named = at if at == "latest" else tags[at % len(tags)]
        found = restore(life, named, inputs)
        self.tell(f"  restore {named}: {'refused' if found is None else 'possible'}")
        if found is None or then == "nothing":
            return
        content, positions, version = found
        life.needed = {version} if then == "unfinished" else set()
        if then == "done":
            life.owner.rebuild(content, positions)
            self.published = False

    def end(self) -> None:
        """Publish a snapshot of fresh checkpoints, and check that every tag can be read."""
        if not self.published:
            self.checkpoints(0.0, [])
            self.snapshot(Wanted.AUTO)
        check(self.life, every_tag=True)


Drawn = dict[str, st.SearchStrategy[Any]]
_dies = st.sampled_from([None] * 8 + list(range(1, 9)))
#: Each action with its weight and the arguments that are drawn for it.
ACTIONS: dict[str, tuple[int, Drawn]] = {
    "work": (
        4,
        {
            "changes": drawn.changes(),
            "between": drawn.changes(),
            "wanted": drawn.wanted,
            "apart": drawn.apart,
            "tag": st.booleans(),
        },
    ),
    "live": (1, {"first": drawn.changes(), "second": drawn.changes(), "event": drawn.events, "pause": drawn.pauses}),
    "stale": (
        1,
        {"changes": drawn.changes(), "event": drawn.events, "pause": drawn.pauses, "between": st.booleans()},
    ),
    "meddled": (1, {"changes": drawn.changes(), "event": drawn.events, "pause": drawn.pauses}),
    "mend": (1, {"number": st.integers(0, 4), "values": st.permutations([{"a": 1}, {"a": 2}, DELETED])}),
    "crash": (
        2,
        {
            "pause": drawn.pauses,
            "changes": drawn.changes(),
            "wanted": drawn.wanted,
            "dies_at": st.integers(1, COMMITS),
            "again": st.booleans(),
        },
    ),
    "race": (
        2,
        {
            "other": st.sampled_from(["the same", "newer", "maintenance", "past"]),
            "changes": drawn.changes(),
            "turns": st.lists(st.integers(1, 6), min_size=2, max_size=5),
            "dies_at": st.none() | st.integers(1, COMMITS),
            "keep": drawn.keeps,
        },
    ),
    "past": (
        4,
        {
            "back": st.sampled_from([0, 0, 0, 1, 2, 5]),
            "offset": st.sampled_from([0.0, 0.0005, -0.0005]),
            "dies_at": _dies,
            "changes": st.one_of(drawn.changes(), drawn.changes(), st.just([])),
        },
    ),
    "maintain": (4, {"age": drawn.ages, "keep": drawn.keeps, "dies_at": _dies, "tag": st.booleans()}),
    "restore": (
        3,
        {
            "at": st.sampled_from([0, 0, 1, 2, 3, 4, "latest", "latest"]),
            "inputs": st.sampled_from(["snapshot", "copied", "copied", "stay"]),
            "then": st.sampled_from(["nothing", "unfinished", "done", "done"]),
        },
    ),
}
WEIGHED = [name for name, (weight, _) in ACTIONS.items() for _ in range(weight)]
