"""Bugs to plant in the warehouse. Each is a former bug, with a patch that restores it. The model must find it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from holdfast.assets.spark import current, history, maintenance, past, shapes
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.writing import branch_audit
from holdfast.assets.spark.writing import snapshot as steps
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.engine.schema import inference
from holdfast.processors.lifecycle.verbs.state import restore_table, table_choice
from holdfast.processors.snapshots import plan
from holdfast.processors.snapshots import table_retention as retention
from holdfast.processors.snapshots.facts import StorePoint
from holdfast.processors.snapshots.manifest import HISTORY, INCREMENTAL
from holdfast.processors.snapshots.names import BRANCH
from holdfast.processors.snapshots.plan import Wanted
from tests.spark.model.changelog import HOUR
from tests.spark.model.drawn import DAY
from tests.spark.model.life import World
from tests.spark.model.machine import Course, Failure, run

Patch = Callable[[pytest.MonkeyPatch], None]
#: The seed of the search for a bug, and the maximum number of lives (sequences of actions on a store) in the search.
SEED, SEQUENCES_MAX = 1, 40


@dataclass(frozen=True, slots=True)
class PlantedInWarehouse:
    """A bug that a test plants: its description, its patch, and the actions that detect it.

    ``course`` has the actions of all lives (sequences of actions on a store) that search for the bug.
    """

    name: str
    plant: Patch
    course: Course

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Run the block with the bug in the warehouse."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield

    def failures(self, world: World) -> list[Failure]:
        """Run lives (sequences of actions) with the bug until one fails. Returns this failure; empty if none fails."""
        with self.growing():
            return run(world, SEED, SEQUENCES_MAX, course=self.course)


def _missing_is_zero(patch: pytest.MonkeyPatch) -> None:
    vector_of = table_choice.vector_of
    patch.setattr(table_choice, "_unplaced", lambda *given: None)
    patch.setattr(
        restore_table,
        "vector_of",
        lambda manifest: defaultdict(lambda: defaultdict(int), vector_of(manifest)),
    )


def _latest_is_any(patch: pytest.MonkeyPatch) -> None:
    chosen = table_choice._candidates
    patch.setattr(
        table_choice, "_candidates", lambda table, at: list(table.versions) if at == "latest" else chosen(table, at)
    )


def _reach_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "tag_newest_changes", lambda spark, table: None)
    patch.setattr(maintenance, "tag_newest_changes", lambda spark, table: None)
    head = history.history_head

    def history_head(seen: Any, table: str) -> Any:
        return head(seen, table) if history.reaching_version(seen) is not None else None

    patch.setattr(history, "history_head", history_head)
    patch.setattr("holdfast.assets.spark.planning.history_head", history_head)


def _generation_falls(patch: pytest.MonkeyPatch) -> None:
    _reach_expires(patch)
    generation = plan._generation
    patch.setattr(
        plan, "_generation", lambda facts, points: 1 if not facts.table.history else generation(facts, points)
    )


def _widened_is_null(patch: pytest.MonkeyPatch) -> None:
    opened = steps.open_branch
    patch.setattr(steps, "open_branch", lambda work, rows: opened(work, rows) or True)
    # without this patch, the audits would find the planted bug before the model does
    for module in (steps, branch_audit):
        patch.setattr(module, "typed_hash", lambda schema: None)


def _columns_before_the_audit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shapes.Shape, "in_place", True)


def _past_on_any_shape(patch: pytest.MonkeyPatch) -> None:
    base_for = past.base_for

    def of_any_shape(manifests: Any, at: float, known: Any) -> Any:
        found = base_for(manifests, at, known)
        patch.setattr(past, "schema_version", lambda spark, table: found and found.schema_version)
        return found

    patch.setattr(past, "base_for", of_any_shape)


def _one_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        inference, "_names_apart", lambda sources, known: {each: inference.column_name(each) for each in sources}
    )


def _base_by_earliest(patch: pytest.MonkeyPatch) -> None:
    def base_for(manifests: Any, at: float, known: Any) -> Any:
        older = [
            each
            for each in manifests
            if not each.from_history and each.taken_at <= at and each.generation == known.generation
        ]
        return max(older, key=lambda each: each.taken_at, default=None)

    patch.setattr(past, "base_for", base_for)


def _two_lives(patch: pytest.MonkeyPatch) -> None:
    whole = plan._whole_vector

    def vector(facts: Any) -> tuple[StorePoint, ...]:
        try:
            return whole(facts)
        except plan.SnapshotImpossible:
            return tuple(sorted(facts.points, key=lambda point: point.partition))

    patch.setattr(plan, "_whole_vector", vector)


def _narrow_is_refused(patch: pytest.MonkeyPatch) -> None:
    shape_for = shapes.shape_for
    patch.setattr(shapes, "shape_for", lambda spark, table, schema, *, inferred=False: shape_for(spark, table, schema))


def _any_time(patch: pytest.MonkeyPatch) -> None:
    shown = f"timestamp_millis({history.EVENT_MS}) AS event_timestamp"
    patch.setattr(current, "CURRENT", (*history.CURRENT[:-1], shown))


def _no_sign(patch: pytest.MonkeyPatch) -> None:
    event_ms = "try_cast(conv(hex(substring(value, 3, 8)), 16, 10) AS bigint)"
    in_range = f"{event_ms} BETWEEN 0 AND {history.EVENT_MS_LAST}"
    shown = f"if({in_range}, timestamp_millis({event_ms}), NULL) AS event_timestamp"
    patch.setattr(current, "CURRENT", (*history.CURRENT[:-1], shown))


def _times_by_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        retention, "_time_is_over", lambda tag, kept, now: retention._older(tag.committed_at, now, days=kept.time_days)
    )


def _past_counts(patch: pytest.MonkeyPatch) -> None:
    expired = retention.expired_references

    def references(found: Any, *more: Any) -> Any:
        return expired([replace(each, source=INCREMENTAL) if each.source == HISTORY else each for each in found], *more)

    patch.setattr(maintenance, "expired_references", references)


def _full_expires(patch: pytest.MonkeyPatch) -> None:
    expired = retention.expired_references

    def references(found: Any, *more: Any) -> Any:
        return expired([replace(each, source=each.source and INCREMENTAL) for each in found], *more)

    patch.setattr(maintenance, "expired_references", references)


def _branch_by_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "_made", lambda branch: branch.committed_at)


def _needed_unasked(patch: pytest.MonkeyPatch) -> None:
    expired = retention.expired_references
    patch.setattr(maintenance, "expired_references", lambda found, kept, now, needed: expired(found, kept, now))


def _publish_drops_all(patch: pytest.MonkeyPatch) -> None:
    def drop(spark: Any, plan: Any, seen: versions.Versions) -> None:
        versions.drop_branches(spark, plan.table, versions.branches_of(spark, plan.table, BRANCH))

    patch.setattr(steps, "_drop_branches", drop)


def _only_ancestors(patch: pytest.MonkeyPatch) -> None:
    def published(self: versions.Versions) -> Iterator[versions.Version]:
        return filter(None, map(self._version, self.ancestors()))

    patch.setattr(versions.Versions, "published", published)


def _corrections_by_value(patch: pytest.MonkeyPatch) -> None:
    fold = history.fold

    def by_value(rows: Any) -> Any:
        same = f"if({history.LOGGED}, timestamp, TIMESTAMP '1970-01-01') AS timestamp"
        names = [name if name != "timestamp" else same for name in rows.columns]
        return fold(rows.selectExpr(*names))

    for module in (history, current):
        patch.setattr(module, "fold", by_value)


def _quarantine_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(maintenance, "forget_quarantined", lambda spark, table, of: {})


def _course(actions: str, **given: Any) -> Course:
    return Course(tuple(actions.split()), given)


#: The numbers of the commits that a snapshot makes after its branch is created and before it is published.
BRANCHED = st.integers(4, 9)
#: A course (list of actions) in which a run dies after it has created a branch of an old version. Maintenance follows
#: soon after.
OLD_HEAD = {"pause": 4 * DAY, "again": False, "crash.dies_at": st.integers(3, 5), "age": st.sampled_from([1.0, HOUR])}
#: A course (list of actions) in which a run dies with values in quarantine. Maintenance runs when the run's branch
#: already counts as dead.
NEVER_PUBLISHED = {
    **{"inferred": True, "again": False},  # without typed columns, no value is unreadable
    **{"crash.dies_at": st.integers(6, 12), "age": 2 * DAY, "maintain.dies_at": None},
}
#: A course (list of actions) in which a restore of the oldest snapshot stays unfinished. Only this restore keeps that
#: snapshot.
READ_OLD = {
    **{"wanted": Wanted.FULL, "work.tag": False, "restore.at": -1, "inputs": "snapshot", "then": "unfinished"},
    **{"age": 4 * DAY, "maintain.tag": False, "maintain.dies_at": None},
    "keep": st.builds(
        MaintenanceSettings, keep_snapshots=st.just(1), keep_snapshots_days=st.just(0.0), keep_times_days=st.just(0.0)
    ),
}

BUGS = (
    PlantedInWarehouse(
        "1: a missing input position is 0",
        _missing_is_zero,
        _course("past restore past restore", inputs="copied"),
    ),
    PlantedInWarehouse(
        "1: a version made from the history counts as the latest",
        _latest_is_any,
        _course("past restore past restore"),
    ),
    PlantedInWarehouse(
        "2: how far the history reaches expires",
        _reach_expires,
        _course("maintain work maintain work"),
    ),
    PlantedInWarehouse(
        "2: a generation falls where the reach is unknown",
        _generation_falls,
        _course("maintain work maintain work"),
    ),
    PlantedInWarehouse(
        "3: a column that widens is null in unchanged rows",
        _widened_is_null,
        _course("work work work work", inferred=True),
    ),
    PlantedInWarehouse(
        "4: a past version's base is older by its earliest checkpoint",
        _base_by_earliest,
        _course("work past work past", apart=60.0, back=2),
    ),
    PlantedInWarehouse(
        "5: checkpoints of two lives of a changelog are published beside each other",
        _two_lives,
        _course("stale stale stale stale"),
    ),
    PlantedInWarehouse(
        "6: columns change before the audit",
        _columns_before_the_audit,
        _course("crash crash crash crash", inferred=True),
    ),
    PlantedInWarehouse(
        "7: a past version is built on a snapshot with other columns",
        _past_on_any_shape,
        _course("past past past past", inferred=True),
    ),
    PlantedInWarehouse(
        "8: names that give one column stop the snapshots",
        _one_name,
        _course("work work work work", inferred=True),
    ),
    PlantedInWarehouse(
        "8: a value that fits no widened type is refused",
        _narrow_is_refused,
        _course("work work work work", inferred=True),
    ),
    PlantedInWarehouse(
        "9: any event time is made a timestamp",
        _any_time,
        _course("work work work work"),
    ),
    PlantedInWarehouse(
        "9: event times have no sign",
        _no_sign,
        _course("work work work work", inferred=True),
    ),
    PlantedInWarehouse(
        "10: tags of times go by the age of their version",
        _times_by_version,
        _course("work maintain work maintain", tag=True),
    ),
    PlantedInWarehouse(
        "10: versions made from the history count as snapshots",
        _past_counts,
        _course("past maintain past maintain"),
    ),
    PlantedInWarehouse(
        "10: the last full snapshot expires",
        _full_expires,
        _course("work maintain work maintain"),
    ),
    PlantedInWarehouse(
        "10: branches go by the age of the version that they began with",
        _branch_by_version,
        _course("crash maintain crash maintain", **OLD_HEAD),
    ),
    PlantedInWarehouse(
        "10: a publish drops the branches of others",
        _publish_drops_all,
        _course("crash work crash work", **{"again": False, "crash.dies_at": BRANCHED}),
    ),
    PlantedInWarehouse(
        "10: snapshots are found by ancestry alone",
        _only_ancestors,
        _course("work maintain work maintain"),
    ),
    PlantedInWarehouse(
        "10: what an unfinished restore reads expires",
        _needed_unasked,
        _course("work work restore maintain", **READ_OLD),
    ),
    PlantedInWarehouse(
        "11: two corrections at one offset are ordered by value",
        _corrections_by_value,
        _course("mend mend mend mend"),
    ),
    PlantedInWarehouse(
        "11: unreadable values of unpublished snapshots stay in quarantine",
        _quarantine_stays,
        _course("crash maintain crash maintain", **NEVER_PUBLISHED),
    ),
)
