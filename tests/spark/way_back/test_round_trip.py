"""A processor is wiped and restored from a snapshot by Spark. It ends with the same state as without the wipe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.assets.spark.past import write_past
from holdfast.assets.spark.planning import look_at_table
from holdfast.assets.spark.sources.changelog import ChangelogSource
from holdfast.assets.spark.writing.snapshot import write_snapshot
from holdfast.infra.settings import Settings
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Clear, Deploy, Keys, Restore, Stop
from holdfast.processors.snapshots.facts import SnapshotFacts, points_of
from holdfast.processors.snapshots.gathering import changelog_now
from holdfast.processors.snapshots.manifest import CHECKPOINT, INCREMENTAL, SnapshotManifest
from holdfast.processors.snapshots.plan import Wanted, plan_snapshot
from tests.parts.operated import Operated

KEYS = 40


class Claims:
    """Replaces the registry (Holdfast's database). It grants every claim, because no other run takes snapshots here."""

    def claim_snapshot(self, *told: Any) -> bool:
        return True

    def finish_snapshot(self, *told: Any) -> bool:
        return True


def snapshot(session: Any, operated: Operated) -> SnapshotManifest:
    points = points_of([operated.client.checkpoint()], "counts")

    def now() -> Any:
        return changelog_now(operated.topics, operated.changelog, {each.partition: each.end for each in points})

    facts = SnapshotFacts(
        processor=operated.group,
        store="counts",
        points=points,
        changelog=now(),
        table=look_at_table(session, operated.group, "counts"),
        code_version=operated.verbs.definition(operated.group).topology.code_version,
        state_format=STATE_FORMAT,
        schema_version=1,
        now=time.time(),
    )
    source = ChangelogSource(operated.topics.bootstrap, {}, now)
    return write_snapshot(session, plan_snapshot(facts, Wanted.AUTO), source, Claims()).manifest


def wipe(operated: Operated) -> None:
    """Delete everything of the processor in Kafka and on disk, except its input topics."""
    operated.do(Stop(operated.group))
    operated.wait_for(lambda: operated.topics.members(operated.group) == 0, "the group is empty")
    operated.topics.delete(operated.changelog)
    operated.topics.delete_group(operated.group)
    shutil.rmtree(operated.settings.paths.state / operated.group)


def counted(each: int, but: int = 0) -> dict[str, int]:
    """The expected counts: ``each`` for every key.

    The first ``but`` keys count 15 less, because they were cleared at 15.
    """
    return {f"key-{number}": each - (15 if number < but else 0) for number in range(KEYS)}


@pytest.mark.thorough
def test_a_processor_that_was_wiped_comes_back_from_any_snapshot_and_ends_as_if_nothing_had_been(
    operated: Operated, session_for: Callable[[Settings], Any]
) -> None:
    session = session_for(operated.settings)
    operated.bring_up()
    operated.feed(KEYS, 10)
    operated.processed(KEYS * 10)
    full = snapshot(session, operated)
    operated.feed(KEYS, 5)
    operated.processed(KEYS * 15)
    operated.do(Clear(operated.group, ("counts",), Keys(tuple(f"key-{number}" for number in range(7)))))
    merged = snapshot(session, operated)
    assert (full.source, merged.source) == (CHECKPOINT, INCREMENTAL)
    past = write_past(session, operated.group, "counts", "2026-01-01", (full.taken_at + merged.taken_at) / 2)
    operated.feed(KEYS, 3)
    operated.processed(KEYS * 18)

    wipe(operated)
    refused = operated.verbs.plan(Restore(operated.group, at=past.tag)).verdict
    assert isinstance(refused, Refused)
    assert f"has no input offset of {operated.group}-in[0] and 1 more: it was made from the history" in refused.sentence
    assert f"snap-{merged.snapshot_id}" in refused.action
    # Restores the newest published snapshot, not the past version that was written last.
    operated.do(Restore(operated.group, at="latest"))
    before = counted(15)
    assert operated.logged() == {key: before[key] for key in list(before)[7:]}
    operated.do(Deploy(operated.group))
    operated.processed(KEYS * 18)
    assert operated.logged() == counted(18, but=7)

    again = snapshot(session, operated)  # take a snapshot of the recreated changelog
    assert again.rows == KEYS
    operated.do(Restore(operated.group, at=f"snap-{full.snapshot_id}"))
    operated.processed(KEYS * 18)
    assert operated.logged() == counted(18)
    operated.do(Restore(operated.group, at=again.snapshot_id))
    operated.feed(KEYS, 2)
    operated.processed(KEYS * 20)
    assert operated.logged() == counted(20, but=7)
    assert operated.verbs.audit(operated.group, ())[0].differences == ()
