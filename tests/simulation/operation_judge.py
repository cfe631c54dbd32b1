"""The checks after a course (a simulated sequence of commands and faults).

If the machine differs from Holdfast's registry, status must be red and name an action that repairs the machine.

The checks read the simulated machine directly, and never trust what status reports about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from holdfast.infra.database.records import Deployment
from holdfast.infra.errors import HoldfastError
from holdfast.orchestration.commands.changes.requests import VERBS
from holdfast.orchestration.commands.changes.verbs import joined_command
from holdfast.orchestration.view.reasons import of_processor
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.running import RolledBack
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Adopt, Request
from holdfast.processors.lifecycle.plans.way_on import way_on
from holdfast.processors.lifecycle.recovery.working_check import Answer
from tests.simulation.operation_world import OperationWorld, Person
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP

#: Matches a command in a text; the match ends before the first word that cannot belong to a command line.
_COMMAND = re.compile(r"holdfast ((?:[\w:=/-]+(?: |(?=\W|$)))+)")
#: ``_FORMER`` matches an action that tells the user to return to a former version of the definition. ``_THERE`` is part
#: of an action whose command must be run in another installation.
_FORMER, _THERE = re.compile(r"go back to version (\S+) of the definition"), "in that installation"
#: The first words of the action after a refused proof (trial run). A person must correct the definition, then repeat
#: the command.
_CORRECT = "Correct the definition, then: "
#: The last words of the sentence about a paused worker.
PAUSED = "is paused"
#: Commands that show something and change nothing.
_SHOWS = frozenset({"logs", "status", "explain", "plan", "top", "history", "snapshot"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the machine differs from Holdfast's registry (``apart``), and the answer of `holdfast status`."""

    apart: tuple[str, ...]
    answer: Answer

    @property
    def action(self) -> str:
        """The action that `holdfast status` names; empty if it names none."""
        return next((each.action for each in of_processor(GROUP, self.answer)), "")


def apart(world: OperationWorld) -> tuple[str, ...]:
    """How the machine differs from Holdfast's registry, as one sentence for each difference."""
    found = world.registry.deployment(GROUP)
    if found is None:
        return ()
    said = [f"apply {each.id} ({each.verb}) is open" for each in world.registry.journal.applies(open_only=True)]
    said += [f"incident {each.id} is open" for each in world.registry.open_incidents()]
    slots = {program.spec.command[program.spec.command.index("--slot") + 1]: program for program in programs(world)}
    if found.desired == "deploying":
        said.append("the record says that it is being deployed")
    meant = () if found.desired == "stopped" else found.slots
    for slot in meant:
        program = slots.get(slot)
        worker = None if program is None else program.worker
        if program is None or worker is None:
            said.append(f"slot {slot} does not run")
            continue
        if worker.topology.code_version != found.code_version:
            said.append(f"slot {slot} runs {worker.topology.code_version}, recorded is {found.code_version}")
        if world.imported[slot].is_torn:
            said.append(f"slot {slot} has modules of two versions: {world.imported[slot]}")
        if "--paused" in program.spec.command or worker.paused:
            said.append(f"slot {slot} {PAUSED}")
    said += [f"slot {slot} runs beyond the record" for slot, each in slots.items() if slot not in meant and each.alive]
    said += _of_programs(world, found, {slot: each for slot, each in slots.items() if slot in meant})
    if meant and not said and world.shared_since is None and not is_consumed(world):
        said.append("input is not processed")
    return tuple(said)


def _of_programs(world: OperationWorld, found: Deployment, slots: dict[str, Any]) -> list[str]:
    """Sentences about slots (places of workers) whose program has another release or other settings than deployed."""
    release = world.registry.releases.of_version(GROUP, found.code_version)
    if release is None:
        return []
    book, said = DeployedSettings(world.paths), []
    for slot, program in slots.items():
        command, own = program.spec.command, book.recorded(program.spec.environment)
        if release.folder not in command:
            said.append(f"slot {slot} runs {command}, recorded is {release.release_id}")
        if own != book.read(GROUP, release.release_id):
            said.append(f"slot {slot} has {own}, deployed is {book.read(GROUP, release.release_id)}")
    return said


def programs(world: OperationWorld) -> list[Any]:
    """The status of each of the supervisor's programs."""
    return list(world.programs.values())


def is_paused(world: OperationWorld) -> bool:
    """Whether at least one running worker is paused."""
    return any(each.worker is not None and each.worker.paused for each in world.programs.values())


def is_consumed(world: OperationWorld) -> bool:
    """Whether all input is processed and committed."""
    return all(world.consumed(number) == world.sent[number] for number in range(world.schedule.partitions))


def judge(world: OperationWorld) -> Verdict:
    """Compare the machine with Holdfast's registry, and ask for the status.

    Raises:
        InvariantBroken: The machine and the registry differ, and status is not red with an action.
    """
    told: list[Answer] = []
    act(world, lambda person: told.append(person.processor_now().answer), "status")
    found = Verdict(apart(world), told[0])
    # If a worker is paused, status is yellow, because the pause may be intended. If an interrupted apply (execution of
    # a plan) has left the pause, status is red.
    enough = ("red", "yellow") if found.apart and all(each.endswith(PAUSED) for each in found.apart) else ("red",)
    if found.apart and found.answer.colour not in enough:
        raise InvariantBroken("told", f"{list(found.apart)}; status is {found.answer.colour}: {found.answer.text}")
    if (found.apart or found.answer.colour == "red") and not commands_in(found.action):
        raise InvariantBroken("told", f"{list(found.apart)}; status names no action: {found.answer.text}")
    if (left := left_down(world)) and found.answer.kind != "registry-behind":
        raise InvariantBroken("recovery", f"{left} and nothing keeps recovery from starting it: {found.answer.text}")
    return found


