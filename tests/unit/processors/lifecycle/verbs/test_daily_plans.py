"""Plans of restarts and rollbacks, decided only from given facts (what a command reads before it plans)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.facts import (
    CodeFacts,
    DeploymentFacts,
    Facts,
    InstanceFacts,
    ReleaseFacts,
)
from holdfast.processors.lifecycle.plans.facts.shape import shape_of, topology_of
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused, decode, encode
from holdfast.processors.lifecycle.plans.requests import (
    Clear,
    OfProcessor,
    Provision,
    Reposition,
    Request,
    Restart,
    Restore,
    Rollback,
    Scale,
    Stop,
)
from holdfast.processors.lifecycle.plans.stages import RunProcessor, SetPositions, StopProcessor
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import PARTITIONS, orders_topology, world_of

TOPOLOGY = orders_topology()
SHAPE = shape_of(TOPOLOGY, {"placed": PARTITIONS})
NOW = ReleaseFacts(f"{TOPOLOGY.code_version}-bbbb", TOPOLOGY.code_version, True, SHAPE)
FORMER = ReleaseFacts("v0-aaaa", "v0", True, msgspec.structs.replace(SHAPE, code_version="v0"))
#: An interrupted deploy recorded this deployment. The last code version that worked is v0.
UNPROVEN = DeploymentFacts(TOPOLOGY.code_version, ("0",), "deployed", 3, "v0")
BROKEN = ReleaseFacts("v9-cccc", "v9", True, SHAPE, worked=False)


def facts_of(**changes: Any) -> Facts:
    known = {"released": NOW, "releases": (NOW, BROKEN, FORMER), "before": FORMER}
    known["code"] = CodeFacts(NOW.release_id, "orders:app")
    return world_of(TOPOLOGY, **{**known, **changes})


def plan_of(request: Request, **changes: Any) -> Plan:
    made = decide(request, facts_of(**changes), TOPOLOGY)  # type: ignore[arg-type]
    assert decode(encode(made)) == made
    return made


def refused(plan: Plan) -> Refused:
    assert isinstance(plan.verdict, Refused)
    assert plan.stages == ()
    return plan.verdict


def test_a_restart_stops_and_starts_the_deployed_version() -> None:
    plan = plan_of(Restart("orders", 30.0))
    stop, start = plan.stages
    assert isinstance(stop, StopProcessor)
    assert not stop.for_good
    assert isinstance(start, RunProcessor)
    assert (start.code_version, start.timeout_s, start.paused) == (TOPOLOGY.code_version, 30.0, False)
    assert not plan.destructive
    assert "stop orders in slot 0, and start version" in explain(plan)


def test_a_restart_of_what_died_or_was_stopped_starts_it_and_says_so() -> None:
    plan = plan_of(
        Restart("orders"),
        instances=(InstanceFacts("0", False),),
        deployment=DeploymentFacts(TOPOLOGY.code_version, ("0",), "stopped", 4),
    )
    assert isinstance(plan.verdict, Ready)
    assert "slot 0 has no process" in plan.findings
    assert any("orders is stopped: it runs afterwards" in each for each in plan.findings)


def test_the_plan_of_a_restart_stays_the_same_while_it_is_carried_out() -> None:
    assert plan_of(Restart("orders")).hash == plan_of(Restart("orders"), instances=(InstanceFacts("0", False),)).hash


def test_a_restart_is_refused_without_a_deployment_and_without_the_code_of_the_deployed_version() -> None:
    assert "never deployed" in refused(plan_of(Restart("orders"), deployment=None)).sentence
    deployed = DeploymentFacts("v0", ("0",), "deployed", 3)
    bare = msgspec.structs.replace(FORMER, copied=False)
    verdict = refused(plan_of(Restart("orders"), deployment=deployed, releases=(bare,)))
    assert "whose code was not copied" in verdict.sentence
    # a restart uses the copied code (the release), so it does not matter that the user's files have another version
    plan = plan_of(Restart("orders"), deployment=deployed)
    assert [type(each) for each in plan.stages] == [StopProcessor, RunProcessor]
    assert any("which only a deployment starts" in each for each in plan.findings)


@pytest.mark.parametrize("request_", [Restart("orders"), Scale("orders", 3), Restore("orders"), Clear("orders")])
def test_a_version_that_never_worked_is_started_by_a_deploy_only(request_: OfProcessor) -> None:
    """An interrupted deploy recorded the new version, but the workers still run the former version."""
    former = (InstanceFacts("0", True, "running", FORMER.code_version),)
    verdict = refused(plan_of(request_, deployment=UNPROVEN, instances=former))
    assert "it never worked, and version v0 worked last" in verdict.sentence
    assert "`holdfast apply deploy orders`" in verdict.action
    for allowed in (Rollback("orders"), Stop("orders"), Provision("orders")):
        facts = facts_of(deployment=UNPROVEN, instances=former)
        assert not isinstance(decide(allowed, facts, TOPOLOGY).verdict, Refused)
    assert not isinstance(plan_of(Restart("orders"), deployment=UNPROVEN).verdict, Refused), "its workers run"


#: Both partitions of the input are in the state up to offset 100, the group has no offsets, and no worker runs.
EXPIRED: dict[str, Any] = {
    "instances": (InstanceFacts("0", False),),
    "members": 0,
    "held": {store.name: {number: {"placed": 100} for number in (0, 1)} for store in TOPOLOGY.stores},
    "committed": {},
}


def test_offsets_are_set_for_the_deployed_version_also_if_the_files_define_another_one() -> None:
    """Neither version can start without offsets, so a deploy of the other one would not help."""
    deployed = DeploymentFacts("v0", ("0",), "deployed", 3)
    set_, start = decide(Reposition("orders"), facts_of(**EXPIRED, deployment=deployed), TOPOLOGY).stages
    assert isinstance(set_, SetPositions)
    assert isinstance(start, RunProcessor)
    assert (set_.positions, start.code_version) == ({"placed": {0: 100, 1: 100}}, "v0")
    bare = msgspec.structs.replace(FORMER, copied=False)
    facts = facts_of(**EXPIRED, deployment=deployed, releases=(bare,))
    verdict = refused(decide(Reposition("orders"), facts, TOPOLOGY))
    assert "whose code was not copied" in verdict.sentence


def test_offsets_are_not_set_by_files_that_define_other_stores_than_the_deployed_version() -> None:
    """The missing store's changelog would keep the former offsets, and the deployed version would not start."""
    deployed = DeploymentFacts("v0", ("0",), "deployed", 3)
    less = msgspec.structs.replace(FORMER, shape=msgspec.structs.replace(FORMER.shape, stores=SHAPE.stores[:1]))
    facts = facts_of(**EXPIRED, deployment=deployed, releases=(less,))
    verdict = refused(decide(Reposition("orders"), facts, TOPOLOGY))
    assert "define other stores or inputs" in verdict.sentence
    assert verdict.action == "Check out the code of version v0, and repeat the command."


