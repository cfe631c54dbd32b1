"""The recorded state ``deploying`` counts only while an apply (the execution of a plan) is alive.

It affects no other decision.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.infra.database.lease_times import SILENT_S
from holdfast.infra.database.records import ApplyOutcome, ApplyRecord
from holdfast.infra.deploy.program_files import SupervisorSilent
from holdfast.infra.settings import PROJECT
from holdfast.infra.system.holders import new_holder
from holdfast.infra.system.process import ProcessIdentity, own_identity
from holdfast.orchestration.commands.changes import verbs as verb_commands
from holdfast.orchestration.view.reasons import of_processor
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors
from holdfast.processors.lifecycle.plans.apply import Applier, ApplyInProgress, Done, Holder, ProgressLog
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, encode
from holdfast.processors.lifecycle.plans.requests import Clean, Deploy, OfProcessor, Restart, Restore
from holdfast.processors.lifecycle.plans.stages import RunProcessor, SetStateAside, Stage, StopProcessor
from holdfast.processors.lifecycle.plans.way_on import way_on
from holdfast.processors.lifecycle.recovery.attempt import recover
from holdfast.processors.lifecycle.recovery.diagnosis import Healthy, Starting
from holdfast.processors.lifecycle.recovery.incidents import await_recovery, notice
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now
from tests.mechanics.tiers import variants
from tests.unit.processors.lifecycle.in_memory import NAME, NOW, Installation, open_installation

LIMITS = Limits()
RUN = RunProcessor("run", "v1", slots=("0",))
DOWN = StopProcessor("stop", for_good=False)


class Steady:
    """The clock of the registry (Holdfast's database) in seconds, moved by the test."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def steady() -> Steady:
    return Steady()


@pytest.fixture
def installed(tmp_path: Path, steady: Steady) -> Iterator[Installation]:
    made = open_installation(tmp_path, steady_s=steady)
    yield made
    made.registry.close()


def killed_holder() -> str:
    """The name of a holder on this machine whose process has ended."""
    mine = own_identity()
    gone = ProcessIdentity(mine.pid, f"{mine.mark}0", mine.boot, mine.namespace)
    return new_holder().replace(str(mine), str(gone))


def begun(installed: Installation, holder: str, request: OfProcessor | None = None, *stages: Stage) -> ApplyRecord:
    """Record an open apply (a plan in execution), and kill the worker.

    The plan is a deploy unless another request is given.
    """
    asked = request or Deploy(NAME)
    after = "go on" if isinstance(asked, Restore) else "plan anew"
    plan = Plan(request=asked, verdict=Ready("."), stages=stages or (RUN,), after_kill=after)  # type: ignore[arg-type]
    about = {"processor": NAME, "verb": plan.verb, "plan_hash": plan.hash, "plan": encode(plan), "who": "ada"}
    record, _ = installed.registry.journal.begin_apply(**about, holder=holder, now=NOW)
    installed.registry.record_deployment(NAME, "v1", ["0"], NOW, desired="deploying")
    installed.worker().kill()
    return record


def test_a_live_rollout_is_left_alone_for_as_long_as_it_lives(installed: Installation) -> None:
    begun(installed, new_holder())
    installed.pass_time(3_600)
    seen = notice(NAME, installed.world, LIMITS)
    assert (seen.worst, seen.incident) == (Starting("being deployed for 3600 s"), None)


def test_a_rollout_that_was_killed_is_recovered_at_once(installed: Installation) -> None:
    begun(installed, killed_holder())
    seen = notice(NAME, installed.world, LIMITS)
    assert seen.opened
    assert seen.incident is not None
    result = recover(seen.incident.id, installed.rollout, installed.world, run_id="run")
    assert (result.outcome, installed.done) == ("resolved", ["start 0"])
    assert processor_now(NAME, installed.world, LIMITS).observations["0"].diagnosis == Healthy("running")


#: The program of an operator that executes a rollout. The test ends it with a signal while a stage runs.
OPERATOR = """
import sys, time
from datetime import datetime
from holdfast.infra.database.registry import Registry
from holdfast.infra.system.holders import new_holder
from holdfast.processors.lifecycle.plans.apply import Applier, Holder
from holdfast.processors.lifecycle.plans.plan import Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.lifecycle.plans.stages import RunProcessor

registry, name = Registry(sys.argv[1]), sys.argv[2]

def execute(processor, stage, tell):
    registry.record_deployment(name, "v1", ["0"], datetime.fromisoformat(sys.argv[3]), desired="deploying")
    print("in the stage", flush=True)
    time.sleep(600)

plan = Plan(request=Deploy(name), verdict=Ready("."), stages=(RunProcessor("run", "v1", slots=("0",)),))
Applier(execute, registry.journal, "ada", Holder(new_holder())).apply(plan)
"""


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Installation]:
    """An installation whose registry (database) uses its real clock, because another process uses the registry, too."""
    made = open_installation(tmp_path)
    yield made
    made.registry.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", variants(["SIGTERM", "SIGHUP", "SIGKILL", "SIGINT"], tested=1))
