"""Finds "strangers": workers of another installation in a processor's group. The check runs before workers start.

Invariants:
    - A dead worker of this installation is not a stranger, even if Kafka still lists it as a member until its session
      ends. So members that leave the group within ``GHOSTS_S`` seconds count as dead workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path

from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.kafka.errors import AccessRefused
from holdfast.infra.kafka.records import Member, worker_of
from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.changelog.names import is_worker_of, transactional_id
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.plans.apply import PlanRefused
from holdfast.processors.lifecycle.plans.requests import NEVER_START
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.verbs.refusals import shared_with

#: Maximum seconds until the session of a dead worker ends.
GHOSTS_S = 60.0
_LOOK_EVERY_S = 1.0


def strangers_beside(processor: str, members: Sequence[Member], own: Set[str], slots: int) -> list[Member]:
    """The members of a consumer group that are not workers of this installation, which has ``slots`` workers.

    ``own`` has the client ids of this installation's workers. A member with the client id of another worker of the
    processor is always returned. Workers of earlier Holdfast versions, and workers with a ``client.id`` in their
    settings, have client ids of another form. So each slot (place of one worker) without a member in ``own`` may
    explain one member with such an id. If there are more such members than such slots, all of them are returned.
    """
    others = [each for each in members if worker_of(each.client_id) not in own]
    workers = [each for each in others if is_worker_of(processor, each.client_id)]
    unnamed = [each for each in others if not is_worker_of(processor, each.client_id)]
    unseen = max(0, slots - (len(members) - len(others)))
    return workers + (unnamed if len(unnamed) > unseen else [])


def may_start(begun: ApplyRecord) -> bool:
    """Whether the remaining stages of an open apply (execution of a plan) may start workers."""
    plan = way_on.read(begun)
    return plan is not None and not isinstance(plan.request, NEVER_START)


def refuse_beside(begun: ApplyRecord, world: World) -> ApplyRecord:
    """Returns ``begun``, the open apply (execution of a plan), after a check for workers of another installation.

    Raises:
        PlanRefused: Workers of another installation are in the processor's group, and the apply may start workers.
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
    """The workers of another installation that stay in a processor's group for ``within_s`` seconds, as texts.

    The result is also empty if this client is not allowed to describe the group.

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
