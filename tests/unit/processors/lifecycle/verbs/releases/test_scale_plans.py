"""The number of workers that ``scale`` and ``deploy`` plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.processors.lifecycle.deploy.warming import UNTOLD_S, unprepared
from holdfast.processors.lifecycle.plans.facts.facts import DeploymentFacts, Facts, InstanceFacts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import WORKERS_MAX, Deploy, RequestInvalid, Restart, Scale, Stop
from holdfast.processors.lifecycle.plans.stages import RunProcessor, SetTopicConfig
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.conftest import _status as status_of
from tests.unit.processors.lifecycle.worlds import orders_topology, stopped, world_of

TOPOLOGY = orders_topology()
VERSION = TOPOLOGY.code_version


def in_workers(count: int, **changes: Any) -> Facts:
    """Facts about the processor while it runs in this number of workers."""
    slots = tuple(str(number) for number in range(count))
    usual = {
        "deployment": DeploymentFacts(VERSION, slots, "deployed", 3),
        "instances": tuple(InstanceFacts(slot, True, "running", VERSION) for slot in slots),
    }
    return world_of(TOPOLOGY, **{**usual, **changes})


def run_of(plan: Plan) -> RunProcessor:
    (stage,) = (each for each in plan.stages if isinstance(each, RunProcessor))
    return stage


def test_new_workers_fetch_state_before_they_join_and_nothing_else_is_touched() -> None:
    plan = decide(Scale("orders", 3), in_workers(1), TOPOLOGY)
    run = run_of(plan)
    assert (run.slots, run.rescale, run.warm_s, run.code_version) == (("0", "1", "2"), True, 600.0, VERSION)
    assert run.says.index("start slot 1, 2") < run.says.index("have fetched") < run.says.index("join the group")
    assert plan.undo == "`holdfast apply scale orders 1`"
    assert not plan.destructive


def test_workers_that_leave_are_stopped_after_the_others_have_the_state() -> None:
    run = run_of(decide(Scale("orders", 1), in_workers(2), TOPOLOGY))
    assert run.slots == ("0",)
    assert run.says.index("the workers that get tasks have fetched") < run.says.index("stop slot 1")


def test_state_without_a_changelog_cannot_be_fetched_and_is_not_waited_for() -> None:
    bare = orders_topology(changelogs=False)
    facts = world_of(bare, deployment=DeploymentFacts(bare.code_version, ("0",), "deployed", 3))
    run = run_of(decide(Scale("orders", 2), facts, bare))
    assert run.warm_s == 0.0
    assert "fetched" not in run.says


@pytest.mark.parametrize("request_", [Scale("orders", 3), Restart("orders")], ids=["scale", "restart"])
def test_a_changelog_with_which_no_worker_starts_is_repaired_first(request_: Scale | Restart) -> None:
    """A changelog whose configuration lets Kafka delete state is repaired before workers start.

    With such a changelog, a worker refuses to start. So status must not name a command whose restart fails. The
    simulation found this case.
    """
    right = in_workers(1)
    changelog = TOPOLOGY.changelogs[0].topic.name
    there = right.topics[changelog]
    drifted = replace(there, config={**there.config, "cleanup.policy": "delete"})
    wrong = in_workers(1, topics={**right.topics, changelog: drifted})
    plan, usual = decide(request_, wrong, TOPOLOGY), decide(request_, right, TOPOLOGY)
    first = plan.stages[0]
    assert isinstance(first, SetTopicConfig)
    assert (first.name, first.config) == (changelog, {"cleanup.policy": "compact"})
    assert plan.stages[1:] == usual.stages
    assert plan.hash != usual.hash


def test_more_workers_than_tasks_are_told() -> None:
    plan = decide(Scale("orders", 4), in_workers(1), TOPOLOGY)
    (finding,) = plan.findings
    assert finding.startswith("it has 2 tasks: 2 workers will have none")


def test_a_setting_that_names_another_number_is_told() -> None:
    plan = decide(Scale("orders", 2), in_workers(1, workers=1), TOPOLOGY)
    assert any("the next deployment goes back to 1" in finding for finding in plan.findings)


def test_nothing_is_to_be_done_when_so_many_run() -> None:
    assert isinstance(decide(Scale("orders", 2), in_workers(2), TOPOLOGY).verdict, NothingToDo)


def test_a_worker_that_an_interrupted_change_left_is_not_nothing_to_do() -> None:
    three = tuple(InstanceFacts(slot, True, "running", VERSION) for slot in ("0", "1", "2"))
    # the deployment record names two workers, because a change to two workers was interrupted
    facts = in_workers(2, instances=three)
    plan = decide(Scale("orders", 2), facts, TOPOLOGY)
    assert isinstance(plan.verdict, Ready)
    assert "2 workers in place of 3" in plan.verdict.sentence
    assert "stop slot 2 after a last commit" in run_of(plan).says
    assert plan.undo == "`holdfast apply scale orders 3`"
    assert plan.findings[0].startswith("slot 2 has a process, although 2 workers are recorded")

    assert isinstance(decide(Deploy("orders"), facts, TOPOLOGY).verdict, Ready)
    assert "stop slot 0, 1, 2: it commits" in decide(Restart("orders"), facts, TOPOLOGY).stages[0].says
    assert "stop slot 0, 1, 2: it commits" in decide(Stop("orders"), facts, TOPOLOGY).stages[0].says


@pytest.mark.parametrize("changed", [{"code_version": "v0"}, {"paused": True}], ids=["version", "paused"])
def test_workers_that_are_not_as_deployed_are_not_nothing_to_do(changed: dict[str, Any]) -> None:
    well = InstanceFacts("0", True, "running", VERSION)
    other = msgspec.structs.replace(well, slot="1", **changed)
    assert isinstance(decide(Scale("orders", 2), in_workers(2, instances=(well, other)), TOPOLOGY).verdict, Ready)


def test_a_worker_that_is_down_is_started_again() -> None:
    facts = in_workers(2, instances=(InstanceFacts("0", True, "running", VERSION), InstanceFacts("1", False)))
    assert isinstance(decide(Scale("orders", 2), facts, TOPOLOGY).verdict, Ready)


@pytest.mark.parametrize(
    ("facts", "seen"),
    [(stopped(TOPOLOGY), "is stopped"), (world_of(TOPOLOGY, deployment=None, instances=()), "was never deployed")],
    ids=["stopped", "never deployed"],
)
def test_a_processor_that_does_not_run_has_no_workers_to_change(facts: Facts, seen: str) -> None:
    verdict = decide(Scale("orders", 2), facts, TOPOLOGY).verdict
    assert isinstance(verdict, Refused)
    assert seen in verdict.sentence
    assert "`holdfast apply deploy orders`" in verdict.action


@pytest.mark.parametrize("workers", [0, -1, WORKERS_MAX + 1])
def test_impossible_numbers_are_refused(workers: int) -> None:
    with pytest.raises(RequestInvalid, match=f"asks for {workers} workers, expected 1 to {WORKERS_MAX}"):
        Scale("orders", workers)


def test_a_deployment_keeps_the_workers_that_a_processor_has() -> None:
    facts = in_workers(3, instances=(InstanceFacts("0", False), InstanceFacts("1", False), InstanceFacts("2", False)))
    assert run_of(decide(Deploy("orders"), facts, TOPOLOGY)).slots == ("0", "1", "2")


def test_a_deployment_runs_as_many_workers_as_the_settings_name() -> None:
    plan = decide(Deploy("orders"), in_workers(1, workers=4), TOPOLOGY)
    assert run_of(plan).slots == ("0", "1", "2", "3")
    assert "in 4 workers in place of 1" in plan.verdict.sentence
    assert isinstance(decide(Deploy("orders"), in_workers(4, workers=4), TOPOLOGY).verdict, NothingToDo)


def test_the_first_deployment_has_one_worker_unless_the_settings_name_another_number() -> None:
    never: dict[str, Any] = {"deployment": None, "instances": ()}
    assert run_of(decide(Deploy("orders"), world_of(TOPOLOGY, **never), TOPOLOGY)).slots == ("0",)
    assert run_of(decide(Deploy("orders"), world_of(TOPOLOGY, workers=2, **never), TOPOLOGY)).slots == ("0", "1")


def test_a_worker_is_waited_for_until_it_tells_that_it_is_prepared() -> None:
    statuses = {"0": status_of(prepared=True), "1": status_of(prepared=False), "2": None, "3": status_of()}
    assert unprepared(statuses, 0.0) == ("1", "2", "3")
    # worker 3 runs an older version of Holdfast, which never reports whether a worker is prepared
    assert unprepared(statuses, UNTOLD_S) == ("1", "2")
