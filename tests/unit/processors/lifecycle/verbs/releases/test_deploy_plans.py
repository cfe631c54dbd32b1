"""Plans of deployments, decided only from given facts (what a command reads before it plans)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from holdfast import Application
from holdfast.infra.kafka.records import TopicFacts
from holdfast.orchestration.project.what_up_starts import created_inputs
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.facts import (
    CodeFacts,
    DeploymentFacts,
    Facts,
    InstanceFacts,
    ReleaseFacts,
)
from holdfast.processors.lifecycle.plans.facts.shape import shape_of
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused, decode, encode
from holdfast.processors.lifecycle.plans.requests import Deploy, Provision
from holdfast.processors.lifecycle.plans.stages import CreateTopic, DeleteTopic, MakeRelease, ProveVersion, RunProcessor
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import PARTITIONS, count, orders_topology, world_of

FORMER = orders_topology()
COPIED = ReleaseFacts(
    f"{FORMER.code_version}-aaaa", FORMER.code_version, True, shape_of(FORMER, {"placed": PARTITIONS})
)


def orders(*stores: str) -> Topology:
    application = Application(consumer_group="orders")
    frame = application.dataframe(application.topic("placed"))
    for store in stores:
        frame.apply(count, stateful=True, store=store)
    return application.topology()


def facts_of(topology: Topology, **changes: Any) -> Facts:
    """Facts about a processor whose former version runs, while its files define the version with this topology.

    The new changelogs of this version do not exist yet.
    """
    old = {spec.topic.name for spec in FORMER.changelogs}
    facts = world_of(
        topology,
        deployment=DeploymentFacts(FORMER.code_version, ("0",), "deployed", 3),
        instances=(InstanceFacts("0", True, "running", FORMER.code_version),),
        released=COPIED,
        code=CodeFacts(f"{topology.code_version}-bbbb", "orders:application"),
    )
    new = {spec.topic.name for spec in topology.changelogs} - old
    facts = msgspec.structs.replace(
        facts,
        topics={name: each for name, each in facts.topics.items() if name not in new},
        ends={name: each for name, each in facts.ends.items() if name not in new},
    )
    return msgspec.structs.replace(facts, **changes)


def test_an_input_that_does_not_exist_is_told_in_the_plan_and_by_up() -> None:
    application = Application(consumer_group="orders")
    application.dataframe(application.topic("place"))
    topology = application.topology()
    facts = msgspec.structs.replace(world_of(topology), topics={}, others=("placed", "payments"))
    for request in (Deploy("orders"), Provision("orders")):
        plan = decide(request, facts, topology)
        [told] = created_inputs(plan, topology)
        assert told.endswith("; it did not exist before: is placed meant, which exists?")
        assert told in explain(plan)


def plan_of(topology: Topology, *, dropped: tuple[str, ...] = (), **changes: Any) -> Plan:
    made = decide(Deploy("orders", dropped=dropped), facts_of(topology, **changes), topology)
    assert decode(encode(made)).hash == made.hash
    return made


def running(plan: Plan) -> RunProcessor:
    (stage,) = (stage for stage in plan.stages if isinstance(stage, RunProcessor))
    return stage


def test_another_version_is_recorded_run_watched_and_goes_back_when_it_fails() -> None:
    topology = orders("seen", "totals")
    plan = plan_of(topology)
    assert [type(stage) for stage in plan.stages] == [MakeRelease, ProveVersion, RunProcessor]
    stage = running(plan)
    assert (stage.release_id, stage.back_to, stage.begin_empty) == (
        f"{topology.code_version}-bbbb",
        COPIED.release_id,
        (),
    )
    assert stage.settle_s > 0
    assert f"if it fails, roll back to {FORMER.code_version}" in explain(plan)
    assert not plan.destructive


def test_a_version_is_proven_before_anything_changes_unless_there_is_nothing_to_compare() -> None:
    topology = orders("seen", "totals")
    proof = plan_of(topology).stages[1]
    assert isinstance(proof, ProveVersion)
    assert (proof.release_id, proof.former, proof.inputs) == (
        f"{topology.code_version}-bbbb",
        COPIED.release_id,
        ("placed",),
    )
    assert "on the last 100 messages of each input" in explain(plan_of(topology))
    opted_out = plan_of(replace(topology, prove=False))
    assert not any(isinstance(each, ProveVersion) for each in opted_out.stages)
    assert any("prove=False" in each for each in opted_out.findings)
    dead = (InstanceFacts("0", False, None, None),)
    for changes in ({"released": None}, {"instances": dead}):
        assert not any(isinstance(each, ProveVersion) for each in plan_of(topology, **changes).stages)
    not_copied = plan_of(topology, released=msgspec.structs.replace(COPIED, copied=False)).stages[1]
    assert isinstance(not_copied, ProveVersion)
    assert not_copied.former is None


def test_the_same_release_is_nothing_to_do_and_other_files_of_it_are() -> None:
    same = CodeFacts(COPIED.release_id, "orders:application")
    assert isinstance(plan_of(FORMER, code=same).verdict, NothingToDo)
    # a rollback recorded another release as deployed, and was interrupted before it started that release
    recorded = DeploymentFacts("another", ("0",), "deployed", 3)
    assert isinstance(plan_of(FORMER, code=same, deployment=recorded).verdict, Ready)
    other = plan_of(FORMER, code=CodeFacts("other", "orders:application"))
    assert isinstance(other.verdict, Ready)
    assert running(other).back_to == COPIED.release_id
    assert other.undo == f"`holdfast rollback orders --to {COPIED.release_id}`."
    assert plan_of(orders("seen", "totals")).undo == other.undo, "by its name: other releases may come between"


def test_a_file_that_is_read_from_the_project_is_told_in_the_plan() -> None:
    code = CodeFacts("other", "orders:application", left=("rates.csv",))
    (found,) = (each for each in plan_of(FORMER, code=code).findings if "rates.csv" in each)
    assert found.startswith("`rates.csv` is read from the project and not copied: a rollback uses what is there then.")


def test_a_new_store_gets_its_changelog_first_and_begins_empty() -> None:
    plan = plan_of(orders("totals", "seen", "late"))
    assert [type(stage) for stage in plan.stages] == [MakeRelease, ProveVersion, CreateTopic, RunProcessor]
    assert running(plan).begin_empty == ("late",)
    assert any("holdfast apply backfill orders --store late --from topic" in each for each in plan.findings)


def test_a_new_store_over_former_state_deletes_only_what_is_dropped() -> None:
    topology = orders("totals", "seen", "late")
    name = "orders-late-changelog"
    there = {
        "topics": {**facts_of(topology).topics, name: TopicFacts(name, "old-id", PARTITIONS, 1, {})},
        "ends": {**facts_of(topology).ends, name: {0: 7, 1: 0}},
    }
    refused = plan_of(topology, **there)
    assert isinstance(refused.verdict, Refused)
    assert "up to 7 records" in refused.verdict.sentence
    assert not refused.stages
    plan = plan_of(topology, dropped=("late",), **there)
    assert [type(stage) for stage in plan.stages] == [MakeRelease, ProveVersion, DeleteTopic, CreateTopic, RunProcessor]
    assert plan.destructive
    assert plan.deleted == (f"changelog {name} with up to 7 records: the state of its store",)


def test_an_interrupted_deployment_goes_on_with_what_its_workers_wrote() -> None:
    topology = orders("totals", "seen", "late")
    name = "orders-late-changelog"
    plan = plan_of(
        topology,
        deployment=DeploymentFacts(topology.code_version, ("0",), "deploying", 4),
        topics={**facts_of(topology).topics, name: TopicFacts(name, "id", PARTITIONS, 1, {})},
        ends={**facts_of(topology).ends, name: {0: 7, 1: 0}},
    )
    assert isinstance(plan.verdict, Ready)
    assert running(plan).begin_empty == ("late",)
    assert not plan.destructive


def test_a_dropped_store_is_deleted_once_the_new_version_works() -> None:
    topology = orders("totals")
    name = "orders-seen-changelog"
    there = {"topics": {**facts_of(topology).topics, name: TopicFacts(name, "an-id", PARTITIONS, 1, {})}}
    plan = plan_of(topology, dropped=("seen",), **there)
    assert [type(stage) for stage in plan.stages] == [MakeRelease, ProveVersion, RunProcessor, DeleteTopic]
    kept = plan_of(topology, **there)
    assert not kept.destructive
    assert "store `seen` of version" in kept.undo


def test_what_can_not_be_dropped_is_told() -> None:
    for store, words in (("totals", "uses store `totals`"), ("never-was", "neither version has it")):
        verdict = plan_of(orders("totals", "seen"), dropped=(store,)).verdict
        assert isinstance(verdict, Refused)
        assert words in verdict.sentence


def test_without_a_copy_there_is_no_going_back_and_the_plan_says_so() -> None:
    topology = orders("seen", "totals")
    bare = msgspec.structs.replace(COPIED, copied=False)
    plan = plan_of(topology, released=bare, code=CodeFacts(topology.code_version, "o:a", "o is a part of Holdfast"))
    assert running(plan).back_to is None
    assert any("not rolled back automatically" in each for each in plan.findings)
    assert any("o is a part of Holdfast" in each for each in plan.findings)


def test_a_version_of_which_nothing_was_recorded_is_replaced_with_a_warning() -> None:
    plan = plan_of(orders("other"), released=None)
    assert isinstance(plan.verdict, Ready)
    assert any("were not recorded" in each for each in plan.findings)


def test_a_refused_plan_changes_with_nothing_but_the_facts() -> None:
    plan = plan_of(orders("totals", "renamed"))
    assert isinstance(plan.verdict, Refused)
    assert "its state would be left behind" in plan.verdict.sentence
    assert not plan.stages


def test_a_version_with_other_tasks_starts_only_when_no_worker_of_the_former_runs() -> None:
    application = Application(consumer_group="orders")
    placed = application.dataframe(application.topic("placed"))
    for store in ("totals", "seen", "both"):
        placed.apply(count, stateful=True, store=store)
    application.dataframe(application.topic("paid")).apply(count, stateful=True, store="both")
    joined = plan_of(application.topology())
    assert running(joined).together
    assert "Tasks of store `totals` were called placed, now placed+paid" in explain(joined)
    assert "stop every worker, because two versions with other tasks must not run beside each other" in explain(joined)
    assert not running(plan_of(orders("totals", "seen", "late"))).together