def test_a_rollout_whose_operator_a_signal_ends_is_recovered(shared: Installation, tmp_path: Path, number: str) -> None:
    command = [sys.executable, "-c", OPERATOR, f"sqlite:///{tmp_path / 'registry.db'}", NAME, NOW.isoformat()]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as operator:
        try:
            assert operator.stdout is not None
            assert "in the stage\n" in iter(operator.stdout.readline, "")
            shared.worker().kill()
            seen = notice(NAME, shared.world, LIMITS)
            assert isinstance(seen.worst, Starting), "its operator lives"
            operator.send_signal(getattr(signal, number))
            operator.wait()
        finally:
            operator.kill()
    (record,) = shared.registry.journal.applies(open_only=True)
    deployment = shared.registry.deployment(NAME)
    assert deployment is not None
    assert deployment.desired == "deploying", "nobody took the word back"
    assert processor_now(NAME, shared.world, LIMITS).answer.action == way_on(record)
    seen = notice(NAME, shared.world, LIMITS)
    assert seen.incident is not None
    assert recover(seen.incident.id, shared.rollout, shared.world, run_id="run").outcome == "resolved"
    (record,) = shared.registry.journal.applies(open_only=True)
    abandoned(shared, record)
    deployment = shared.registry.deployment(NAME)
    assert deployment is not None
    assert deployment.desired == "deployed"


def test_a_rollout_of_another_machine_is_recovered_when_it_is_silent(installed: Installation, steady: Steady) -> None:
    begun(installed, "another-host/boot/namespace/7/7/random")
    assert notice(NAME, installed.world, LIMITS).incident is None
    steady.now_s += SILENT_S + 1
    seen = notice(NAME, installed.world, LIMITS)
    assert seen.incident is not None
    assert recover(seen.incident.id, installed.rollout, installed.world, run_id="run").outcome == "resolved"


@pytest.mark.parametrize("outcome", ["done", "failed", "abandoned", "superseded"])
def test_the_end_of_an_apply_ends_its_word(installed: Installation, outcome: ApplyOutcome) -> None:
    record = begun(installed, new_holder())
    before = installed.registry.deployment(NAME)
    assert installed.registry.journal.end_apply(record.id, record.token, outcome, installed.now)
    now = installed.registry.deployment(NAME)
    assert before is not None
    assert now is not None
    assert (now.desired, now.generation) == ("deployed", before.generation + 1)
    assert notice(NAME, installed.world, LIMITS).opened


def test_an_apply_that_ends_leaves_other_words(installed: Installation) -> None:
    record = begun(installed, new_holder())
    installed.registry.record_stopped(NAME, NOW)
    assert installed.registry.journal.end_apply(record.id, record.token, "done", installed.now)
    now = installed.registry.deployment(NAME)
    assert now is not None
    assert now.desired == "stopped"


def abandoned(installed: Installation, record: ApplyRecord) -> str:
    """Abandon an open apply. Stages are not simulated: the production code stops the workers.

    Returns the progress lines.
    """
    runner = DeployedProcessors(installed.world, None, "bob", None, None)  # type: ignore[arg-type]

    def execute(processor: str, stage: Stage, tell: ProgressLog) -> Done:
        assert isinstance(stage, StopProcessor)
        return runner.stop(processor, for_good=stage.for_good)

    told: list[str] = []
    holder = Holder(new_holder(), lambda name: True)
    assert Applier(execute, installed.registry.journal, "bob", holder, told.append).abandon(record, "not needed")
    return "\n".join(told)


