"""Plans of restores from Iceberg tables: which table versions are used, where input continues, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.facts import CodeFacts, DeploymentFacts, Facts
from holdfast.processors.lifecycle.plans.facts.warehouse import StoreTable, StoreVersion
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused, decode, encode
from holdfast.processors.lifecycle.plans.requests import RequestInvalid, Restore
from holdfast.processors.lifecycle.plans.stages import (
    CheckTable,
    CompareStores,
    CreateTopic,
    DeleteStateAside,
    DeleteTopic,
    LoadChangelog,
    MakeRelease,
    RunProcessor,
    SetPositions,
    SetStateAside,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.table import decide
from holdfast.processors.snapshots.manifest import CHECKPOINT, HISTORY, PartitionManifest, SnapshotManifest
from holdfast.processors.snapshots.names import table_name
from tests.unit.processors.lifecycle.worlds import PARTITIONS, orders_topology, stopped, world_of

TOPOLOGY = orders_topology()
LATEST = Restore("orders", at="latest")


def manifest_of(store: str, snapshot_id: str, inputs: int = 60, **changes: Any) -> SnapshotManifest:
    part = PartitionManifest(
        partition=0,
        topic_id="old",
        log_start=0,
        start=80,
        end=80,
        records=0,
        tombstones=0,
        live_keys=7,
        fingerprint=Fingerprint(7, 1, 2),
        inputs={"placed": inputs},
        sources={"placed": "id-of-placed"},
    )
    manifest = SnapshotManifest(
        snapshot_id=snapshot_id,
        processor="orders",
        store=store,
        table=table_name("orders", store),
        source=CHECKPOINT,
        base=None,
        why="",
        taken_at=1_799_000_000.0,
        code_version="old",
        state_format=STATE_FORMAT,
        schema_version=1,
        topic=f"orders-{store}-changelog",
        generation=1,
        covers_from=0.0,
        partitions=tuple(replace(part, partition=number) for number in range(PARTITIONS)),
    )
    return replace(manifest, **changes)


def table_of(store: str, *manifests: SnapshotManifest | str) -> StoreTable:
    """A store's table with these versions (Iceberg snapshots), newest first.

    A version is given as its manifest, or as a string: the reason why the version has no manifest.
    """
    versions = []
    for at, each in enumerate(manifests):
        number = 100 - at
        if isinstance(each, str):
            versions.append(StoreVersion(number, problem=each))
        else:
            versions.append(StoreVersion(number, (f"snap-{each.snapshot_id}",), at == 0, 0.0, 4096, each))
    return StoreTable(table_name("orders", store), tuple(versions))


def both(**changes: Any) -> dict[str, StoreTable]:
    return {
        "totals": table_of("totals", manifest_of("totals", "t2", 60, **changes), manifest_of("totals", "t1", 30)),
        "seen": table_of("seen", manifest_of("seen", "s2", 60), manifest_of("seen", "s1", 30)),
    }


def facts_with(facts: Facts | None = None, tables: dict[str, StoreTable] | None = None, **changes: Any) -> Facts:
    return msgspec.structs.replace(facts or world_of(TOPOLOGY), tables=tables or both(), **changes)


def plan_of(request: Restore = LATEST, facts: Facts | None = None) -> Plan:
    return decide(request, facts or facts_with(), TOPOLOGY)


def refusal(request: Restore = LATEST, facts: Facts | None = None) -> Refused:
    plan = plan_of(request, facts)
    assert isinstance(plan.verdict, Refused)
    assert plan.stages == ()
    return plan.verdict


def kinds(plan: Plan) -> list[type]:
    return [type(stage) for stage in plan.stages]


def positions(plan: Plan) -> dict[str, dict[int, int]]:
    return next(stage for stage in plan.stages if isinstance(stage, SetPositions)).positions


def test_the_tables_are_read_before_anything_is_changed_and_positions_come_with_what_makes_changelogs_whole() -> None:
    plan = plan_of()
    assert kinds(plan) == [
        *[CheckTable] * 2,
        StopProcessor,
        SetStateAside,
        *[DeleteTopic] * 2,
        *[CreateTopic] * 2,
        *[LoadChangelog] * 2,
        SetPositions,
        RunProcessor,
        CompareStores,
        RunProcessor,
        DeleteStateAside,
    ]
    assert positions(plan) == {"placed": {0: 60, 1: 60}}
    assert [stage.paused for stage in plan.stages if isinstance(stage, RunProcessor)] == [True, False]
    assert plan.destructive
    assert (plan.keys, plan.size_bytes) == (4 * 7, 2 * 4096)
    assert decode(encode(plan)).hash == plan.hash


def test_it_is_said_what_is_read_and_sent_again_what_is_lost_and_how_to_go_back() -> None:
    said = explain(plan_of(msgspec.structs.replace(LATEST, at="t1")))
    assert "140 of them were processed before" in said
    assert "changelog orders-totals-changelog: the present content" in said
    assert "holdfast apply restore orders --at latest" in said
    assert "28 keys" in said
    assert "was written by version old" in said


def test_what_was_stopped_is_stopped_again_and_what_was_never_deployed_is_brought_up() -> None:
    plan = plan_of(facts=facts_with(stopped(TOPOLOGY)))
    assert StopProcessor not in kinds(plan)[:-2]
    assert isinstance(plan.stages[-2], StopProcessor)
    code = CodeFacts("release-1", "orders:application")
    fresh = facts_with(stopped(TOPOLOGY, deployment=None, instances=(), local=(), committed={}), code=code)
    plan = plan_of(facts=fresh)
    assert MakeRelease in kinds(plan)
    assert [each.release_id for each in plan.stages if isinstance(each, RunProcessor)] == ["release-1"] * 2


@pytest.mark.parametrize("at", ["t1", "snap-t1", "s1", "99"])
def test_stores_of_the_same_inputs_come_from_one_vector_whichever_of_them_is_named(at: str) -> None:
    plan = plan_of(Restore("orders", at=at, stores=("totals",)))
    assert positions(plan) == {"placed": {0: 30, 1: 30}}
    assert [(each.store, each.version) for each in plan.stages if isinstance(each, CheckTable)] == [
        ("totals", 99),
        ("seen", 99),
    ]


def test_latest_is_the_newest_vector_that_all_of_them_have() -> None:
    tables = both()
    tables["seen"] = table_of("seen", "something else wrote it", manifest_of("seen", "s1", 30))
    assert positions(plan_of(facts=facts_with(tables=tables))) == {"placed": {0: 30, 1: 30}}
    said = refusal(Restore("orders", at="t2"), facts_with(tables=tables))
    assert "Store `seen` has no snapshot at the input offsets" in said.sentence
    assert "--store totals --input stay" in said.action
    alone = plan_of(Restore("orders", at="t2", stores=("totals",), inputs="stay"), facts_with(tables=tables))
    assert isinstance(alone.verdict, Ready)
    assert positions(alone) == {}
    assert [each.name for each in alone.stages if isinstance(each, DeleteTopic)] == ["orders-totals-changelog"]


def past_of(store: str, snapshot_id: str, at: float = 1_799_000_500.0) -> SnapshotManifest:
    """The manifest of a table version that has the state of a past time.

    This version was made from the history table, so its manifest has no offsets of inputs.
    """
    made = manifest_of(store, snapshot_id, source=HISTORY, taken_at=at, latest_at=at, covers_from=at)
    return replace(made, partitions=tuple(replace(each, inputs={}, sources={}) for each in made.partitions))


def with_past() -> dict[str, StoreTable]:
    """The tables of both stores. The version that was committed last to each table was made from its history table."""
    return {
        "totals": table_of(
            "totals", past_of("totals", "tp"), manifest_of("totals", "t2"), manifest_of("totals", "t1", 30)
        ),
        "seen": table_of("seen", past_of("seen", "sp"), manifest_of("seen", "s2"), manifest_of("seen", "s1", 30)),
    }


def test_latest_and_newest_are_published_from_the_owner_never_made_from_the_history() -> None:
    facts = facts_with(tables=with_past())
    plan = plan_of(facts=facts)
    assert positions(plan) == {"placed": {0: 60, 1: 60}}
    assert [each.version for each in plan.stages if isinstance(each, CheckTable)] == [99, 99]
    assert "The newest snapshot is t2 of" in plan_of(Restore("orders", at="t1"), facts).undo
    alone = Restore("orders", at="latest", stores=("totals",), inputs="stay")
    assert [each.version for each in plan_of(alone, facts).stages if isinstance(each, CheckTable)] == [99]
    only = {"totals": table_of("totals", past_of("totals", "tp")), "seen": table_of("seen", past_of("seen", "sp"))}
    said = refusal(facts=facts_with(tables=only))
    assert "no version of its table is a snapshot that was published from the store" in said.sentence
    assert "Versions made from the history, without input offsets: 1." in said.action


@pytest.mark.parametrize("inputs", ["snapshot", "copied"])
def test_a_version_without_input_offsets_is_refused_with_the_choices_that_work(inputs: Any) -> None:
    facts = facts_with(tables=with_past())
    said = refusal(Restore("orders", at="tp", inputs=inputs), facts)
    assert "Snapshot tp of 2027-01-03 18:21:40 UTC of store `totals` has no input offset of placed[0] and 1 more" in (
        said.sentence
    )
    assert "it was made from the history" in said.sentence
    for choice in ("snap-t2", "`--store totals --input stay`", "`--input earliest`"):
        assert choice in said.action
    content = plan_of(Restore("orders", at="tp", stores=("totals",), inputs="stay"), facts)
    assert isinstance(content.verdict, Ready)
    assert positions(content) == {}
    assert "was made from the history" in explain(content)
    again = plan_of(Restore("orders", at="tp", inputs="earliest"), facts)
    assert positions(again) == {"placed": {0: 0, 1: 0}}
    assert [each.version for each in again.stages if isinstance(each, CheckTable)] == [100, 100]


@pytest.mark.parametrize("inputs", ["snapshot", "copied"])
def test_one_missing_input_offset_is_not_a_number(inputs: Any) -> None:
    part = manifest_of("totals", "t2").partitions
    lacks = (part[0], replace(part[1], inputs={}, sources={}))
    tables = both(partitions=lacks)
    tables["seen"] = table_of("seen", manifest_of("seen", "s2", partitions=lacks))
    said = refusal(Restore("orders", at="latest", inputs=inputs), facts_with(tables=tables)).sentence
    assert "has no input offset of placed[1]: the checkpoint that it was taken from had none" in said
    together = Restore("orders", at="t2", inputs="earliest")
    assert "has no input offset of placed[1]" in refusal(together, facts_with(tables=tables)).sentence
    alone = Restore("orders", at="t2", stores=("totals",), inputs="stay")
    assert isinstance(plan_of(alone, facts_with(tables=tables)).verdict, Ready)


def test_versions_from_the_history_belong_together_only_if_they_are_of_one_moment() -> None:
    tables = with_past()
    tables["seen"] = table_of("seen", past_of("seen", "sp", 1_799_000_400.0), manifest_of("seen", "s2"))
    facts = facts_with(tables=tables)
    assert "Store `seen` has no snapshot at" in refusal(Restore("orders", at="tp", inputs="earliest"), facts).sentence


def test_equal_offsets_of_another_input_topic_are_not_the_same_input() -> None:
    former = tuple(replace(each, sources={"placed": "id-of-another"}) for each in manifest_of("seen", "s2").partitions)
    tables = {**both(), "seen": table_of("seen", manifest_of("seen", "s2", partitions=former))}
    assert "snapshot s2 of 2027-01-03 18:13:20 UTC was taken from another one (id-of-another)" in (
        refusal(facts=facts_with(tables=tables)).sentence
    )


def test_an_input_partition_of_unknown_offsets_or_unknown_topic_id_is_refused() -> None:
    starts = {**world_of(TOPOLOGY).starts, "placed": {0: 0}}
    for inputs in ("snapshot", "earliest"):
        said = refusal(Restore("orders", at="latest", inputs=inputs), facts_with(starts=starts)).sentence
        assert "Kafka listed 2 partitions of placed, but no offsets of placed[1]" in said
    part = manifest_of("totals", "t2").partitions
    half = (part[0], replace(part[1], sources={}))
    tables = {name: table_of(name, manifest_of(name, f"{name[0]}2", partitions=half)) for name in ("totals", "seen")}
    assert "does not record its topic id in all partitions" in refusal(facts=facts_with(tables=tables)).sentence


def test_what_is_no_snapshot_of_this_store_is_refused() -> None:
    assert "there is no snapshot, tag or version 'nonsense'" in refusal(Restore("orders", at="nonsense")).sentence
    for changes, said in (
        (
            {"processor": "others"},
            "is a snapshot of store `totals` of processor others, not of store `totals` of orders",
        ),
        ({"state_format": "9.9.9"}, "has state format 9.9.9"),
        ({"partitions": manifest_of("totals", "t2").partitions[:1]}, "1 partition, its inputs have 2"),
        ({"partitions": manifest_of("totals", "t2").partitions[1:]}, "some are missing"),
    ):
        tables = {**both(**changes)}
        if "partitions" in changes:
            tables["seen"] = table_of("seen", manifest_of("seen", "s2", **changes))
        assert said in refusal(facts=facts_with(tables=tables)).sentence
    damaged = {**both(), "totals": table_of("totals", "A text is no manifest of a snapshot")}
    assert "no manifest of a snapshot" in refusal(facts=facts_with(tables=damaged)).action
    assert "no manifest" in refusal(Restore("orders", at="100"), facts_with(tables=damaged)).sentence
    missing = {**both(), "totals": StoreTable("orders.totals", problem="There is none.", action="Take one.")}
    assert refusal(facts=facts_with(tables=missing)).action == "Take one."


def test_input_that_is_another_topic_is_read_on_from_only_when_that_is_asked_for() -> None:
    topics = {**world_of(TOPOLOGY).topics, "placed": TopicFacts("placed", "another", PARTITIONS, 1, {})}
    facts = facts_with(stopped(TOPOLOGY, topics=topics))
    said = refusal(facts=facts)
    assert "was taken from another one (id-of-placed)" in said.sentence
    assert all(way in said.action for way in ("--input copied", "--input earliest", "--input stay"))
    copied = plan_of(Restore("orders", at="latest", inputs="copied"), facts)
    assert positions(copied) == {"placed": {0: 60, 1: 60}}
    assert "you assert that" in explain(copied)
    earliest = plan_of(Restore("orders", at="latest", inputs="earliest"), facts)
    assert positions(earliest) == {"placed": {0: 0, 1: 0}}
    silent = both(partitions=tuple(replace(each, sources={}) for each in manifest_of("totals", "t2").partitions))
    assert "does not record its topic id" in refusal(facts=facts_with(tables=silent)).sentence


def test_input_that_is_gone_is_refused_saying_from_where_on_it_is_there() -> None:
    cut = {**world_of(TOPOLOGY).starts, "placed": {0: 0, 1: 70}}
    said = refusal(facts=facts_with(starts=cut)).sentence
    assert "placed[1] at offset 60, but that topic begins at 70: 10 records are gone" in said
    short = {**world_of(TOPOLOGY).ends, "placed": {0: 100, 1: 50}}
    assert "placed[1] at offset 60, but that topic ends at 50" in refusal(facts=facts_with(ends=short)).sentence
    gone = {name: each for name, each in world_of(TOPOLOGY).topics.items() if name != "placed"}
    assert "Input topic placed does not exist" in refusal(facts=facts_with(topics=gone)).sentence
    nowhere = Restore("orders", at="latest", inputs="stay")
    assert "no committed offset of placed[0]" in refusal(nowhere, facts_with(committed={})).sentence


def test_who_is_alive_elsewhere_or_is_another_version_is_not_restored_under() -> None:
    assert "1 live member" in refusal(facts=facts_with(stopped(TOPOLOGY, members=1))).sentence
    other = DeploymentFacts("another", ("0",), "deployed", 3)
    assert "version another is deployed" in refusal(facts=facts_with(deployment=other)).sentence
    assert "no store 'totls'" in refusal(Restore("orders", at="latest", stores=("totls",))).sentence
    bare = orders_topology(changelogs=False)
    plan = decide(LATEST, facts_with(world_of(bare)), bare)
    assert isinstance(plan.verdict, Refused)
    assert "has no changelog" in plan.verdict.sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"stores": ("totals",)},
        {"inputs": "stay"},
        {"at": "latest", "partitions": (1,)},
        {"at": "latest", "source": "changelog"},
        {"at": " "},
    ],
)
def test_a_request_that_contradicts_itself_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid):
        Restore("orders", **fields)
