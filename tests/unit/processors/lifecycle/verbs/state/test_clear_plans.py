"""Plans of clears: the workers that delete keys, the offsets that are set, and refusals.

The planner gets facts (what a command reads before it plans) as data, so the tests need no cluster.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.lifecycle.plans.facts.facts import Counted, DeploymentFacts, InstanceFacts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Everything,
    Keys,
    Prefix,
    RequestInvalid,
    Restore,
)
from holdfast.processors.lifecycle.plans.stages import ClearKeys, CreateTopic, DeleteTopic, RunProcessor, StopProcessor
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.verbs.test_verb_plans import AGAIN, ALL, ONE_KEY, TOPOLOGY, kinds
from tests.unit.processors.lifecycle.worlds import stopped, two_widths_topology, world_of


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
    # no state is left to clear, but the input must still be read again
    assert isinstance(decide(AGAIN, facts, TOPOLOGY).verdict, Ready)


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
    """Store ``narrow`` has 2 partitions and store ``wide`` has 5, so a clear of partition 4 concerns ``wide`` only."""
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