def left_down(world: OperationWorld) -> str:
    """Text with the slots (places of workers) without a worker that recovery should have started; empty if none.

    Slots that an apply (execution of a plan) holds are left out, and slots for which an incident asks a person to act.
    """
    registry = world.registry
    record, incident = registry.deployment(GROUP), next(iter(registry.incidents(1, processor=GROUP)), None)
    begun = registry.journal.applies(1, processor=GROUP, open_only=True)
    held = any(way_on(each).startswith("holdfast apply resume") for each in begun)
    asked = incident.asks if incident is not None and incident.outcome == "failed" else {}
    hangs = world.clock.monotonic() < world.silent_until
    if record is None or record.desired == "stopped" or held or hangs:
        return ""
    down = {f"slot {slot} does not run" for slot in record.slots if slot not in asked}
    return ", ".join(each for each in apart(world) if each in down)


def commands_in(text: str) -> list[list[str]]:
    """The commands of an action that change something, each as a list of words."""
    found = [match.group(1).split() for match in _COMMAND.finditer(text)]
    return [words for words in found if words[0] not in _SHOWS and words[:2] != ["incidents", "show"]]


def carry_out(world: OperationWorld, verdict: Verdict) -> str:
    """Carry out the action that status names; returns what was done.

    Raises:
        InvariantBroken: The action is refused or fails.
    """
    failed, action = "", verdict.action
    # The action also tells the person to repair the worker's configuration before running the command.
    world.broken_slots.clear()
    if (version := _FORMER.search(action)) is not None:
        world.define(version.group(1))
    if _THERE in action:
        world.leave_strangers()
        action = action.partition("then: ")[2]
    for words in commands_in(action):
        try:
            act(world, lambda person, words=words: run(person, words), f"holdfast {' '.join(words)}")
            if words[0] != "down":
                return f"holdfast {' '.join(words)}"
        except RolledBack:  # the deploy failed, and the former version runs again; the next check judges this state
            return f"holdfast {' '.join(words)}, which went back"
        except HoldfastError as failure:
            failed = f"`holdfast {' '.join(words)}`: {failure}"
            if (failure.action or "").startswith(_CORRECT):
                world.define(running_version(world))
                act(world, lambda person, words=words: run(person, words), f"holdfast {' '.join(words)}")
                return f"the definition was corrected; holdfast {' '.join(words)}"
            # The command found a second fault. A person follows its error, which names the command for this fault.
            for own in commands_in((failure.action or "").replace("PROCESSOR", GROUP)):
                if own[:2] == ["apply", "reposition"]:
                    try:
                        act(world, lambda person, own=own: run(person, own), f"holdfast {' '.join(own)}")
                    except HoldfastError as again:
                        raise InvariantBroken(
                            "action", f"{failed}; it named `holdfast {' '.join(own)}`: {again}"
                        ) from again
                    return f"holdfast {' '.join(words)} failed; its error named: holdfast {' '.join(own)}"
    raise InvariantBroken("action", f"{failed}; status: {verdict.answer.text}")


def running_version(world: OperationWorld) -> str:
    """The version to which a person corrects a definition: the one that worked last, or the recorded one."""
    record = world.registry.deployment(GROUP)
    assert record is not None
    # `worked` is empty if a backup of Holdfast's registry was put back, and no release has worked since
    return world.worked[-1].partition("-")[0] if world.worked else record.code_version


def run(person: Person, words: list[str]) -> None:
    """Carry out one command line.

    Raises:
        HoldfastError: The command is refused or fails.
    """
    match words:
        case ["apply", "resume", number]:
            person.resume(int(number))
        case ["apply", "abandon", number, *_]:
            person.abandon(int(number))
        case ["incidents", "retry", number]:
            if not person.acting.registry.retry_incident(int(number), person.world.now()):
                raise _Refused(f"incident {number} can't be retried", action="")
        case ["registry", "adopt", *_]:
            person.ask(Adopt(GROUP), lambda plan: None)
        case ["down", *_]:
            person.world.end_supervisor()
        case ["up", *_]:
            person.acting.deployer.start()
        case ["apply", *rest] | rest:
            shown = person.ask(request_of(rest), lambda plan: None)
            if isinstance(shown.plan.verdict, Refused):
                raise _Refused(shown.plan.verdict.sentence, action=shown.plan.verdict.action)


class _Refused(HoldfastError):
    """Raised if a command line is refused."""


def request_of(words: list[str]) -> Request:
    """The request that a verb's command line makes, parsed as the real command line does."""
    made: list[Request] = []

    def keep(request: Request, *, yes: bool = typer.Option(False, "--yes")) -> None:
        made.append(request)

    group = typer.Typer()
    group.callback()(lambda: None)
    for name, verb in VERBS.items():
        if name == words[0]:
            group.command(name)(joined_command(verb, keep))
    try:
        group(args=words, standalone_mode=False)
    except Exception as wrong:
        raise _Refused(f"no command line: {wrong!r}", action="") from wrong
    if not made:
        raise _Refused(f"no command: {words}", action="")
    return made[0]


def act(world: OperationWorld, work: Callable[[Person], Any], what: str) -> None:
    """Run the work of an operator in a separate simulated process, without disturbances.

    Raises:
        HoldfastError: The work fails.
    """
    failures: list[HoldfastError] = []

    def done(person: Any) -> None:
        try:
            work(person)
        except HoldfastError as failure:
            failures.append(failure)

    process = world.operate(done)
    if process.failure is not None:
        raise InvariantBroken("operator", f"{what}: {process.failure!r}") from process.failure
    if failures:
        raise failures[0]
