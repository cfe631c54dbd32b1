"""The plans of all verbs (operator commands), decided only from given facts: stages, texts and refusals.

Facts are what a command reads before it plans.
"""

from __future__ import annotations

import msgspec
import pytest

from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.facts.facts import HangingTransaction, InstanceFacts, Rate
from holdfast.processors.lifecycle.plans.plan import (
    NothingToDo,
    Plan,
    Ready,
    Refused,
    as_document,
    decode,
    encode,
    what_changed,
)
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Compact,
    Deploy,
    Keys,
    Prefix,
    Provision,
    Reposition,
    Request,
    Restore,
    Stop,
    verb_of,
)
from holdfast.processors.lifecycle.plans.stages import (
    AbortTransaction,
    CompactStores,
    RunProcessor,
    SetPositions,
    SetStateAside,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, world_of

TOPOLOGY = orders_topology()
CHANGELOG = TOPOLOGY.changelogs[0].topic.name
ONE_KEY = Clear("orders", ("totals",), Keys(("alice",)))
ALL = Clear("orders")
AGAIN = Clear("orders", rewind="earliest")

EVERY_REQUEST: list[Request] = [
    Provision("orders"),
    Deploy("orders"),
    Stop("orders"),
    Compact("orders"),
    Reposition("orders"),
    ONE_KEY,
    Clear("orders", ("totals",), Prefix("a"), (1,)),
    ALL,
    AGAIN,
    Backfill("orders", "totals", "local"),
    Backfill("orders", "totals", "topic"),
    Restore("orders", (0,), "changelog"),
]


def kinds(plan: Plan) -> list[type]:
    return [type(stage) for stage in plan.stages]


@pytest.mark.parametrize("request_", EVERY_REQUEST, ids=lambda request: verb_of(request))
@pytest.mark.parametrize("facts", [world_of(TOPOLOGY), stopped(TOPOLOGY)], ids=["working", "stopped"])
def test_a_plan_goes_through_json_unchanged_and_keeps_its_hash(request_: Request, facts: object) -> None:
    plan = decide(request_, facts, TOPOLOGY)  # type: ignore[arg-type]
    again = decode(encode(plan))
    assert (again.hash, again.stages, again.verdict, again.request) == (
        plan.hash,
        plan.stages,
        plan.verdict,
        plan.request,
    )
    assert as_document(again)["hash"] == plan.hash


@pytest.mark.parametrize("request_", EVERY_REQUEST, ids=lambda request: verb_of(request))
def test_every_stage_and_the_verdict_stand_in_the_explanation(request_: Request) -> None:
    plan = decide(request_, stopped(TOPOLOGY), TOPOLOGY)
    for text in (explain(plan), explain_markdown(plan)):
        assert plan.verdict.sentence in text
        assert all(stage.says in text for stage in plan.stages)
    lines = explain_markdown(plan).splitlines()
    assert all(f"{number}. {stage.says}" in lines for number, stage in enumerate(plan.stages, 1)), "without a bullet"


def test_restoring_stops_sets_aside_starts_and_deletes_last() -> None:
    plan = decide(Restore("orders", (1,)), world_of(TOPOLOGY), TOPOLOGY)
    assert [type(stage).__name__ for stage in plan.stages] == [
        "StopProcessor",
        "SetStateAside",
        "RunProcessor",
        "DeleteStateAside",
    ]
    aside = next(stage for stage in plan.stages if isinstance(stage, SetStateAside))
    assert aside.tasks == ("placed-1",)
    assert not plan.destructive


def test_a_stopped_processor_is_restored_paused_and_stopped_again() -> None:
    plan = decide(Restore("orders"), stopped(TOPOLOGY), TOPOLOGY)
    run = next(stage for stage in plan.stages if isinstance(stage, RunProcessor))
    assert run.paused
    assert isinstance(plan.stages[-2], StopProcessor)


def test_a_restore_takes_as_long_as_restores_took() -> None:
    facts = world_of(TOPOLOGY, rates={"run_processor": Rate(1_000.0, 10.0)})
    plan = decide(Restore("orders"), facts, TOPOLOGY)
    # 400 records: two changelogs with two partitions, each with 100 records
    assert plan.seconds == pytest.approx(400 / 100 + 5.0)
    assert "at the measured rate" in plan.estimate


def test_local_state_is_not_set_aside_where_the_changelog_could_not_give_it_back() -> None:
    recreated = {**stopped(TOPOLOGY).topics, CHANGELOG: TopicFacts(CHANGELOG, "another", 2, 1, {})}
    truncated = {**stopped(TOPOLOGY).starts, CHANGELOG: {0: 0, 1: 30}}
    for facts, words in (
        (stopped(TOPOLOGY, topics=recreated), "was recreated"),
        (stopped(TOPOLOGY, starts=truncated), "begins at offset 30"),
    ):
        plan = decide(Restore("orders"), facts, TOPOLOGY)
        assert isinstance(plan.verdict, Refused)
        assert words in plan.verdict.sentence
        assert "--from local" in plan.verdict.action


def test_an_older_copy_in_another_slot_does_not_stand_in_the_way_of_a_restore() -> None:
    whole = stopped(TOPOLOGY)
    former = {store: (topic, "former", at) for store, (topic, _, at) in (whole.local[0].stores or {}).items()}
    older = tuple(msgspec.structs.replace(each, slot="1", stores=former) for each in whole.local)
    for local in ((*whole.local, *older), (*older, *whole.local)):
        assert isinstance(decide(Restore("orders"), stopped(TOPOLOGY, local=local), TOPOLOGY).verdict, Ready)


def test_stopping_twice_is_nothing_to_do() -> None:
    assert isinstance(decide(Stop("orders"), stopped(TOPOLOGY), TOPOLOGY).verdict, NothingToDo)
    assert kinds(decide(Stop("orders"), world_of(TOPOLOGY), TOPOLOGY)) == [StopProcessor]


def test_compaction_needs_a_working_owner() -> None:
    assert isinstance(decide(Compact("orders"), stopped(TOPOLOGY), TOPOLOGY).verdict, Refused)
    assert decide(Compact("orders"), world_of(TOPOLOGY), TOPOLOGY).size_bytes == 4096


def test_what_hangs_on_a_changelog_is_ended_even_where_nothing_runs() -> None:
    hanging = (HangingTransaction(CHANGELOG, 1, 777, 0, 42, 4_000.0),)
    plan = decide(Compact("orders"), stopped(TOPOLOGY, hanging=hanging), TOPOLOGY)
    assert kinds(plan) == [AbortTransaction]
    assert any(f"{CHANGELOG}[1]" in found and "silent for 4000 s" in found for found in plan.findings)
    assert kinds(decide(Compact("orders"), world_of(TOPOLOGY, hanging=hanging), TOPOLOGY)) == [
        AbortTransaction,
        CompactStores,
    ]


def test_what_changed_since_a_plan_was_shown_is_said() -> None:
    shown = decide(ONE_KEY, world_of(TOPOLOGY), TOPOLOGY)
    moved = world_of(TOPOLOGY, instances=(InstanceFacts("0", True, "restoring", TOPOLOGY.code_version),))
    recreated = {**world_of(TOPOLOGY).topics, CHANGELOG: TopicFacts(CHANGELOG, "another", 2, 1, {})}
    topics = decide(ONE_KEY, world_of(TOPOLOGY, topics=recreated), TOPOLOGY)
    assert what_changed(shown, decide(ONE_KEY, world_of(TOPOLOGY), TOPOLOGY)) == ()
    assert any("was: " in said for said in what_changed(shown, decide(ONE_KEY, moved, TOPOLOGY)))
    assert what_changed(shown, topics) == (f"topic id {CHANGELOG} was id-of-{CHANGELOG}, now another",)


def test_what_changed_is_said_also_of_offsets_by_partition_that_came_back_from_json() -> None:
    shown = decode(encode(decide(AGAIN, stopped(TOPOLOGY), TOPOLOGY)))
    assert what_changed(shown, decide(AGAIN, stopped(TOPOLOGY), TOPOLOGY)) == ()
    moved = stopped(TOPOLOGY, committed={"placed": {0: 100, 1: 101}})
    assert what_changed(shown, decide(AGAIN, moved, TOPOLOGY)) == ("committed placed 1 was 100, now 101",)


# -- reposition --------------------------------------------------------------------------------------------------------

DOWN = {"instances": (InstanceFacts("0", False),), "members": 0}


def held_at(offset: int) -> dict[str, dict[int, dict[str, int]]]:
    return {store.name: {number: {"placed": offset} for number in (0, 1)} for store in TOPOLOGY.stores}


def test_offsets_that_were_reset_go_back_to_what_the_state_holds() -> None:
    facts = world_of(TOPOLOGY, **DOWN, held=held_at(100), committed={"placed": {0: 0, 1: 100}})
    plan = decide(Reposition("orders"), facts, TOPOLOGY)
    assert kinds(plan) == [SetPositions, RunProcessor]
    assert plan.stages[0].positions == {"placed": {0: 100, 1: 100}}  # type: ignore[union-attr]
    assert plan.findings == ("placed[0]: from 0 to 100",)
    assert plan.deleted == ()


def test_offsets_that_expired_are_set_again() -> None:
    facts = world_of(TOPOLOGY, **DOWN, held=held_at(100), committed={})
    plan = decide(Reposition("orders"), facts, TOPOLOGY)
    assert plan.findings == ("placed[0]: from none to 100", "placed[1]: from none to 100")


def test_input_that_is_gone_unread_is_skipped_and_counted() -> None:
    starts = {name: {0: 0, 1: 0} for name in world_of(TOPOLOGY).topics} | {"placed": {0: 140, 1: 0}}
    facts = world_of(TOPOLOGY, **DOWN, held=held_at(100), starts=starts, ends={"placed": {0: 150, 1: 150}})
    plan = decide(Reposition("orders"), facts, TOPOLOGY)
    assert plan.stages[0].positions == {"placed": {0: 140, 1: 100}}  # type: ignore[union-attr]
    assert "40 records" in explain(plan)
    assert plan.destructive


def test_a_processor_that_was_stopped_on_purpose_is_not_started() -> None:
    facts = stopped(TOPOLOGY, held=held_at(100), committed={"placed": {0: 0, 1: 0}})
    assert kinds(decide(Reposition("orders"), facts, TOPOLOGY)) == [SetPositions]


def test_offsets_that_belong_to_the_state_stay() -> None:
    plan = decide(Reposition("orders"), world_of(TOPOLOGY, **DOWN, held=held_at(100)), TOPOLOGY)
    assert isinstance(plan.verdict, NothingToDo)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"held": held_at(100)}, "has a live worker"),
        ({**DOWN, "held": held_at(200)}, "the topic ends at 100"),
        ({**DOWN, "held": {"totals": {0: {"placed": 7}, 1: {"placed": 7}}, "seen": {}}}, "or different ones"),
        ({**DOWN, "held": {}}, "The changelogs hold no offset of"),
        ({**DOWN, "held": held_at(-1)}, "The changelogs hold no offset of"),
        ({**DOWN, "deployment": None}, "was never deployed"),
    ],
)
def test_where_nothing_certain_is_known_nothing_is_repositioned(changes: dict[str, object], said: str) -> None:
    plan = decide(Reposition("orders"), world_of(TOPOLOGY, **changes), TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert said in plan.verdict.sentence