def test_offsets_are_set_before_the_first_start_of_a_version_that_never_worked() -> None:
    facts = facts_of(**EXPIRED, deployment=UNPROVEN)
    assert isinstance(decide(Reposition("orders"), facts, TOPOLOGY).verdict, Ready)
    former = (InstanceFacts("0", True, "running", FORMER.code_version),)
    verdict = refused(decide(Reposition("orders"), facts_of(deployment=UNPROVEN, instances=former), TOPOLOGY))
    assert "has a live worker" in verdict.sentence, "the workers of the former version are not replaced"


def test_a_rollback_runs_the_release_that_worked_before_and_returns_when_it_fails() -> None:
    plan = plan_of(Rollback("orders"))
    (stage,) = plan.stages
    assert isinstance(stage, RunProcessor)
    assert (stage.release_id, stage.code_version, stage.back_to) == (FORMER.release_id, "v0", NOW.release_id)
    assert stage.settle_s > 0
    assert plan.undo == f"`holdfast apply rollback orders --to {NOW.release_id}`"
    assert plan.after_kill == "go on", "repeated, it would go back once more"
    assert "Store `seen` keeps its state." in plan.findings


@pytest.mark.parametrize("to", [FORMER.release_id, FORMER.code_version])
def test_a_release_is_named_by_its_id_or_its_version(to: str) -> None:
    (stage,) = plan_of(Rollback("orders", to)).stages
    assert isinstance(stage, RunProcessor)
    assert stage.release_id == FORMER.release_id


