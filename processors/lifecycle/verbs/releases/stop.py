"""Plan ``stop``: stops the worker in every slot after a final commit, and records "stopped" as the desired state.

A slot is the place of one worker.
"""

# tidy: allow-crumb because each verb has a file of its own

from __future__ import annotations

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.facts import Facts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Stop
from holdfast.processors.lifecycle.plans.stages import StopProcessor


def plan(request: Stop, facts: Facts, topology: Topology) -> Plan:
    """The plan that stops all workers; nothing to do if the processor is already stopped."""
    alive = [each.slot for each in facts.instances if each.alive]
    basis = {"deployment": facts.deployment, "alive": alive}
    if facts.deployment is None or (facts.desired == "stopped" and not alive):
        why = "The processor was never deployed." if facts.desired is None else "The processor is already stopped."
        return Plan(request=request, verdict=NothingToDo(why), basis=basis)
    slots = ", ".join((*facts.deployment.slots, *facts.beyond))
    return Plan(
        request=request,
        verdict=Ready(f"stop {topology.processor} in slot {slots}."),
        stages=(StopProcessor(f"stop slot {slots}: it commits, checkpoints and leaves the group", for_good=True),),
        kept=("State, changelogs and input offsets: a later deployment continues from them.",),
        undo=f"`holdfast apply deploy {topology.processor}`",
        seconds=2.0,
        estimate="a clean stop takes one to three seconds",
        basis=basis,
    )
