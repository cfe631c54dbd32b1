"""Each report names a command for an open apply (an unfinished operation). This command ends the apply."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from holdfast.infra.database.records import ApplyRecord, Incident, StageNote
from holdfast.orchestration.commands.changes.requests import VERBS
from holdfast.orchestration.commands.reports.processor_rows import describe_processor
from holdfast.orchestration.view.reasons import Reason
from holdfast.processors.lifecycle.plans.apply import Applier, ApplyInProgress, Done, Holder, PlanRefused
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.behind import Behind, Recorded
from holdfast.processors.lifecycle.plans.facts.facts import DeploymentFacts, Facts, InstanceFacts, ReleaseFacts
from holdfast.processors.lifecycle.plans.facts.shape import shape_of
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan
from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Clean,
    Clear,
    Compact,
    Deploy,
    OfProcessor,
    Prefix,
    Provision,
    PutBack,
    Request,
    Restart,
    Restore,
    Scale,
    Stop,
    verb_of,
)
from holdfast.processors.lifecycle.plans.stages import DeleteTopic, RunProcessor
from holdfast.processors.lifecycle.plans.way_on import HARMLESS, command_of, keeps_recovery_away, way_on
from holdfast.processors.lifecycle.ports import NotStarted
from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Differs, Healthy, NotDeployed, Outdated, Unsupervised
from holdfast.processors.lifecycle.recovery.incidents import is_applied
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import judge, processor_now, strangers_beside
from holdfast.processors.lifecycle.recovery.strangers import refuse_beside
from holdfast.processors.lifecycle.recovery.working_check import judge_beside, judge_interrupted
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.in_memory import NAME, NOW, Installation, open_installation
from tests.unit.processors.lifecycle.worlds import PARTITIONS, orders_topology, stopped, world_of

TOPOLOGY = orders_topology()
REQUESTS: list[Request] = [
    Provision("orders"),
    Deploy("orders"),
    Deploy("orders", 90.5, ("seen", "two words")),
    Scale("orders", 3),
    Scale("orders", 3, 0.0, 45.0),
    Stop("orders"),
    Restart("orders"),
    Restart("orders", 300.0),
    Compact("orders"),
    Adopt("orders"),
    Clean(),
    Clean(("topic/a b", "group")),
    PutBack("orders-seen-changelog"),
]


class Killed(BaseException):
    """Raised in place of a kill: the process is gone."""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path, slots=2)
    yield made
    made.registry.close()


def typed(command: str) -> Request:
    """The request that the command line builds from this command."""
    made: list[Request] = []
    function = VERBS[shlex.split(command)[2]]

    def run(**given: Any) -> None:
        made.append(function(**given))

    run.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    program = typer.Typer()
    program.command()(run)
    result = CliRunner().invoke(program, shlex.split(command)[3:])
    assert result.exit_code == 0, result.output
    return made[0]


@pytest.mark.parametrize("asked", REQUESTS, ids=command_of)
def test_a_request_is_printed_as_it_is_typed(asked: Request) -> None:
    assert typed(command_of(asked)) == asked


def test_each_verb_that_is_planned_anew_has_its_command_here() -> None:
    """Each verb (operator command) whose killed apply is planned again must have a request in ``REQUESTS``.

    All other verbs continue their recorded plan with `holdfast apply resume N`.
    """
    go_on = {"replay", "rollback", "reposition", "clear", "erase", "backfill", "restore"}
    assert {command_of(each).split()[2] for each in REQUESTS} | go_on == set(VERBS)


def broken_off(plan: Plan, installed: Installation, stage: int) -> ApplyRecord:
    """The open (unfinished) apply of a plan whose run was killed in this stage."""
    done: list[object] = []

    def execute(processor: str, each: object, tell: object) -> Done:
        done.append(each)
        if len(done) == stage:
            raise Killed
        return Done("done")

    with pytest.raises(Killed):
        Applier(execute, installed.registry.journal, "ada", Holder("gone", lambda name: True)).apply(plan)
    (record,) = installed.registry.journal.applies(open_only=True)
    return record


def applied(plan: Plan, installed: Installation) -> list[object]:
    """Return the stages that another run carries out for this plan after the first run is gone."""
    done: list[object] = []

    def execute(processor: str, each: object, tell: object) -> Done:
        done.append(each)
        return Done("done")

    Applier(execute, installed.registry.journal, "bob", Holder("bob", lambda name: True)).apply(plan)
    return done


def with_a_changelog_more() -> Facts:
    """The facts about a processor's running version, with the changelog of a store that only its former version had.

    A deploy deletes this topic last.
    """
    former = ReleaseFacts("r1", TOPOLOGY.code_version, True, shape_of(TOPOLOGY, {"placed": PARTITIONS}))
    facts = world_of(TOPOLOGY, released=former)
    topics = {**facts.topics, "orders-gone-changelog": facts.topics["orders-seen-changelog"]}
    return msgspec.structs.replace(facts, topics=topics)


def test_a_deploy_that_drops_a_store_is_ended_by_the_command_that_is_named(installed: Installation) -> None:
    facts = with_a_changelog_more()
    plan = decide(Deploy(NAME, dropped=("gone",)), facts, TOPOLOGY)
    assert isinstance(plan.stages[-1], DeleteTopic)
    record = broken_off(plan, installed, len(plan.stages))
    command = way_on(record)
    assert command == "holdfast apply deploy orders --drop gone"
    answer = judge_interrupted(record, {})
    assert answer.action == command
    assert answer.text.endswith(f"What to do: {command}")
    with pytest.raises(ApplyInProgress) as refused:
        Applier(lambda *_: Done(""), installed.registry.journal, "bob", Holder("bob")).resume(record)
    assert f"`{command}`" in refused.value.action

    again = decide(typed(command), facts, TOPOLOGY)  # type: ignore[arg-type]
    assert "orders-gone-changelog" in explain(again)
    assert isinstance(applied(again, installed)[-1], DeleteTopic)
    assert installed.registry.journal.applies(open_only=True) == ()


def test_a_change_of_workers_is_ended_by_the_command_that_is_named(installed: Installation) -> None:
    record = broken_off(decide(Scale(NAME, 2), world_of(TOPOLOGY), TOPOLOGY), installed, 1)
    assert way_on(record) == "holdfast apply scale orders 2"
    two = tuple(InstanceFacts(slot, True, "running", TOPOLOGY.code_version) for slot in ("0", "1"))
    facts = world_of(TOPOLOGY, instances=two)
    assert facts.deployment is not None
    facts = msgspec.structs.replace(facts, deployment=msgspec.structs.replace(facts.deployment, slots=("0", "1")))
    again = decide(typed(way_on(record)), facts, TOPOLOGY)  # type: ignore[arg-type]
    assert isinstance(again.verdict, NothingToDo), "all of it was done before the run was killed"
    applied(again, installed)
    assert installed.registry.journal.applies(open_only=True) == ()


def of_another_version(installed: Installation) -> ApplyRecord:
    """An open (unfinished) apply that another version of Holdfast began.

    Its plan has a stage that this version does not know.
    """
    record, _ = installed.registry.journal.begin_apply(
        processor=NAME,
        verb="clear",
        plan_hash="0" * 12,
        plan='{"request": {"type": "clear"}, "stages": [{"type": "export_keys"}]}',
        who="ada",
        holder="gone",
        now=datetime.now(UTC),
    )
    installed.registry.journal.let_go_of_apply(record.id, record.token, "killed")
    (left,) = installed.registry.journal.applies(open_only=True)
    return left


def test_an_apply_of_another_version_is_abandoned_without_reading_its_plan(installed: Installation) -> None:
    record = of_another_version(installed)
    assert is_applied(NAME, installed.world), "what it has changed in part is not known"
    now = processor_now(NAME, installed.world, Limits())
    assert (now.answer.colour, now.answer.action) == ("red", f"holdfast apply abandon {record.id} --reason WHY")
    assert "0 of an unknown number of stages are done" in now.answer.text

    told: list[str] = []
    holder = Holder("bob", lambda name: True)
    free = Applier(lambda *_: Done(""), installed.registry.journal, "bob", holder, told.append)
    with pytest.raises(ApplyInProgress, match="begun by another version of Holdfast") as refused:
        free.apply(decide(Stop(NAME), world_of(TOPOLOGY), TOPOLOGY))
    assert refused.value.action == f"End it: `holdfast apply abandon {record.id} --reason WHY`."
    assert free.abandon(record, "it is of a former version")
    assert told == ["its plan can't be read, because another version wrote it; 0 stages done"]
    assert processor_now(NAME, installed.world, Limits()).answer.colour == "green"


def test_a_processor_that_cannot_be_read_is_one_red_line_and_hides_no_other(installed: Installation) -> None:
    installed.registry.record_deployment("broken", "v1", ("0",), NOW)
    installed.workers[installed.paths.program("broken", "0")] = installed.worker("0")

    def answer(processor: str, slot: str) -> Any:
        if processor == "broken":
            raise ValueError("its endpoint is no JSON")
        return installed.answer(slot)

    world = replace(installed.world, statuses=answer)
    rows: list[dict[str, Any]] = []
    reasons: list[Reason] = []
    for deployment in installed.registry.deployments():
        more, why = describe_processor(deployment, world, Limits())
        rows, reasons = rows + more, reasons + why
    assert [(row["processor"], row["diagnosis"]) for row in rows] == [
        ("broken", "unknown"),
        ("orders", "healthy"),
        ("orders", "healthy"),
    ]
    (red,) = reasons
    assert (red.subject, red.colour) == ("processor broken", "red")
    assert red.reason == "Its state can't be read. ValueError: its endpoint is no JSON"


@pytest.mark.parametrize(("verb", "waits"), [("deploy", False), ("scale", False), ("clear", True), ("restore", True)])
def test_recovery_waits_for_an_unreadable_plan_only_where_its_verb_leaves_half_changed_state(
    verb: str, waits: bool, installed: Installation
) -> None:
    begun = replace(of_another_version(installed), verb=verb)
    assert keeps_recovery_away(begun) is waits
    text = judge_interrupted(begun, {}).text
    assert ("Recovery leaves the processor alone until then." in text) is waits
    assert {verb_of(each) for each in REQUESTS} | {"replay", "erase"} >= HARMLESS


#: Group members that belong to workers of another installation.
OTHERS = ("host 10.0.0.2, client id holdfast-orders-bbbb-0",)
HANGS = Unsupervised("running", "End it: `holdfast down`, then `holdfast up`.")


def interrupted(request: OfProcessor, installed: Installation) -> ApplyRecord:
    """The open (unfinished) apply of a request. Its process was killed in the first stage, and no longer runs."""
    record = broken_off(decide(request, world_of(TOPOLOGY), TOPOLOGY), installed, 1)
    installed.registry.journal.let_go_of_apply(record.id, record.token, "killed")
    (record,) = installed.registry.journal.applies(open_only=True)
    return record


def test_an_interrupted_compact_is_abandoned_because_no_worker_may_run_that_repeats_it(installed: Installation) -> None:
    record = interrupted(Compact("orders"), installed)
    assert way_on(record) == f"holdfast apply abandon {record.id} --reason WHY"
    assert judge_interrupted(record, {}).action == way_on(record)


def test_a_supervisor_that_hangs_is_ended_before_an_apply_can_be(installed: Installation) -> None:
    record = interrupted(Restart("orders"), installed)
    action = judge_interrupted(record, {"0": HANGS}).action
    assert action == "End it: `holdfast down`, then `holdfast up`. Then: holdfast apply restart orders"


def test_workers_of_another_installation_are_stopped_before_an_apply_can_be_ended(installed: Installation) -> None:
    record = interrupted(Restore("orders"), installed)
    world = replace(installed.world, strangers=lambda processor: OTHERS)
    answer = processor_now("orders", world, Limits()).answer
    there = "stop orders there (`holdfast apply stop orders` in that installation)"
    instead = f"holdfast apply abandon {record.id} --reason WHY"
    assert answer.action == (
        f"{there}; then: holdfast apply resume {record.id}; or, if its workers do not start: {instead}, and recovery "
        "continues."
    )
    assert answer.text.endswith(f"share its partitions. What to do: {answer.action}")
    with pytest.raises(PlanRefused, match="client id holdfast-orders-bbbb-0"):
        refuse_beside(record, world)
    refuse_beside(record, installed.world)


def test_an_apply_that_starts_no_worker_ends_beside_those_of_another_installation(installed: Installation) -> None:
    record = interrupted(Stop("orders"), installed)
    world = replace(installed.world, strangers=lambda processor: OTHERS)
    assert "there" not in processor_now("orders", world, Limits()).answer.action
    refuse_beside(record, world)


def test_an_older_registry_is_corrected_before_the_apply_that_it_has(installed: Installation) -> None:
    """If the registry (Holdfast's database) is an older copy, the first command that is named corrects the registry.

    The next command ends the apply (execution of a plan) that the old registry lists as open. The order matters: each
    verb is refused until the registry is corrected, and this apply may have ended long ago.
    """
    record = interrupted(Restart("orders"), installed)
    old = Behind("orders", None, Recorded(3, "v2"))
    assert judge({"0": Outdated(old)}, None, record, record, NOW).action == old.action
    silent = judge({"0": Outdated(old, HANGS.action or "")}, None, record, record, NOW)
    assert silent.action == f"{HANGS.action} Then: {old.action}", "the correction asks the supervisor"
    assert silent.text.endswith(silent.action)


def test_workers_of_another_installation_are_stopped_before_the_version_is_deployed_that_is_recorded(
    installed: Installation,
) -> None:
    said = "It runs version v1, but version v2 is deployed."
    found = Differs("other-version", said, "holdfast apply deploy orders")
    answer = judge({"0": found}, None, None, None, NOW)
    world = replace(installed.world, strangers=lambda processor: OTHERS)
    beside = judge_beside(answer, "orders", strangers_beside(answer, "orders", None, world))
    assert beside.action.endswith("in that installation); then: holdfast apply deploy orders")
    # the processor is stopped here, so the other installation's workers may be intended
    installed.registry.record_stopped("orders", NOW)
    assert strangers_beside(answer, "orders", None, world) == ()


def test_a_supervisor_that_hangs_is_ended_first_also_where_the_processor_is_stopped(installed: Installation) -> None:
    record = interrupted(Restore("orders"), installed)
    action = judge_interrupted(record, {"0": NotDeployed(hangs=HANGS.action)}).action
    assert action == f"{HANGS.action} Then: holdfast apply resume {record.id}"


FAILS = {"0": Dead(1, None)}
#: A closed incident: recovery gave up.
FAILED = Incident(
    id=1,
    processor=NAME,
    kind="dead",
    detail={},
    opened_at=NOW,
    claimed_by=None,
    claimed_at=None,
    attempts=1,
    closed_at=NOW,
    outcome="failed",
    reason="",
    timeline=(),
    action="go back to version v1",
)


def test_an_apply_whose_workers_do_not_start_may_be_abandoned_once_its_state_is_whole(installed: Installation) -> None:
    plan = decide(Restore("orders"), world_of(TOPOLOGY), TOPOLOGY)
    starts = next(number for number, stage in enumerate(plan.stages) if isinstance(stage, RunProcessor))
    record = broken_off(plan, installed, starts + 1)
    instead = f"holdfast apply abandon {record.id} --reason WHY"
    resume = f"holdfast apply resume {record.id}"
    assert judge_interrupted(record, FAILS).action == (
        f"{resume}; or, if its workers do not start: {instead}, and recovery continues."
    )
    assert judge_interrupted(record, {"0": Healthy("running")}).action == resume
    early = replace(record, done=())
    assert judge_interrupted(early, FAILS).action == (
        f"{resume}; or, if its workers do not start: {instead}, and recovery continues."
    ), "the start comes later, with whole state"
    assert judge_interrupted(early, {"0": NotDeployed()}).action == resume, "recovery would start no worker"


def test_a_clear_that_changed_nothing_yet_may_be_abandoned_if_its_workers_do_not_start(installed: Installation) -> None:
    """A clear whose workers do not start may be abandoned, because it has not cleared any key yet.

    The simulation found this case: the changelog had another configuration, so each resume failed at the start of the
    workers.
    """
    dead = stopped(TOPOLOGY, deployment=DeploymentFacts(TOPOLOGY.code_version, ("0",), "deployed", 3))
    plan = decide(Clear("orders"), dead, TOPOLOGY)
    starts = next(number for number, stage in enumerate(plan.stages) if isinstance(stage, RunProcessor))
    record = broken_off(plan, installed, starts + 1)
    resume, instead = f"holdfast apply resume {record.id}", f"holdfast apply abandon {record.id} --reason WHY"
    assert judge_interrupted(record, FAILS).action == (
        f"{resume}; or, if its workers do not start: {instead}, and recovery continues."
    )
    told: list[str] = []

    def execute(processor: str, stage: object, tell: object) -> Done:
        raise NotStarted("Slot 0 ended (exit status 64).", action="Read its log.")

    free = Applier(execute, installed.registry.journal, "ada", Holder("other", lambda name: True), tell=told.append)
    assert free.abandon(record, "its workers do not start")
    assert "Slot 0 ended (exit status 64)." in told[-1]
    assert told[-1].endswith("Recovery continues with them.")
    assert installed.registry.journal.applies(open_only=True) == ()
    later = broken_off(plan, installed, starts + 2)
    assert judge_interrupted(later, FAILS).action == f"holdfast apply resume {later.id}", "its keys are cleared in part"


def test_where_recovery_found_that_a_version_does_not_start_its_action_follows(installed: Installation) -> None:
    record = replace(interrupted(Restart("orders"), installed), done=(StageNote(1, "stop", "stopped", 0.0, 1.0),))
    failed = replace(FAILED, opened_at=record.started_at, closed_at=record.started_at)
    abandon = f"holdfast apply abandon {record.id} --reason WHY"
    assert judge_interrupted(record, FAILS, failed).action == f"{abandon}; then: go back to version v1"
    begun = replace(record, done=())
    assert judge_interrupted(begun, FAILS, failed).action == f"{abandon}; then: go back to version v1", (
        "the same restart would stop the workers, and start them as recovery did"
    )
    before = replace(failed, opened_at=record.started_at - timedelta(seconds=1))
    for other in (None, before, replace(failed, outcome="recovered")):
        assert judge_interrupted(record, FAILS, other).action == way_on(record)


def test_a_worker_that_recovery_gave_up_is_started_before_an_apply_that_needs_it(installed: Installation) -> None:
    record = interrupted(Clear("orders", selection=Prefix("k")), installed)
    retry = "holdfast incidents retry 1"
    failed = replace(FAILED, opened_at=record.started_at, closed_at=record.started_at, action=retry)
    resume = f"holdfast apply resume {record.id}"
    killed = {"0": Dead(None, "SIGKILL")}
    assert judge_interrupted(record, killed, failed).action == f"{retry}; then, when all workers run: {resume}"
    for found, incident in (({"0": Healthy("running")}, failed), (killed, None), (killed, replace(failed, outcome=""))):
        assert judge_interrupted(record, found, incident).action == resume
    apply = replace(failed, action="holdfast apply deploy orders")
    abandon = f"holdfast apply abandon {record.id} --reason WHY"
    assert judge_interrupted(record, killed, apply).action == f"{abandon}; then: {apply.action}", (
        "it is refused beside it"
    )
    there = "stop orders there (`holdfast apply stop orders` in that installation)"
    answer = judge_interrupted(record, killed, replace(failed, action=f"{there}, or stop it here; then: {retry}"))
    assert judge_beside(answer, "orders", OTHERS).action.count(there) == 1
