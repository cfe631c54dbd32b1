"""Plan ``restart``: stop the worker in every slot after a final commit, and start the deployed release again.

A slot is the place of one worker.
"""

from __future__ import annotations

from typing import Any

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.facts import Facts
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Restart
from holdfast.processors.lifecycle.plans.stages import RunProcessor, StopProcessor
from holdfast.processors.lifecycle.verbs.refusals import code_not_kept, missing_topics
from holdfast.processors.lifecycle.verbs.releases import provision

#: Typical seconds of a stop and a start from local state.
USUAL_S = 5.0


def plan(request: Restart, facts: Facts, topology: Topology) -> Plan:
    """The plan that restarts the deployed release; refused if nothing is deployed, or the release's code is gone."""
    deployment, alive = facts.deployment, [each.slot for each in facts.instances if each.alive]
    # The plan's hash does not depend on which slots (places of workers) have a live process. So a repeated restart has
    # the same hash as the interrupted one, although other slots are alive by then.
    basis: dict[str, Any] = {"deployed": facts.deployed, "defined": topology.code_version}
    refused = _refused(facts, topology)
    if refused is not None or deployment is None:
        assert refused is not None
        return Plan(request=request, verdict=refused, basis=basis)
    version, slots = deployment.code_version, ", ".join(deployment.slots)
    start = RunProcessor(
        f"start version {version} in slot {slots}, and wait until it processes every input partition",
        version,
        request.timeout_s,
    )
    there = ", ".join((*deployment.slots, *facts.beyond))
    stop = StopProcessor(f"stop slot {there}: it commits, checkpoints and leaves the group", for_good=False)
    notes = [f"slot {each} has no process" for each in deployment.slots if each not in alive]
    if facts.desired == "stopped":
        notes.append(f"{facts.processor} is stopped: it runs afterwards, and recovery keeps it running")
    repaired = provision.repairs(facts, topology)
    if repaired:
        basis["repaired"] = {stage.name: stage.config for stage in repaired}
    if version != topology.code_version:
        notes.append(f"the files define version {topology.code_version}, which only a deployment starts")
    return Plan(
        request=request,
        verdict=Ready(f"stop {facts.processor} in slot {slots}, and start version {version} again."),
        stages=(*repaired, stop, start),
        findings=tuple(notes),
        kept=("State, changelogs and input offsets: it continues from them.",),
        undo=f"Not needed: the same version runs afterwards. To stop it: `holdfast apply stop {facts.processor}`",
        seconds=USUAL_S,
        estimate="a clean stop and a start from local state take a few seconds",
        basis=basis,
    )


def _refused(facts: Facts, topology: Topology) -> Refused | None:
    name, version = facts.processor, facts.deployed
    if version is None:
        return Refused(
            f"{name} was never deployed, so there is nothing to restart.",
            f"Deploy it: `holdfast apply deploy {name}`.",
            {"processor": name},
        )
    return code_not_kept(facts, topology) or (
        missing_topics(facts, topology) if version == topology.code_version else None
    )
