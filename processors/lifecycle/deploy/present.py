"""The existing workers of a processor, recorded in the registry or not.

The registry holds the desired state: how many workers should run. An interrupted apply leaves other workers, which own
partitions like every worker. To reach the owners of state, use ``slots_at_work``, never the record alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.processors.engine.state.folder import SLOTS_MAX
from holdfast.processors.lifecycle.ports import World


def slots_present(processor: str, world: World) -> tuple[str, ...]:
    """The slots that have a program, recorded in the registry or not."""
    known = world.deployer.programs()
    slots = (str(number) for number in range(SLOTS_MAX))
    return tuple(slot for slot in slots if world.paths.program(processor, slot) in known)


def slots_beyond(processor: str, recorded: Sequence[str], world: World) -> tuple[str, ...]:
    """The slots with a process that are not among the ``recorded`` ones; empty while the supervisor does not run."""
    if not world.deployer.running():
        return ()
    return beyond_in(world.deployer.programs(), processor, recorded, world)


def beyond_in(
    programs: Mapping[str, ProgramStatus], processor: str, recorded: Sequence[str], world: World
) -> tuple[str, ...]:
    """The same, of programs that were listed."""
    known = {world.paths.program(processor, slot) for slot in recorded}
    if all(name in known or not program.alive for name, program in programs.items()):
        return ()
    others = (str(number) for number in range(SLOTS_MAX) if str(number) not in recorded)
    found = ((slot, programs.get(world.paths.program(processor, slot))) for slot in others)
    return tuple(slot for slot, program in found if program is not None and program.alive)


def slots_at_work(processor: str, world: World) -> tuple[str, ...]:
    """The recorded slots, and other slots with a process: each partition is owned by one of these workers."""
    deployment = world.registry.deployment(processor)
    recorded = () if deployment is None else deployment.slots
    return (*recorded, *slots_beyond(processor, recorded, world))


def remove_others(processor: str, slots: Sequence[str], world: World) -> tuple[str, ...]:
    """Stop and remove the programs of other slots, all together, so that the group changes once; returns their slots.

    The list of programs identifies them, because after a kill the record has only the new slots.
    """
    others = tuple(slot for slot in slots_present(processor, world) if slot not in slots)
    world.deployer.remove_all([world.paths.program(processor, slot) for slot in others])
    return others
