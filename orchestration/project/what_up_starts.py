"""Starts the processors of a project that do not run, when ``holdfast up`` starts the project's services.

    state of the processor      what happens
    never deployed          ──► deploys the version that the files define
    deployed, does not run  ──► starts the deployed version again
    stopped, or runs        ──► nothing

Invariants:
    - Only ``holdfast deploy`` and ``holdfast rollback`` change the version of a deployed processor. If the files define
      another version than the deployed version, the result names the command that deploys the defined version.
    - A processor that can't be started does not prevent the start of the other processors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.infra.errors import HoldfastError
from holdfast.orchestration.verbs import open_verbs
from holdfast.orchestration.world import build_world, open_registry
from holdfast.processors.application.broken_definition import BrokenDefinition
from holdfast.processors.application.registration import ProcessorDefinition, load_processors
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Deploy, Restart
from holdfast.processors.lifecycle.plans.stages import CreateTopic
from holdfast.processors.lifecycle.recovery.incidents import observe
from holdfast.processors.lifecycle.recovery.limits import Limits

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings
    from holdfast.processors.engine.topology import Topology


@dataclass(frozen=True, slots=True)
class Started:
    """The result of starting one processor; ``running`` is False if a person must correct something."""

    processor: str
    sentence: str
    running: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The facts that decide whether a processor is started: its last deployment and its live workers."""

    defined_version: str
    #: The recorded desired state, ``deployed`` or ``stopped``; None if the processor was never deployed.
    desired: str | None
    #: The code version of each live worker; ``unknown`` if the worker does not report its version.
    living: tuple[str, ...]
    #: The deployed code version; None if the processor was never deployed.
    deployed: str | None = None


def start_project(settings: Settings, tell: Callable[[str], None]) -> tuple[Started, ...]:
    """Start each processor of the settings that does not run; ``tell`` is called with each line of progress."""
    started = []
    for each in load_processors(settings):
        if isinstance(each, BrokenDefinition):
            started.append(Started(each.target, f"{each.sentence}.", running=False))
            continue
        tell(f"starting {each.name} …")
        try:
            started.append(_start(settings, each, tell))
        except HoldfastError as failure:
            started.append(Started(each.name, str(failure), running=False))
    return tuple(started)


def judged(name: str, found: Found) -> Started | None:
    """The result for a processor that needs no start, because it runs or was stopped on purpose; otherwise None."""
    if found.living:
        others = sorted(set(found.living) - {found.defined_version})
        if not others:
            return Started(name, f"version {found.defined_version} runs", running=True)
        return Started(
            name,
            f"version {', '.join(others)} runs{_also_defined(name, found)}",
            running=True,
        )
    if found.desired == "stopped":
        return Started(name, f"stopped; start it with `holdfast deploy {name}`", running=True)
    return None


def request_of(name: str, found: Found) -> Deploy | Restart:
    """The request that starts a processor: its first deploy, or a restart of its deployed version."""
    return Deploy(name) if found.desired is None else Restart(name)


def created_inputs(plan: Plan, topology: Topology) -> tuple[str, ...]:
    """The texts of the plan's stages that create an input topic.

    They are shown to the user, because a missing input topic may be a mistake in the topic's name.
    """
    inputs = {spec.name for spec in topology.sources}
    return tuple(stage.says for stage in plan.stages if isinstance(stage, CreateTopic) and stage.name in inputs)


def _also_defined(name: str, found: Found) -> str:
    return f", and {found.defined_version} is defined; deploy it with `holdfast deploy {name}`"


def _start(settings: Settings, definition: ProcessorDefinition, tell: Callable[[str], None]) -> Started:
    name = definition.name
    found = _found(settings, definition)
    as_it_is = judged(name, found)
    if as_it_is is not None:
        return as_it_is
    request = request_of(name, found)

    def told(line: str) -> None:
        tell(f"starting {name}: {line}")

    created: tuple[str, ...] = ()
    with open_verbs(settings) as verbs:
        begun = verbs.begun(request)
        if begun is not None:
            verbs.resume(begun.id, tell=told)
        else:
            plan = verbs.plan(request)
            verbs.apply(plan, confirmed=plan.hash, tell=told)
            created = created_inputs(plan, definition.topology)
    version = found.defined_version if found.deployed is None else found.deployed
    other = _also_defined(name, found) if version != found.defined_version else ""
    made = "".join(f". Created the {each.removeprefix('create ')}" for each in created)
    return Started(name, f"version {version} processes every partition{other}{made}", running=True)


def _found(settings: Settings, definition: ProcessorDefinition) -> Found:
    registry = open_registry(settings)
    try:
        deployment = registry.deployment(definition.name)
        seen = observe(definition.name, build_world(settings, registry), Limits(stuck_after_s=settings.stuck_after_s))
    finally:
        registry.close()
    alive = [each for each in seen.values() if each.program is not None and each.program.alive]
    living = tuple("unknown" if each.living is None else each.living.code_version for each in alive)
    defined = definition.topology.code_version
    if deployment is None:
        return Found(defined, None, living)
    return Found(defined, deployment.desired, living, deployment.code_version)
