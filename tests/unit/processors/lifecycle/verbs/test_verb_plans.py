"""Facts in, plan out: what each verb decides, says, and refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.explanation import explain, explain_markdown
from holdfast.processors.lifecycle.plans.facts import (
    Counted,
    DeploymentFacts,
    Facts,
    HangingTransaction,
    InstanceFacts,
    LocalTask,
    Rate,
)
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
    Everything,
    Keys,
    Prefix,
    Provision,
    Reposition,
    Request,
    RequestInvalid,
    Restore,
    Stop,
    verb_of,
)
from holdfast.processors.lifecycle.plans.stages import (
    AbortTransaction,
    AdoptStore,
    CheckLocalState,
    ClearKeys,
    CompactStores,
    CreateTopic,
    DeleteStateAside,
    DeleteTopic,
    RunProcessor,
    SetPositions,
    SetStateAside,
    SetTopicConfig,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.backfill import check_local
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, two_widths_topology, world_of

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


#: Facts of a world, with a changelog that no restore can use.
Spoilt = Callable[..., Facts]


class Reading:
    """A source that reads these facts."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = {"describe": self._facts.topics, "local_tasks": self._facts.local, "deployment": None, "members": ()}
        return lambda *of, **named: found.get(name, {})

    def committed_offsets(self, group: str) -> dict[Partition, int]:
        return {Partition(name, at): end for name, each in self._facts.committed.items() for at, end in each.items()}


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


def test_single_keys_are_cleared_by_the_running_owner() -> None:
    plan = decide(ONE_KEY, world_of(TOPOLOGY), TOPOLOGY)
    assert kinds(plan) == [ClearKeys]
    (clear,) = plan.stages
    assert isinstance(clear, ClearKeys)
    assert clear.export, "the owner that deletes them writes them to a file: input counts between two commands"
    assert "to a file" in clear.says
    assert plan.destructive
    assert plan.keys == 10


def test_who_died_but_is_meant_to_be_up_works_again_after_a_clear() -> None:
    meant_up = DeploymentFacts(TOPOLOGY.code_version, ("0",), "deployed", 3)
    plan = decide(ONE_KEY, stopped(TOPOLOGY, deployment=meant_up), TOPOLOGY)
    assert kinds(plan) == [RunProcessor, ClearKeys, RunProcessor]
    assert [stage.paused for stage in plan.stages if isinstance(stage, RunProcessor)] == [True, False]


def test_everything_is_not_cleared_while_a_member_is_alive() -> None:
    for facts in (world_of(TOPOLOGY), stopped(TOPOLOGY, members=1)):
        plan = decide(ALL, facts, TOPOLOGY)
        assert isinstance(plan.verdict, Refused)
        assert "Group orders has 1 live member" in plan.verdict.sentence
        assert "holdfast apply stop orders" in plan.verdict.action
        assert plan.stages == ()


def test_all_state_of_a_stopped_processor_is_cleared_by_paused_workers_that_are_stopped_again() -> None:
    plan = decide(ALL, stopped(TOPOLOGY), TOPOLOGY)
    assert kinds(plan) == [RunProcessor, ClearKeys, StopProcessor]
    paused, clear, stop = plan.stages
    assert isinstance(paused, RunProcessor)
    assert paused.paused
    assert isinstance(clear, ClearKeys)
    assert clear.stores == ("totals", "seen")
    assert clear.positions == {}
    assert isinstance(stop, StopProcessor)
    assert stop.for_good
    assert plan.after_kill == "go on"


def test_a_rewind_moves_the_offsets_with_the_last_deletes_to_what_the_topic_still_has() -> None:
    facts = stopped(TOPOLOGY, starts={**stopped(TOPOLOGY).starts, "placed": {0: 0, 1: 40}})
    plan = decide(AGAIN, facts, TOPOLOGY)
    clear = next(stage for stage in plan.stages if isinstance(stage, ClearKeys))
    assert clear.positions == {"placed": {0: 0, 1: 40}}
    assert any("160 records of placed will be read again" in found for found in plan.findings)
    assert any("no longer begins at offset 0 in 1 partition" in found for found in plan.findings)


