"""Whether another installation's workers have a processor's partitions; checked before a worker is started here.

Invariants:
    - A former worker of this installation is no stranger: neither one whose session lasts still, nor one whose state
      folder, and with it its client id, is lost. Members that leave within ``GHOSTS_S`` count as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path

from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.kafka.errors import AccessRefused
from holdfast.infra.kafka.records import Member
from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.changelog.names import is_worker_of, transactional_id
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.plans.apply import PlanRefused
from holdfast.processors.lifecycle.plans.requests import NEVER_START
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.verbs.refusals import shared_with

#: The session of a dead worker ends within this time, seconds.
GHOSTS_S = 60.0
_LOOK_EVERY_S = 1.0


def strangers_beside(processor: str, members: Sequence[Member], own: Set[str], slots: int) -> list[Member]:
    """The members of a group that are no workers of this installation, which has this number of ``slots``.

    Workers of older versions, and workers whose settings name a ``client.id``, have other client ids. So each slot
    without a named member explains one other member.
    """
    others = [each for each in members if each.client_id not in own]
    workers = [each for each in others if is_worker_of(processor, each.client_id)]
    unnamed = [each for each in others if not is_worker_of(processor, each.client_id)]
    unseen = max(0, slots - (len(members) - len(others)))
    return workers + (unnamed if len(unnamed) > unseen else [])


def may_start(begun: ApplyRecord) -> bool:
    """Whether the rest of an open apply may start workers."""
    plan = way_on.read(begun)
    return plan is not None and not isinstance(plan.request, NEVER_START)


def refuse_beside(begun: ApplyRecord, world: World) -> ApplyRecord:
    """The apply to resume; refused, like its verb, next to another installation's workers.

    Raises:
        PlanRefused: They are members of the group, and the apply may start workers.
    """
    name = begun.processor
    others = world.strangers(name) if may_start(begun) else ()
    if others:
        raise PlanRefused(
            shared_with(name, others),
            action=f"Stop {name} there (`holdfast apply stop {name}` in that installation), then repeat the command.",
            processor=name,
            strangers="; ".join(others),
        )
    return begun


def find_strangers(
    processor: str,
    slots: int,
    members: Callable[[str], Sequence[Member]],
    state_dir: Path,
    within_s: float = GHOSTS_S,
) -> tuple[str, ...]:
    """The strangers in a processor's group that stay for ``within_s`` seconds, as texts.

    Also empty if this client may not describe the group.

    Raises:
        HoldfastError: Kafka does not answer.
    """
    found: list[Member] = []

    def gone() -> bool:
        nonlocal found
        ids = {
            slot: StateFolder.id_of(state_dir / processor / slot) for slot in StateFolder.slots(state_dir, processor)
        }
        own = {transactional_id(processor, made, slot) for slot, made in ids.items() if made}
        found = strangers_beside(processor, members(processor), own, slots)
        return not found

    try:
        wait_until(gone, within_s, every_s=_LOOK_EVERY_S)
    except AccessRefused:
        return ()
    return tuple(map(str, found))