def test_of_two_releases_of_a_version_the_one_that_worked_is_meant() -> None:
    refused_one = msgspec.structs.replace(FORMER, release_id="v0-dddd", worked=False)
    (stage,) = plan_of(Rollback("orders", "v0"), releases=(NOW, refused_one, FORMER)).stages
    assert isinstance(stage, RunProcessor)
    assert (stage.release_id, stage.earlier) == (FORMER.release_id, True)
    (named,) = plan_of(Rollback("orders", "v0-dddd"), releases=(NOW, refused_one, FORMER)).stages
    assert isinstance(named, RunProcessor)
    assert named.release_id == "v0-dddd"


def test_a_rollback_to_what_runs_is_nothing_to_do() -> None:
    assert isinstance(plan_of(Rollback("orders", NOW.release_id)).verdict, NothingToDo)
    # an interrupted rollback has recorded v0, but has not started it
    recorded = DeploymentFacts("v0", ("0",), "deployed", 3)
    assert isinstance(plan_of(Rollback("orders", NOW.release_id), deployment=recorded).verdict, Ready)
    down = plan_of(Rollback("orders", NOW.release_id), instances=(InstanceFacts("0", False),))
    assert isinstance(down.verdict, Ready)


def test_a_rollback_is_refused_where_there_is_no_release_or_its_state_does_not_fit() -> None:
    alone = refused(plan_of(Rollback("orders"), releases=(NOW, BROKEN), before=None))
    assert (
        f"no release that worked before {NOW.release_id}; its releases are {NOW.release_id}, v9-cccc." in alone.sentence
    )
    assert "after `--to`" in alone.action
    assert "no recorded release v7" in refused(plan_of(Rollback("orders", "v7"))).sentence
    assert "is recorded to have worked" in refused(plan_of(Rollback("orders"), released=None)).sentence
    bare = msgspec.structs.replace(FORMER, copied=False)
    assert "was not copied" in refused(plan_of(Rollback("orders"), releases=(NOW, bare), before=bare)).sentence
    # The running code version lacks a store of the earlier version, so this store has not seen the input since then.
    less = msgspec.structs.replace(SHAPE, stores=SHAPE.stores[:1])
    verdict = refused(plan_of(Rollback("orders"), released=msgspec.structs.replace(NOW, shape=less)))
    assert f"Store `{SHAPE.stores[1].name}` is new to the running version" in verdict.sentence
    assert "Check out the code of version v0" in verdict.action


def test_a_rollback_across_other_partitions_is_refused() -> None:
    narrow = msgspec.structs.replace(NOW, shape=msgspec.structs.replace(SHAPE, inputs={"placed": 1}))
    assert "had 1 partitions, now 2" in refused(plan_of(Rollback("orders"), released=narrow)).sentence


def test_a_recorded_shape_has_the_names_and_tasks_of_its_topology() -> None:
    again = topology_of("orders", SHAPE)
    assert [each.name for each in again.topics()] == [each.name for each in TOPOLOGY.topics()]
    assert shape_of(again, {"placed": PARTITIONS}) == SHAPE
    assert again.tasks({"placed": PARTITIONS}) == TOPOLOGY.tasks({"placed": PARTITIONS})
