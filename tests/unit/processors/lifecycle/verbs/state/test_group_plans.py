"""Verbs (operator commands) of a processor with ``group_by``.

Tests which input is read again, and which requests are refused because messages would count twice.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, Count
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine import provisioning
from holdfast.processors.engine.changelog.config import REPARTITION_CONFIG
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.orphans.owned import Found, Known, Owner, find_orphans
from holdfast.processors.lifecycle.plans.facts.shape import as_document, from_document, shape_of
from holdfast.processors.lifecycle.plans.facts.shape import topology_of as topology_from
from holdfast.processors.lifecycle.plans.plan import Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Restore
from holdfast.processors.lifecycle.plans.stages import ClearKeys, ReadAgain, RunProcessor, StopProcessor
from holdfast.processors.lifecycle.verbs.state import clear, rebuild, restore_table
from tests.unit.processors.lifecycle.worlds import count, stopped, world_of

BETWEEN = "carriers-carrier-repartition"


def between(partitions: int = 2, **config: str) -> TopicFacts:
    """The facts about a correct repartition topic, with these entries of the topic's configuration changed."""
    return TopicFacts(BETWEEN, "id", partitions, 1, {**REPARTITION_CONFIG, "min.insync.replicas": "1", **config})


def topology_of(*, with_state_before: bool = False) -> Topology:
    app = Application(consumer_group="carriers")
    flights = app.dataframe(app.topic("flights"))
    if with_state_before:
        flights = flights.apply(count, stateful=True, store="planes")
    flights.group_by("carrier").aggregate(n=Count(), store="totals")
    return app.topology()


def test_a_rewind_reads_the_sources_from_their_start_and_the_repartition_topic_from_its_end() -> None:
    topology = topology_of()
    plan = clear.plan(Clear("carriers", rewind="earliest", export=False), stopped(topology), topology)
    assert isinstance(plan.verdict, Ready)
    assert [type(stage) for stage in plan.stages] == [RunProcessor, ReadAgain, ClearKeys, StopProcessor]
    again, cleared = plan.stages[1], plan.stages[2]
    assert isinstance(again, ReadAgain)
    assert again.positions == {"flights": {0: 0, 1: 0}}
    assert isinstance(cleared, ClearKeys)
    assert cleared.positions == {BETWEEN: {0: 100, 1: 100}}
    assert f"what is in {BETWEEN} is left out: it comes again from flights" in plan.findings


def test_a_rewind_of_a_chain_with_state_before_the_topic_needs_no_stage_of_its_own() -> None:
    topology = topology_of(with_state_before=True)
    plan = clear.plan(Clear("carriers", rewind="earliest", export=False), stopped(topology), topology)
    cleared = [stage for stage in plan.stages if isinstance(stage, ClearKeys)]
    assert [stage.positions for stage in cleared] == [{"flights": {0: 0, 1: 0}}, {BETWEEN: {0: 100, 1: 100}}]
    assert not any(isinstance(stage, ReadAgain) for stage in plan.stages)


def test_a_store_of_a_chain_is_not_rebuilt_beside_its_processor() -> None:
    topology = topology_of()
    plan = rebuild.plan(Backfill("carriers", "totals", "topic"), world_of(topology), topology)
    assert isinstance(plan.verdict, Refused)
    assert "in one chain with `group_by`" in plan.verdict.sentence
    assert "holdfast apply clear carriers --all --rewind earliest" in plan.verdict.action


@pytest.mark.parametrize(
    ("inputs", "positions", "refused"),
    [
        ("snapshot", {"flights": {0: 5}}, True),
        ("snapshot", {BETWEEN: {0: 5}}, False),
        ("earliest", {BETWEEN: {0: 5}}, True),
        ("copied", {BETWEEN: {0: 5}}, True),
        ("stay", {}, False),
    ],
)
def test_a_restore_does_not_read_again_what_is_grouped_already(
    inputs: Any, positions: dict[str, dict[int, int]], refused: bool
) -> None:
    request = Restore("carriers", at="latest", inputs=inputs)
    found = restore_table._regrouped(request, topology_of(), positions)
    assert (found is not None) == refused
    if found is not None:
        assert "would count twice" in found.sentence


def test_a_repartition_topic_is_created_as_wide_as_its_source_and_kept_for_good() -> None:
    topology = topology_of()
    facts = {"flights": TopicFacts("flights", "id", 7, 2, {})}
    plan = provisioning.plan(topology, facts, brokers=3)
    made = {stage.spec.name: stage for stage in plan.stages if isinstance(stage, provisioning.CreateTopic)}
    assert (made[BETWEEN].spec.partitions, made[BETWEEN].spec.replication) == (7, 3)
    assert dict(made[BETWEEN].spec.config) == {"min.insync.replicas": "2", **REPARTITION_CONFIG}
    assert any("workers delete what they have processed" in reason for reason in made[BETWEEN].reasons)
    assert made["carriers-totals-changelog"].spec.partitions == 7


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (TopicFacts(BETWEEN, "id", 5, 1, dict(REPARTITION_CONFIG)), "has 5 partitions, expected 2"),
        (
            TopicFacts(BETWEEN, "id", 2, 1, {**REPARTITION_CONFIG, "cleanup.policy": "compact"}),
            "cleanup.policy=compact",
        ),
        (TopicFacts(BETWEEN, "id", 2, 1, {**REPARTITION_CONFIG, "retention.ms": "1000"}), "retention.ms=1000"),
    ],
)
def test_a_repartition_topic_that_would_lose_messages_stops_the_worker(seen: TopicFacts, says: str) -> None:
    topology = topology_of()
    facts = {**world_of(topology).topics, BETWEEN: seen}
    with pytest.raises(provisioning.TopicUnusable, match=says):
        provisioning.check_before_start(topology, facts, may_create=True)


def test_a_recorded_version_knows_its_repartition_topics() -> None:
    topology = topology_of()
    document = as_document(shape_of(topology, {"flights": 2, BETWEEN: 2}))
    assert topology_from(topology.processor, from_document(json.loads(json.dumps(document)))).repartitions == (
        topology.repartitions
    )
    assert from_document({**document, "repartitions": []}).repartitions == ()


def test_a_repartition_topic_without_its_group_by_is_an_orphan() -> None:
    owner = Owner("carriers", frozenset({"totals"}), frozenset({"carriers-totals-changelog", BETWEEN}))
    found = Found(topics=(BETWEEN, "carriers-origin-repartition", "others-repartition"))
    [orphan] = find_orphans(Known((owner,), frozenset({"carriers"})), found)
    assert (orphan.name, orphan.why) == ("carriers-origin-repartition", "no `group_by` of carriers has this topic")


def test_provisioning_repairs_a_repartition_topic() -> None:
    topology = topology_of()
    altered = between(**{"retention.ms": "1000"})
    plan = provisioning.plan(topology, {**world_of(topology).topics, BETWEEN: altered})
    [repair] = [stage for stage in plan.stages if getattr(stage, "topic", "") == BETWEEN]
    assert isinstance(repair, provisioning.RepairConfig)
    assert repair.expected == {"retention.ms": "-1"}
    assert "set on repartition topic" in repair.sentence()
