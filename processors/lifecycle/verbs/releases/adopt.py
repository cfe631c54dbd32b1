"""Plan ``adopt``: records a newer deployment in a registry that was replaced by a backup.

The deployment is read from the records outside of Holdfast's registry: the changelogs, and the mark (a file with a copy
of the deployment's registry row).
"""

from __future__ import annotations

from typing import Literal

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.plans.facts.facts import Facts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Adopt
from holdfast.processors.lifecycle.plans.slots import FIRST_SLOTS
from holdfast.processors.lifecycle.plans.stages import AdoptDeployment


def plan(request: Adopt, facts: Facts, topology: Topology) -> Plan:
    """The plan that records the newest known deployment in Holdfast's registry; no worker is started or stopped."""
    old = facts.behind
    if old is None:
        has = "no deployment" if facts.deployment is None else f"generation {facts.deployment.generation}"
        why = f"The registry is up to date: it has {has} of {topology.processor}, and nothing newer was recorded."
        return Plan(request=request, verdict=NothingToDo(why), basis={"here": facts.deployment})
    stage = _stage(old, facts)
    return Plan(
        request=request,
        verdict=Ready(f"record {old.seen} of {topology.processor} in the registry as {stage.desired}."),
        stages=(stage,),
        findings=(old.sentence, *_findings(old, facts, topology)),
        kept=("Workers, state, changelogs and input offsets: nothing is started or stopped.",),
        undo=f"Not needed. `holdfast apply deploy {topology.processor}` records another version.",
        basis=old.basis,
    )


def _stage(old: Behind, facts: Facts) -> AdoptDeployment:
    known, mark = facts.deployment, old.mark
    slots = mark.slots if mark is not None else FIRST_SLOTS if known is None else known.slots
    # A deployment that was in progress should run, so its state is "deployed". Without a mark (file with a copy of the
    # registry's row), the desired state is unknown. Then "stopped" is recorded, because a stopped processor loses
    # nothing.
    desired: Literal["deployed", "stopped"] = "deployed" if old.seen.desired in ("deployed", "deploying") else "stopped"
    return AdoptDeployment(
        f"record version {old.seen.code_version} in slot {', '.join(slots)} as {desired}, after generation "
        f"{old.seen.generation}",
        code_version=old.seen.code_version,
        slots=slots,
        desired=desired,
        after=old.seen.generation,
        release=None if mark is None else mark.release,
    )


def _findings(old: Behind, facts: Facts, topology: Topology) -> tuple[str, ...]:
    found = [
        f"slot {each.slot} has a process, version {each.code_version or 'unknown'}"
        for each in facts.instances
        if each.alive
    ]
    if old.mark is None:
        found.append(
            "whether it was meant to run is not known: it is recorded as stopped, and `holdfast apply deploy "
            f"{topology.processor}` starts it"
        )
    elif old.mark.release is None:
        found.append("no release of that version was recorded: recovery would start the version that is defined here")
    return tuple(found)