def test_nothing_is_to_do_where_nothing_is_held() -> None:
    facts = stopped(TOPOLOGY, counted={name: Counted(0, 0, "local state") for name in ("totals", "seen")})
    assert isinstance(decide(ALL, facts, TOPOLOGY).verdict, NothingToDo)
    assert isinstance(decide(AGAIN, facts, TOPOLOGY).verdict, Ready)  # the input is still to be read again


def test_an_unknown_store_is_refused_with_the_one_that_was_meant() -> None:
    plan = decide(Clear("orders", ("total",), Everything()), stopped(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "no store 'total'" in plan.verdict.sentence
    assert "Did you mean totals?" in plan.verdict.action
    assert plan.verdict.fields["store"] == "total"


def test_an_unknown_partition_is_refused() -> None:
    plan = decide(Clear("orders", partitions=(7,)), stopped(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "no partition 7; its inputs have 2" in plan.verdict.sentence


def test_a_partition_concerns_the_stores_that_have_it() -> None:
    """Store ``narrow`` has 2 partitions, store ``wide`` 5."""
    topology = two_widths_topology()
    widths = {"few": 2, "orders-narrow-changelog": 2}
    facts = stopped(topology)
    topics = {name: replace(each, partitions=widths.get(name, 5)) for name, each in facts.topics.items()}
    facts = msgspec.structs.replace(facts, topics=topics)
    plan = decide(Clear("orders", partitions=(1, 4)), facts, topology)
    cleared = {stage.stores: stage.partitions for stage in plan.stages if isinstance(stage, ClearKeys)}
    assert cleared == {("narrow",): (1,), ("wide",): (1, 4)}
    plan = decide(Clear("orders", partitions=(4,)), facts, topology)
    assert [stage.stores for stage in plan.stages if isinstance(stage, ClearKeys)] == [("wide",)]
    refused = decide(Clear("orders", ("narrow",), partitions=(4,)), facts, topology).verdict
    assert isinstance(refused, Refused)
    assert "no partition 4 of narrow; its inputs have 2" in refused.sentence


def test_a_definition_that_is_not_what_was_deployed_is_not_started_by_the_way() -> None:
    facts = stopped(TOPOLOGY, deployment=DeploymentFacts("older", ("0",), "stopped", 3))
    for request in (ALL, Restore("orders"), Backfill("orders", "totals", "local")):
        verdict = decide(request, facts, TOPOLOGY).verdict
        assert isinstance(verdict, Refused)
        assert "version older is deployed" in verdict.sentence


def test_after_a_rollback_the_running_owners_clear_keys_and_nothing_is_started() -> None:
    older = DeploymentFacts("older", ("0",), "deployed", 3)
    runs = world_of(TOPOLOGY, deployment=older, instances=(InstanceFacts("0", True, "running", "older"),))
    assert kinds(decide(ONE_KEY, runs, TOPOLOGY)) == [ClearKeys]
    died = decide(ONE_KEY, stopped(TOPOLOGY, deployment=older), TOPOLOGY).verdict
    assert isinstance(died, Refused)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Clear("orders", ("totals",), rewind="earliest"), "would count input twice"),
        (lambda: Clear("orders", (), Keys(("a",)), rewind="earliest"), "would count input twice"),
        (lambda: Clear("orders", (), Keys(())), "has 0 keys"),
        (lambda: Clear("orders", (), Keys(tuple(map(str, range(10_001))))), "has 10001 keys"),
        (lambda: Clear("orders", (), Prefix("")), "would select all keys"),
    ],
)
def test_a_request_that_contradicts_itself_is_none(make: object, words: str) -> None:
    with pytest.raises(RequestInvalid, match=words):
        make()  # type: ignore[operator]


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
    assert plan.seconds == pytest.approx(400 / 100 + 5.0)  # two changelogs, two partitions, 100 records each
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


def test_a_changelog_that_is_gone_is_made_and_filled_from_local_state() -> None:
    whole = stopped(TOPOLOGY)
    facts = stopped(
        TOPOLOGY,
        topics={name: known for name, known in whole.topics.items() if name != CHANGELOG},
        starts={name: each for name, each in whole.starts.items() if name != CHANGELOG},
        ends={name: each for name, each in whole.ends.items() if name != CHANGELOG},
    )
    store = TOPOLOGY.changelogs[0].store
    plan = decide(Backfill("orders", store, "local"), facts, TOPOLOGY)
    assert kinds(plan) == [CreateTopic, RunProcessor, StopProcessor]
    run = plan.stages[1]
    assert isinstance(run, RunProcessor)
    assert (run.paused, run.reseed) == (True, (store,))


def test_a_changelog_that_somebody_created_again_with_another_config_gets_its_own_back() -> None:
    recreated = {**stopped(TOPOLOGY).topics, CHANGELOG: TopicFacts(CHANGELOG, "another", 2, 1, {})}
    plan = decide(
        Backfill("orders", TOPOLOGY.changelogs[0].store, "local"), stopped(TOPOLOGY, topics=recreated), TOPOLOGY
    )
    assert kinds(plan) == [SetTopicConfig, RunProcessor, StopProcessor]
    assert isinstance(plan.stages[0], SetTopicConfig)
    assert plan.stages[0].name == CHANGELOG


def test_a_changelog_that_lost_its_beginning_is_replaced_and_filled_for_every_task() -> None:
    facts = stopped(TOPOLOGY, starts={**stopped(TOPOLOGY).starts, CHANGELOG: {0: 0, 1: 30}})
    plan = decide(Backfill("orders", TOPOLOGY.changelogs[0].store, "local"), facts, TOPOLOGY)
    assert kinds(plan) == [DeleteTopic, CreateTopic, RunProcessor, StopProcessor]
    assert plan.destructive
    assert "2 tasks" in plan.verdict.sentence


def cut(world: Callable[..., Facts], **changes: object) -> Facts:
    return world(TOPOLOGY, starts={**stopped(TOPOLOGY).starts, CHANGELOG: {0: 0, 1: 30}}, **changes)


def widened(world: Callable[..., Facts], **changes: object) -> Facts:
    wide = TopicFacts(CHANGELOG, f"id-of-{CHANGELOG}", 3, 1, {})
    facts = world(TOPOLOGY, **changes)
    ends = {**facts.ends, CHANGELOG: {0: 100, 1: 100, 2: 0}}
    return msgspec.structs.replace(facts, topics={**facts.topics, CHANGELOG: wide}, ends=ends)


#: All tasks run in a worker here; what they hold on disk is in use.
WORKING = {
    "instances": (InstanceFacts("0", True, "running", TOPOLOGY.code_version, tasks=("placed-0", "placed-1")),),
    "local": (LocalTask("0", "placed-0"), LocalTask("0", "placed-1")),
}


@pytest.mark.parametrize("spoilt", [cut, widened])
def test_a_processor_that_works_is_stopped_and_its_state_is_looked_at_before_the_changelog_goes(spoilt: Spoilt) -> None:
    facts = spoilt(world_of, **WORKING)
    plan = decide(Backfill("orders", "totals", "local"), facts, TOPOLOGY)
    assert kinds(plan) == [StopProcessor, CheckLocalState, DeleteTopic, CreateTopic, RunProcessor, RunProcessor]
    assert [each.name for each in plan.stages if isinstance(each, DeleteTopic | CreateTopic)] == [CHANGELOG] * 2
    assert plan.stages[3].partitions == 2
    assert not plan.stages[-1].paused


@pytest.mark.parametrize(
    "changes",
    [
        {"members": 2},
        {"instances": (InstanceFacts("0", True, "running", tasks=("placed-0",)),)},
        {"instances": (InstanceFacts("0", True, "restoring", tasks=("placed-0", "placed-1")),)},
        {"instances": (InstanceFacts("0", True, "running", paused=True, tasks=("placed-0", "placed-1")),)},
    ],
)
def test_a_processor_that_works_elsewhere_or_not_yet_is_stopped_by_a_person(changes: dict[str, object]) -> None:
    plan = decide(Backfill("orders", "totals", "local"), cut(world_of, **{**WORKING, **changes}), TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "`holdfast apply stop orders`" in plan.verdict.action


def test_state_of_partitions_that_the_inputs_no_longer_have_is_not_dropped() -> None:
    facts = widened(stopped)
    facts = msgspec.structs.replace(facts, ends={**facts.ends, CHANGELOG: {0: 100, 1: 100, 2: 5}})
    plan = decide(Backfill("orders", "totals", "local"), facts, TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "has state in partition 2" in plan.verdict.sentence
    assert "--rewind earliest" in plan.verdict.action


def test_all_changelogs_that_no_worker_starts_with_are_created_again_together() -> None:
    logs = [spec.topic.name for spec in TOPOLOGY.changelogs]
    facts = stopped(TOPOLOGY)
    topics = {**facts.topics, **{name: TopicFacts(name, f"id-of-{name}", 3, 1, {}) for name in logs}}
    plan = decide(Backfill("orders", "totals", "local"), msgspec.structs.replace(facts, topics=topics), TOPOLOGY)
    assert {each.name for each in plan.stages if isinstance(each, CreateTopic)} == set(logs)
    (run,) = [each for each in plan.stages if isinstance(each, RunProcessor)]
    assert set(run.reseed) == {"totals", "seen"}


@pytest.mark.parametrize("spoilt", [cut, widened])
def test_all_state_is_built_again_also_where_a_changelog_cannot_be_restored_from(spoilt: Spoilt) -> None:
    for facts in (spoilt(stopped, local=()), spoilt(stopped, local=(), committed={}, counted={})):
        plan = decide(AGAIN, facts, TOPOLOGY)
        assert isinstance(plan.verdict, Ready)
        assert [type(each) for each in plan.stages[:4]] == [SetStateAside, DeleteTopic, CreateTopic, RunProcessor]
        assert plan.stages[0].tasks == ("placed-0", "placed-1")
        assert "totals" in plan.stages[3].begin_empty
        assert plan.keys is None, "they are gone with the changelog"
        # Without changelog there is nothing to write to a file: the copies that are set aside are the last ones.
        assert not any(isinstance(each, DeleteStateAside) for each in plan.stages)
        assert "stays there until it is deleted as an orphan" in plan.stages[0].says
        plan = decide(msgspec.structs.replace(AGAIN, export=False), facts, TOPOLOGY)
        assert isinstance(plan.stages[-1], DeleteStateAside)


def test_a_whole_changelog_needs_no_filling() -> None:
    plan = decide(Backfill("orders", "totals", "local"), stopped(TOPOLOGY), TOPOLOGY)
    assert isinstance(plan.verdict, NothingToDo)


def test_a_changelog_is_not_filled_from_what_is_not_whole_or_not_here() -> None:
    whole = stopped(TOPOLOGY)
    request = Backfill("orders", "totals", "local")
    broken = tuple(msgspec.structs.replace(each, restoring=True) for each in whole.local)
    fresh = tuple(msgspec.structs.replace(each, stores={}, inputs={}) for each in whole.local)
    behind = tuple(msgspec.structs.replace(each, inputs={"placed": 60}) for each in whole.local)
    for facts, words in (
        (stopped(TOPOLOGY, local=whole.local[:1]), "is not on this machine"),
        (stopped(TOPOLOGY, local=broken), "is incomplete"),
        (stopped(TOPOLOGY, local=fresh), "holds no offset of placed, but the group has committed 100"),
        (stopped(TOPOLOGY, local=behind), "holds placed up to offset 60, but the group has committed 100"),
        (world_of(TOPOLOGY), "1 live member"),
    ):
        verdict = decide(request, facts, TOPOLOGY).verdict
        assert isinstance(verdict, Refused)
        assert words in verdict.sentence
        assert "clear orders --all --rewind earliest" in verdict.action or "apply stop orders" in verdict.action
    copies = (*behind, *whole.local, *broken)  # a task that moved between slots left an older copy
    assert isinstance(decide(request, stopped(TOPOLOGY, local=copies), TOPOLOGY).verdict, NothingToDo | Ready)


def test_local_state_is_looked_at_again_once_the_workers_are_gone() -> None:
    whole = stopped(TOPOLOGY)
    behind = tuple(msgspec.structs.replace(each, inputs={"placed": 60}) for each in whole.local)
    check_local("orders", ("totals",), Reading(whole), TOPOLOGY)
    with pytest.raises(ApplyFailed, match="Nothing was deleted") as failed:
        check_local("orders", ("totals",), Reading(stopped(TOPOLOGY, local=behind)), TOPOLOGY)
    assert "`holdfast apply deploy orders`" in failed.value.action


def test_a_store_is_built_anew_beside_a_working_processor_that_is_paused_for_the_exchange_only() -> None:
    plan = decide(Backfill("orders", "totals", "topic"), world_of(TOPOLOGY), TOPOLOGY)
    names = [kind.__name__ for kind in kinds(plan)]
    assert names.index("WaitForShadow") < names.index("PauseProcessor")
    assert names[names.index("PauseProcessor") :] == [
        "PauseProcessor",
        "FinishShadow",
        "AdoptStore",
        "ResumeProcessor",
        "RemoveShadow",
    ]
    (adopted,) = (stage for stage in plan.stages if isinstance(stage, AdoptStore))
    assert adopted.export == Everything(), "the paused owners write the file"
    assert plan.destructive
    assert plan.after_kill == "go on"
    assert plan.seconds == pytest.approx(200 / 20_000)
    assert any("200 records of placed will be read again" in found for found in plan.findings)


def test_a_store_is_not_built_from_a_source_without_its_beginning_or_for_nobody() -> None:
    request = Backfill("orders", "totals", "topic")
    truncated = world_of(TOPOLOGY, starts={**world_of(TOPOLOGY).starts, "placed": {0: 0, 1: 40}})
    paused = (InstanceFacts("0", True, "running", TOPOLOGY.code_version, paused=True),)
    bare = orders_topology(changelogs=False)
    for facts, topology, words in (
        (truncated, TOPOLOGY, "placed[1] begins at offset 40"),
        (stopped(TOPOLOGY), TOPOLOGY, "does not run in all slots"),
        (world_of(TOPOLOGY, instances=paused), TOPOLOGY, "does not run in all slots"),
        (world_of(bare), bare, "no changelog"),
    ):
        verdict = decide(request, facts, topology).verdict
        assert isinstance(verdict, Refused)
        assert words in verdict.sentence
    available = decide(Backfill("orders", "totals", "topic", from_available=True), truncated, TOPOLOGY)
    assert any("before offset 40: the topic no longer has them" in said for said in available.deleted)
    with pytest.raises(RequestInvalid, match="needs a backfill from the topic"):
        Backfill("orders", "totals", "local", from_available=True)


def test_a_store_without_changelog_can_not_be_filled() -> None:
    bare = orders_topology(changelogs=False)
    verdict = decide(Backfill("orders", "totals", "local"), stopped(bare), bare).verdict
    assert isinstance(verdict, Refused)
    assert "no changelog" in verdict.sentence


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


def test_changelogs_that_are_narrower_than_their_input_are_made_anew_where_all_state_is() -> None:
    facts = stopped(TOPOLOGY)
    wider = msgspec.structs.replace(
        facts, topics={**facts.topics, "placed": TopicFacts("placed", "id-of-placed", 3, 1, {})}
    )
    plan = decide(AGAIN, wider, TOPOLOGY)
    logs = [spec.topic.name for spec in TOPOLOGY.changelogs]
    assert [stage.name for stage in plan.stages if isinstance(stage, DeleteTopic)] == logs
    assert [(stage.name, stage.partitions) for stage in plan.stages if isinstance(stage, CreateTopic)] == [
        (name, 3) for name in logs
    ]
    run = next(stage for stage in plan.stages if isinstance(stage, RunProcessor))
    assert set(run.begin_empty) == {"totals", "seen"}