def test_a_restart_that_is_abandoned_is_recovered(installed: Installation) -> None:
    record = begun(installed, killed_holder(), Restart(NAME), DOWN, RUN)
    assert "is stopped" not in abandoned(installed, record)
    assert notice(NAME, installed.world, LIMITS).opened


def test_state_that_is_changed_in_part_is_left_stopped_and_the_record_says_so(installed: Installation) -> None:
    aside = SetStateAside("set aside", ("placed-0",), "aside")
    record = begun(installed, killed_holder(), Restore(NAME), DOWN, aside, RUN)
    assert notice(NAME, installed.world, LIMITS).incident is None
    assert "orders is stopped." in abandoned(installed, record)
    now = installed.registry.deployment(NAME)
    assert now is not None
    assert now.desired == "stopped"
    assert notice(NAME, installed.world, LIMITS).incident is None


def test_a_run_that_changes_a_processor_waits_for_its_recovery(installed: Installation) -> None:
    registry, told = installed.registry, list[str]()
    await_recovery(NAME, registry, told.append)
    incident, _ = registry.open_incident(NAME, "dead", {}, NOW)
    other, _ = registry.open_incident("routes", "dead", {}, NOW)
    assert registry.claim_incident(other.id, "run of another processor", NOW)
    await_recovery(NAME, registry, told.append)
    assert told == [], "nobody works on it"
    assert registry.claim_incident(incident.id, "run", NOW)

    def ends(text: str) -> None:
        told.append(text)
        registry.release_incident(incident.id, "run")

    await_recovery(NAME, registry, ends)
    assert told == [f"Recovery repairs orders now, incident {incident.id}. The change waits for it, 300 s at most."]
    assert registry.claim_incident(incident.id, "run", NOW)
    await_recovery(NAME, registry, told.append, timeout_s=0.0)
    assert len(told) == 2, "it goes on, and is refused with what to do"


@pytest.mark.parametrize("by_number", [False, True])
def test_a_command_waits_for_the_recovery_of_its_processor(
    installed: Installation, by_number: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drill found this case: the command that status named was refused while a recovery run of 40 s was at work."""
    registry, told = installed.registry, list[str]()
    record = begun(installed, new_holder(), Restart(NAME))
    registry.journal.let_go_of_apply(record.id, record.token, "broken off")
    incident, _ = registry.open_incident(NAME, "dead", {}, NOW)
    assert registry.claim_incident(incident.id, "run", NOW)

    def echo(text: str, *, err: bool) -> None:
        assert err, "standard output has the answer alone"
        told.append(text)
        registry.release_incident(incident.id, "run")

    monkeypatch.setattr(verb_commands.typer, "echo", echo)
    opened: Any = SimpleNamespace(registry=registry)
    verb_commands.after_recovery(record.id if by_number else Restart(NAME), opened)
    assert told == [f"Recovery repairs orders now, incident {incident.id}. The change waits for it, 300 s at most."]
    verb_commands.after_recovery(record.id if by_number else Restart(NAME), opened)
    verb_commands.after_recovery(99, opened)
    verb_commands.after_recovery(Clean(), opened)
    assert len(told) == 1


def nothing(processor: str, stage: Stage, tell: ProgressLog) -> Done:
    raise AssertionError(f"{stage.says} was not to be carried out")


def test_an_apply_whose_stage_failed_with_an_action_of_its_own_is_told_with_one_action(installed: Installation) -> None:
    record = begun(installed, new_holder(), Restore(NAME))
    failed = SupervisorSilent("The supervisor hangs.", action="End it: `holdfast down`, then `holdfast up`.")
    installed.registry.journal.let_go_of_apply(record.id, record.token, f"stage 1: {failed}")
    (told,) = of_processor(NAME, processor_now(NAME, installed.world, LIMITS).answer)
    assert told.action == (
        f"holdfast apply resume {record.id}; or, if its workers do not start: holdfast apply abandon {record.id} "
        "--reason WHY, and recovery continues."
    )
    assert "The supervisor hangs. Before that: End it: `holdfast down`, then `holdfast up`." in told.reason
    with pytest.raises(ApplyInProgress) as refused:
        Applier(nothing, installed.registry.journal, "bob", Holder("another")).apply(
            Plan(request=Restart(NAME), verdict=Ready("."), stages=(RUN,))
        )
    assert str(refused.value).count("What to do: ") == 1
