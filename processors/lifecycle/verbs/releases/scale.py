"""Plan ``scale``: run the deployed version with another number of workers.

Workers fetch the state of their new tasks before the group rebalances. So processing stops only during the rebalance.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Scale
from holdfast.processors.lifecycle.plans.slots import slots_of
from holdfast.processors.lifecycle.plans.stages import RunProcessor
from holdfast.processors.lifecycle.verbs.releases import provision


def read(request: Scale, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including the release, and the number of workers in the settings."""
    return replace(read_facts(topology, source, releases=True), workers=source.workers(request.processor))


def plan(request: Scale, facts: Facts, topology: Topology) -> Plan:
    """The plan that starts or stops workers until the requested number runs.

    Refused for a processor that is stopped or was never deployed.
    """
    name, wanted = topology.processor, slots_of(request.workers)
    version = facts.deployed
    basis: dict[str, Any] = {"deployment": facts.deployment, "alive": facts.alive, "wanted": wanted}
    if facts.deployment is None or version is None or facts.desired == "stopped":
        state = "was never deployed" if facts.deployment is None else "is stopped"
        refused = Refused(
            f"{name} {state}, so it has no workers to change.",
            f"Deploy it first: `holdfast apply deploy {name}`. Then `holdfast apply scale {name} {request.workers}`.",
        )
        return Plan(request=request, verdict=refused, basis=basis)
    before = (*facts.deployment.slots, *facts.beyond)
    findings = (*_of_partitions(request.workers, facts, topology), *_of_settings(request, facts))
    # The running workers are checked in addition to the recorded slots (places of workers). The command records new
    # slots before it starts their workers, and may be interrupted in between.
    alike = all(each.code_version == version and not each.paused for each in facts.instances)
    if set(before) == set(wanted) and facts.working and alike and facts.desired == "deployed":
        verdict = NothingToDo(f"{name} already runs in {count_of(request.workers, 'worker')}.")
        return Plan(request=request, verdict=verdict, findings=findings, basis=basis)
    released = facts.released
    release = released.release_id if released is not None and released.code_version == version else None
    change = f"{count_of(request.workers, 'worker')} in place of {len(before)}"
    warm = request.warm_s if topology.logged else 0.0
    repaired = provision.repairs(facts, topology)
    if repaired:
        basis["repaired"] = {stage.name: stage.config for stage in repaired}
    return Plan(
        request=request,
        verdict=Ready(f"run {name} in {change}."),
        stages=(
            *repaired,
            RunProcessor(
                _says(before, wanted, warm),
                version,
                request.timeout_s,
                release_id=release,
                slots=wanted,
                back_slots=facts.deployment.slots,
                rescale=True,
                warm_s=warm,
            ),
        ),
        findings=findings,
        kept=("State, changelogs and input offsets. State folders of workers that are removed stay on disk.",),
        undo=f"`holdfast apply scale {name} {len(before)}`",
        basis=basis,
    )


def _says(before: tuple[str, ...], wanted: tuple[str, ...], warm_s: float) -> str:
    new = [slot for slot in wanted if slot not in before]
    gone = [slot for slot in before if slot not in wanted]
    parts = []
    if new:
        parts.append(f"start {_slots(new)}")
    if warm_s:
        whose = "they" if new and not gone else "the workers that get tasks"
        parts.append(f"wait up to {warm_s:g} s until {whose} have fetched the state of the tasks to come")
    if new:
        parts.append("let them join the group")
    if gone:
        parts.append(f"stop {_slots(gone)} after a last commit, and remove it")
    parts.append("wait until every input partition is processed")
    return "; ".join(parts)


def _slots(slots: list[str]) -> str:
    return f"slot {', '.join(slots)}"


def _of_partitions(workers: int, facts: Facts, topology: Topology) -> tuple[str, ...]:
    """A text for the plan if there are more workers than tasks, so that some workers stay idle; otherwise empty."""
    tasks = len(topology.tasks(facts.widths))
    if workers <= tasks:
        return ()
    more = count_of(workers - tasks, "worker")
    return (
        f"it has {count_of(tasks, 'task')}: {more} will have none, and take over when another one ends (a standby, "
        "without state of its own unless `HOLDFAST_STANDBY_REPLICAS` is set)",
    )


def _of_settings(request: Scale, facts: Facts) -> tuple[str, ...]:
    if facts.workers is None or facts.workers == request.workers:
        return ()
    return (
        f"the setting `workers` names {facts.workers} for it: the next deployment goes back to {facts.workers} unless "
        "the setting is changed, too",
    )
