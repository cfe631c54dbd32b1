"""The source from which a snapshot is made: a part of the changelog, the whole changelog, or a checkpoint.

Each source has a guard that may refuse it. Tests each guard alone, and which source is chosen instead.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.facts import (
    ChangelogNow,
    HistoryHead,
    LogPartition,
    SnapshotFacts,
    StorePoint,
    TableNow,
    points_of,
)
from holdfast.processors.snapshots.manifest import PartitionManifest, SnapshotManifest
from holdfast.processors.snapshots.plan import (
    ChangelogMoved,
    SnapshotImpossible,
    Wanted,
    check_read,
    has_every_change,
    plan_snapshot,
)

NOW = 1_000_000.0
HOUR, DAY = 3600.0, 86_400.0


def base_at(*ends: int, taken_at: float = NOW - 600, **fields: Any) -> SnapshotManifest:
    parts = tuple(
        PartitionManifest(number, "id-1", 0, 0, end, 0, 0, 0, Fingerprint(), {}) for number, end in enumerate(ends)
    )
    made = SnapshotManifest(
        snapshot_id="base",
        processor="p",
        store="s",
        table="holdfast.p.s",
        source="changelog",
        base=None,
        why="",
        taken_at=taken_at,
        code_version="c",
        state_format="1.1.1",
        schema_version=1,
        topic="p-s-changelog",
        generation=1,
        partitions=parts,
        covers_from=taken_at,
    )
    return replace(made, **fields)


def head_at(*ends: int, topic_id: str = "id-1", generation: int = 1) -> HistoryHead:
    return HistoryHead("base", generation, dict.fromkeys(range(len(ends)), topic_id), dict(enumerate(ends)))


def points(*ends: int, taken_at: float = NOW - 5, **fields: Any) -> tuple[StorePoint, ...]:
    made = StorePoint(0, "/copy", "p-s-changelog", "id-1", 0, taken_at)
    return tuple(replace(made, partition=number, end=end, **fields) for number, end in enumerate(ends))


def log(*ends: int, starts: tuple[int, ...] = (), **fields: Any) -> ChangelogNow:
    begins = starts or (0,) * len(ends)
    parts = {number: LogPartition(begins[number], end) for number, end in enumerate(ends)}
    return replace(ChangelogNow("p-s-changelog", "id-1", parts, DAY, HOUR), **fields)


#: The table has the changelog up to offsets 100 and 200 of the two partitions. The owner's checkpoint is at 150 and
#: 200, and the changelog ends at 180 and 260.
FACTS = SnapshotFacts(
    processor="p",
    store="s",
    points=points(150, 200),
    changelog=log(180, 260),
    table=TableNow(base_at(100, 200), NOW - DAY, head_at(100, 200)),
    code_version="c",
    state_format="1.1.1",
    schema_version=1,
    now=NOW,
)


def test_what_is_new_is_merged_into_the_newest_snapshot():
    plan = plan_snapshot(FACTS)
    assert (plan.source.name, plan.base, plan.generation) == ("incremental", FACTS.table.base, 1)
    assert plan.why == "50 offsets of the changelog are new since snapshot base"
    assert [(part.start, part.end, part.feed_start) for part in plan.partitions] == [(100, 150, 100), (200, 200, 200)]


def test_both_ends_of_the_checkpoints_are_kept_and_each_partition_has_its_own_time():
    first, second = points(150, 200)
    plan = plan_snapshot(replace(FACTS, points=(first, replace(second, taken_at=NOW - 90))))
    assert (plan.taken_at, plan.latest_at) == (NOW - 90, NOW - 5)
    assert [part.taken_at for part in plan.partitions] == [NOW - 5, NOW - 90]


def test_nothing_is_merged_into_a_version_that_was_made_from_the_history():
    made = replace(FACTS.table, base=base_at(100, 200, source="history"))
    assert "was made from the history" in plan_snapshot(replace(FACTS, table=made)).why
    assert not plan_snapshot(replace(FACTS, table=made, points=points(100, 200))).published


def test_the_same_facts_give_the_same_snapshot_and_others_another():
    assert plan_snapshot(FACTS).snapshot_id == plan_snapshot(replace(FACTS, now=NOW + 60)).snapshot_id
    others = [
        replace(FACTS, points=points(151, 200)),
        replace(FACTS, store="t"),
        replace(FACTS, table=replace(FACTS.table, base=base_at(100, 200, snapshot_id="another"))),
    ]
    ids = {plan_snapshot(facts).snapshot_id for facts in (FACTS, *others)}
    ids.add(plan_snapshot(FACTS, Wanted.FULL).snapshot_id)
    assert len(ids) == 5


def test_without_a_history_a_full_snapshot_begins_another_generation():
    """The history table is empty, so a full snapshot starts a new generation.

    A generation counts the changelogs that the store has had. The number never decreases, because changelog offsets of
    two generations cannot be compared.
    """
    table = TableNow(base_at(100, 200, generation=3), NOW - DAY, None)
    plan = plan_snapshot(replace(FACTS, table=table))
    assert (plan.source.name, plan.generation) == ("checkpoint", 4)
    assert "its history is empty" in plan.why
    behind = replace(table, history=head_at(100, 200, generation=2))
    assert plan_snapshot(replace(FACTS, table=behind)).generation == 4


def test_where_nothing_was_committed_since_there_is_nothing_to_do():
    plan = plan_snapshot(replace(FACTS, points=points(100, 200)))
    assert (plan.published, plan.snapshot_id) == (True, "base")
    assert not plan_snapshot(replace(FACTS, points=points(100, 200)), Wanted.FULL).published


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"table": TableNow()}, "it is the first snapshot"),
        ({"schema_version": 2}, "the table has schema version 2, the newest snapshot has 1"),
        ({"state_format": "2.1.1"}, "state has format 2.1.1, the newest snapshot has"),
        (
            {"points": points(150, 200, 10), "changelog": log(180, 260, 10)},
            "the store has 3 partitions, the newest snapshot has 2",
        ),
        (
            {"points": points(150, 200, topic_id="id-2"), "changelog": log(180, 260, topic_id="id-2")},
            r"the changelog was recreated \(topic id id-2, before id-1\)",
        ),
        ({"points": points(90, 200)}, "the offset of partition 0 went back from 100 to 90"),
        ({"changelog": log(180, 260, starts=(101, 0))}, "partition 0 of the changelog begins at offset 101, after 100"),
        ({"changelog": log(149, 260)}, "partition 0 of the changelog ends at offset 149, before the checkpoint's 150"),
        ({"changelog": log(180, 260, deletes_by_age=True)}, "cleanup.policy deletes by age or size"),
        ({"changelog": None}, "the changelog is missing"),
        ({"points": points(150, 200, taken_at=NOW - 0.8 * HOUR)}, "compaction may have removed values"),
        (
            {"table": replace(FACTS.table, base=base_at(100, 200, taken_at=NOW - 0.76 * DAY))},
            "the newest snapshot is 18.2 h old, and the changelog is sure to keep deletions for 18.0 h",
        ),
        (
            {"table": replace(FACTS.table, base=base_at(100, 200, taken_at=NOW + 60))},
            "the newest snapshot is -60 s old",
        ),
        ({"table": replace(FACTS.table, full_at=NOW - 8 * DAY)}, "the last full snapshot is 192.0 h old"),
        ({"table": replace(FACTS.table, full_at=None)}, "the last full snapshot is unknown"),
        ({"table": replace(FACTS.table, history=head_at(170, 200))}, "an interrupted run fed the history"),
    ],
)
def test_each_guard_leads_to_a_full_snapshot_that_says_why(change, why):
    plan = plan_snapshot(replace(FACTS, **change))
    assert plan.source.name == "checkpoint"
    assert plan.why.startswith("full, because ")
    assert re.search(why, plan.why)


def test_a_guard_about_reading_does_not_strike_where_there_is_nothing_to_read():
    quiet = replace(FACTS, points=points(100, 200), schema_version=1, changelog=log(100, 201, starts=(100, 150)))
    old = replace(quiet, table=replace(FACTS.table, base=base_at(100, 200, taken_at=NOW - 9 * DAY)))
    assert plan_snapshot(old).published
    moved = replace(FACTS, changelog=log(151, 260, starts=(0, 250), compaction_lag_s=0.0))
    assert plan_snapshot(moved).source.name == "incremental", "one offset more is the marker of the last commit"


def test_without_files_the_whole_changelog_is_read():
    plan = plan_snapshot(replace(FACTS, points=points(150, 200, files=False), schema_version=2))
    assert plan.source.name == "changelog"
    assert [(part.start, part.end, part.feed_start) for part in plan.partitions] == [(0, 150, 100), (0, 200, 200)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"changelog": log(180, 260, starts=(1, 0))}, "partition 0 of the changelog begins at offset 1, after 0"),
        ({"changelog": None}, "not from the changelog, because the changelog is missing"),
        ({"changelog": log(180, 260, deletes_by_age=True)}, "not from the changelog, because the changelog's cleanup"),
        ({"changelog": log(180, 260, compaction_lag_s=1.0)}, "compaction may have removed values"),
    ],
)
def test_when_no_source_is_right_it_is_said_of_each_why(change, why):
    facts = replace(FACTS, **{"points": points(150, 200, files=False), "schema_version": 2, **change})
    with pytest.raises(SnapshotImpossible, match=why) as raised:
        plan_snapshot(facts)
    assert "its files of partitions 0, 1 are not on this machine" in raised.value.message


def test_a_source_that_is_asked_for_is_taken_or_refused():
    assert plan_snapshot(FACTS, Wanted.FULL).source.name == "checkpoint"
    assert plan_snapshot(FACTS, Wanted.CHANGELOG).source.name == "changelog"
    assert plan_snapshot(FACTS, Wanted.CHECKPOINT).why == "full, because a full snapshot was requested"
    with pytest.raises(SnapshotImpossible, match="its files of partitions 0, 1 are not on this machine"):
        plan_snapshot(replace(FACTS, points=points(150, 200, files=False)), Wanted.CHECKPOINT)


def test_partitions_that_no_checkpoint_has_are_empty_or_refused():
    plan = plan_snapshot(replace(FACTS, changelog=log(180, 260, 0), table=TableNow()))
    assert [(part.partition, part.end, part.topic_id) for part in plan.partitions][2] == (2, 0, "id-1")
    with pytest.raises(SnapshotImpossible, match="Partitions 2 of store s of p are in no checkpoint"):
        plan_snapshot(replace(FACTS, changelog=log(180, 260, 7)))
    with pytest.raises(SnapshotImpossible, match="There is no checkpoint"):
        plan_snapshot(replace(FACTS, points=()))


@pytest.mark.parametrize("changelog", [log(180, 260, topic_id="id-2"), None])
def test_checkpoints_of_two_lives_of_a_changelog_are_refused_by_name(changelog):
    old, new = points(150, 200)[0], replace(points(150, 200)[1], topic_id="id-2", taken_at=NOW - 1)
    with pytest.raises(
        SnapshotImpossible, match=r"partitions 0 of store s.*\(topic id id-1\); expected id-2"
    ) as refused:
        plan_snapshot(replace(FACTS, points=(old, new), changelog=changelog))
    assert "takes a checkpoint" in refused.value.action


def test_checkpoints_of_a_changelog_that_was_created_again_since_are_refused():
    with pytest.raises(SnapshotImpossible, match="partitions 0, 1 of store s .* belong to a former changelog"):
        plan_snapshot(replace(FACTS, changelog=log(180, 260, topic_id="id-2")), Wanted.CHECKPOINT)


def test_an_empty_partition_belongs_to_the_changelog_that_is_there():
    old, new = points(0, 200)[0], replace(points(0, 200)[1], topic_id="id-2")
    plan = plan_snapshot(replace(FACTS, points=(old, new), changelog=log(0, 260, topic_id="id-2"), table=TableNow()))
    assert [part.topic_id for part in plan.partitions] == ["id-2", "id-2"]


def test_generations_count_changelogs():
    anew = {"points": points(150, 200, topic_id="id-2"), "changelog": log(180, 260, topic_id="id-2")}
    plan = plan_snapshot(replace(FACTS, **anew))
    assert (plan.generation, [part.feed_start for part in plan.partitions]) == (2, [0, 0])
    assert plan_snapshot(replace(FACTS, points=points(90, 200))).generation == 2
    assert plan_snapshot(replace(FACTS, table=TableNow())).generation == 1


def test_the_history_is_fed_from_where_it_ends_even_if_that_run_broke_off():
    ahead = replace(FACTS, table=replace(FACTS.table, history=head_at(130, 200)))
    plan = plan_snapshot(ahead)
    assert (plan.source.name, plan.partitions[0].start, plan.partitions[0].feed_start) == ("incremental", 100, 130)


def test_what_the_log_no_longer_has_is_not_fed():
    truncated = plan_snapshot(replace(FACTS, changelog=log(180, 260, starts=(120, 0))))
    assert truncated.partitions[0].feed_start == 120
    assert plan_snapshot(replace(FACTS, changelog=None)).partitions[0].feed_start == 150
    assert plan_snapshot(replace(FACTS, changelog=log(140, 260))).partitions[0].feed_start == 150


@pytest.mark.parametrize(
    ("after", "ended", "why"),
    [
        (None, NOW, "recreated between plan and read"),
        (log(180, 260, topic_id="id-2"), NOW, "recreated between plan and read"),
        (log(180, 260, starts=(101, 0)), NOW, "truncated to 101 while it was read"),
        (log(180, 260), NOW + HOUR, "compaction may have removed records"),
        (log(150, 260, delete_retention_s=700.0), NOW, "deletions stay 12 min only"),
    ],
)
def test_what_happened_during_the_read_is_noticed(after, ended, why):
    plan = plan_snapshot(FACTS)
    check_read(plan, log(180, 260), NOW, NOW + 5)
    with pytest.raises(ChangelogMoved, match=why):
        check_read(plan, after, NOW, ended)


def test_a_read_from_the_checkpoint_cares_for_what_the_history_is_fed_with_only():
    plan = plan_snapshot(FACTS, Wanted.CHECKPOINT)
    check_read(plan, log(180, 260), NOW, NOW + 9 * DAY)
    with pytest.raises(ChangelogMoved, match="truncated"):
        check_read(plan, log(180, 260, starts=(120, 0)), NOW, NOW)
    unfed = plan_snapshot(replace(FACTS, changelog=None))
    check_read(unfed, None, NOW, NOW)


def test_the_history_has_no_gap_where_compaction_could_not_have_eaten():
    plan = plan_snapshot(FACTS)
    assert has_every_change(plan, FACTS.changelog, NOW)
    assert not has_every_change(plan, FACTS.changelog, NOW + HOUR)
    assert not has_every_change(plan, FACTS.changelog, NOW - 10 * HOUR), "the clock was set back, so the age is unknown"
    assert not has_every_change(
        plan_snapshot(replace(FACTS, changelog=log(180, 260, starts=(101, 0)))), FACTS.changelog, NOW
    )
    assert not has_every_change(plan_snapshot(replace(FACTS, table=TableNow())), FACTS.changelog, NOW)


def test_the_newest_checkpoint_of_each_partition_counts():
    def task(partition: int, offset: int, **fields: Any) -> dict[str, Any]:
        at = {"changelog": "p-s-changelog", "topic_id": "id-1", "offset": offset}
        return {"partition": partition, "path": f"/{offset}", "inputs": {"in": 3}, "stores": {"s": at}, **fields}

    newer = {"taken_at": 20.0, "tasks": [task(1, 9, sources={"in": "x"})]}
    older = {"taken_at": 10.0, "tasks": [task(0, 5), task(1, 6), {**task(2, 1), "stores": {}}]}
    found = points_of([newer, older], "s")
    assert [(point.partition, point.end, point.taken_at, point.sources) for point in found] == [
        (0, 5, 10.0, {}),
        (1, 9, 20.0, {"in": "x"}),
    ]


# -- tables that are restored from their topic -------------------------------------------------------------------------


def test_a_table_that_is_restored_from_its_topic_is_read_from_checkpoints_only() -> None:
    """A snapshot of a table that is restored from its own topic is made only from checkpoints, never from the topic.

    Compaction of this topic may have removed rows that the store still has.
    """
    facts = replace(FACTS, changelog=log(180, 260, is_source=True))
    plan = plan_snapshot(facts)
    assert plan.source.name == "checkpoint"
    assert "only a checkpoint has all rows" in plan.why
    assert all(part.start == part.feed_start == part.end for part in plan.partitions), "no record is read"
    assert check_read(plan, None, NOW, NOW) is None
    assert not has_every_change(plan, facts.changelog, NOW), "what happened between two checkpoints is not known"
    for refused in (
        lambda: plan_snapshot(facts, Wanted.CHANGELOG),
        lambda: plan_snapshot(replace(facts, points=points(150, 200, files=False))),
    ):
        with pytest.raises(SnapshotImpossible, match="only a checkpoint has all rows"):
            refused()


def test_a_table_without_a_new_row_is_published_already() -> None:
    facts = replace(FACTS, points=points(100, 200), changelog=log(180, 260, is_source=True), schema_version=1)
    assert plan_snapshot(facts).published


def test_a_partition_of_its_topic_that_nobody_has_processed_is_no_state() -> None:
    facts = replace(FACTS, points=points(150), changelog=log(180, 0, is_source=True), table=TableNow())
    assert plan_snapshot(facts).ends == {0: 150, 1: 0}
    with pytest.raises(SnapshotImpossible, match="Partitions 1 of store s"):
        plan_snapshot(replace(facts, changelog=log(180, 20, is_source=True)))
