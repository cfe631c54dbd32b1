"""Plans of `backfill`: fill a changelog from local state, or rebuild a store from its topics.

The planner gets facts (what a command reads before it plans) as data, so the tests need no cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.facts.facts import Facts, InstanceFacts, LocalTask
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Everything, RequestInvalid
from holdfast.processors.lifecycle.plans.stages import (
    AdoptStore,
    CheckLocalState,
    CreateTopic,
    DeleteStateAside,
    DeleteTopic,
    RunProcessor,
    SetStateAside,
    SetTopicConfig,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.state.backfill import check_local
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.verbs.test_verb_plans import AGAIN, CHANGELOG, TOPOLOGY, kinds
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, world_of

#: A function that returns facts about a processor whose changelog cannot be used for a restore.
Spoilt = Callable[..., Facts]


class Reading:
    """Implements the port that reads facts: it returns the given facts."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = {"describe": self._facts.topics, "local_tasks": self._facts.local, "deployment": None, "members": ()}
        return lambda *of, **named: found.get(name, {})

    def committed_offsets(self, group: str) -> dict[Partition, int]:
        return {Partition(name, at): end for name, each in self._facts.committed.items() for at, end in each.items()}


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


#: One worker runs all tasks, so their local state is in use.
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
        # Without a changelog nothing can be exported. Then the local copies that are set aside are the only copies, so
        # they must stay.
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
    copies = (*behind, *whole.local, *broken)  # a task that moved to another slot (worker) left an older copy behind
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
