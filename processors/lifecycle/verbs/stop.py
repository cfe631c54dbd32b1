"""Plan ``stop``: every slot is stopped gently, and the processor is meant to be down from then on."""

from __future__ import annotations

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import Facts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Stop
from holdfast.processors.lifecycle.plans.stages import StopProcessor


def plan(request: Stop, facts: Facts, topology: Topology) -> Plan:
    """Decide whether there is anything to stop."""
    desired = None if facts.deployment is None else facts.deployment.desired
    alive = [each.slot for each in facts.instances if each.alive]
    basis = {"deployment": facts.deployment, "alive": alive}
    if facts.deployment is None or (desired == "stopped" and not alive):
        said = "It was never deployed." if desired is None else "It is down, as it is meant to be."
        return Plan(request=request, verdict=NothingToDo(said), basis=basis)
    slots = ", ".join(facts.deployment.slots)
    return Plan(
        request=request,
        verdict=Ready(f"stop {topology.processor} in slot {slots}."),
        stages=(
            StopProcessor(f"stop slot {slots}: it commits, checkpoints and leaves the group at once", for_good=True),
        ),
        kept=("State, changelogs and input offsets: a later deployment goes on where it stopped.",),
        undo=f"holdfast apply deploy {topology.processor}",
        seconds=2.0,
        estimate="a clean stop takes one to three seconds",
        basis=basis,
    )
