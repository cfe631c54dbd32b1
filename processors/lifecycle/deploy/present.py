"""Finds all existing workers of a processor, whether Holdfast's registry lists them or not.

The registry lists only the workers that should run. An interrupted apply (execution of a plan) can leave further
running workers, which also own partitions. To reach every owner of state, use ``slots_at_work`` instead of the
registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.processors.engine.state.folder import SLOTS_MAX
from holdfast.processors.lifecycle.ports import World


def slots_present(processor: str, world: World) -> tuple[str, ...]:
    """The slots (one for each worker) for which the supervisor has a program, even if they are not registered."""
    known = world.deployer.programs()
    slots = (str(number) for number in range(SLOTS_MAX))
    return tuple(slot for slot in slots if world.paths.program(processor, slot) in known)


def slots_beyond(processor: str, recorded: Sequence[str], world: World) -> tuple[str, ...]:
    """The slots (one for each worker) that have a live process but are missing in ``recorded``.

    ``recorded`` has the slots in Holdfast's registry. The result is empty if the supervisor does not run.
    """
    if not world.deployer.running():
        return ()
    return beyond_in(world.deployer.programs(), processor, recorded, world)


def beyond_in(
    programs: Mapping[str, ProgramStatus], processor: str, recorded: Sequence[str], world: World
) -> tuple[str, ...]:
    """The slots (one for each worker) that have a live process in a list of programs, but are not recorded."""
    known = {world.paths.program(processor, slot) for slot in recorded}
    if all(name in known or not program.alive for name, program in programs.items()):
        return ()
    others = (str(number) for number in range(SLOTS_MAX) if str(number) not in recorded)
    found = ((slot, programs.get(world.paths.program(processor, slot))) for slot in others)
    return tuple(slot for slot, program in found if program is not None and program.alive)


def slots_at_work(processor: str, world: World) -> tuple[str, ...]:
    """The slots (one for each worker) that Holdfast's registry lists, and all other slots with a live process."""
    deployment = world.registry.deployment(processor)
    recorded = () if deployment is None else deployment.slots
    return (*recorded, *slots_beyond(processor, recorded, world))


def pids_at_work(processor: str, world: World) -> dict[str, int | None]:
    """Maps each slot of ``slots_at_work`` to the process id of its worker; None if the slot has no process."""
    slots = slots_at_work(processor, world)
    programs = world.deployer.programs() if slots and world.deployer.running() else {}
    found = ((slot, programs.get(world.paths.program(processor, slot))) for slot in slots)
    return {slot: None if program is None else program.pid for slot, program in found}


def remove_others(processor: str, slots: Sequence[str], world: World) -> tuple[str, ...]:
    """Stop and remove the programs of all slots that are not in ``slots``; returns the removed slots.

    All these programs are stopped together, so that the consumer group rebalances only once. Their names come from the
    supervisor, because Holdfast's registry may lack their slots. After a killed apply (execution of a plan), it has
    only the slots of the new deployment.
    """
    others = tuple(slot for slot in slots_present(processor, world) if slot not in slots)
    world.deployer.remove_all([world.paths.program(processor, slot) for slot in others])
    return others
