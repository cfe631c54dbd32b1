"""Bugs that tests plant in the holds on a processor (exclusive claims of a process).

The model must detect each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import update

from holdfast.infra.database import applies, connections, leases, tables
from holdfast.infra.database.applies import ApplyJournal
from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.registry import Registry
from holdfast.processors.lifecycle.plans.apply import Applier
from holdfast.processors.lifecycle.plans.holding import Hold
from holdfast.processors.lifecycle.recovery import attempt as recovery
from holdfast.processors.lifecycle.recovery import incidents
from tests.simulation.registry_model import Actor, ModelHold


@dataclass(frozen=True, slots=True)
class RegistryBug:
    """A bug: the patch that plants it, and the invariants of which at least one must break."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    invariants: tuple[str, ...]


def _ends_without_token(patch: pytest.MonkeyPatch) -> None:
    def give_back(journal: ApplyJournal, apply_id: int, token: int, **values: Any) -> bool:
        table = tables.applies
        is_open = (table.c.id == apply_id, table.c.finished_at.is_(None))
        return journal._database.changed(update(table).where(*is_open).values(holder=None, **values))

    patch.setattr(ApplyJournal, "_give_back", give_back)


def _notes_without_token(patch: pytest.MonkeyPatch) -> None:
    def held_with(apply_id: int, token: int) -> Any:
        table = tables.applies
        return update(table).where(table.c.id == apply_id, table.c.finished_at.is_(None))

    patch.setattr(applies, "_held_with", held_with)


def _claims_beside_an_apply(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "end_silent_apply", lambda *of: True)


def _begins_beside_a_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "end_recovery", lambda *of: None)


def _judges_by_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    """The bug: a heartbeat has the time of the holder's host. Another host compares this time with its own clock."""
    beats: dict[int, float] = {}
    beat, begin, claim = ApplyJournal.beat_apply, Applier._begin, Applier._claim

    def beaten(journal: ApplyJournal, apply_id: int, token: int) -> bool:
        actor = next((each for each in _holders if each.hold is not None and each.hold.fence.token == token), None)
        if actor is not None:
            beats[apply_id] = actor.now().timestamp()
        return beat(journal, apply_id, token)

    _holders: list[Actor] = []
    taken = ModelHold.take

    def take(hold: ModelHold, fence: Any, beat: Callable[[], bool]) -> None:
        taken(hold, fence, beat)
        _holders.append(hold.actor)
        beats[fence.id] = hold.actor.now().timestamp()

    def by_own_clock(applier: Applier, record: Any) -> int | None:
        def is_gone(name: str) -> bool:
            return abs(Actor.current().now().timestamp() - beats.get(record.id, 0.0)) > leases.SILENT_S

        object.__setattr__(applier, "holder", type(applier.holder)(applier.holder.name, is_gone))
        return claim(applier, record)

    def refuse(applier: Applier, record: Any, begun: Any) -> None:
        """Refuses no claim. With this bug, ``by_own_clock`` alone decides who may claim an apply (execution)."""

    del begin
    patch.setattr(ModelHold, "take", take)
    patch.setattr(ApplyJournal, "beat_apply", beaten)
    patch.setattr(Applier, "_claim", by_own_clock)
    patch.setattr(Applier, "_refuse_held", refuse)


def _goes_on_after_a_refused_beat(patch: pytest.MonkeyPatch) -> None:
    def check(hold: Hold) -> None:
        hold._beat()

    patch.setattr(Hold, "check", check)


def _writes_beside_the_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connections.Connections, "fenced", lambda database, fence: _open(database))


def _open(database: connections.Connections) -> connections.Connections:
    bound = object.__new__(connections.Connections)
    bound.engine, bound._fence = database.engine, None
    return bound


def _keeps_the_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "take", lambda connection, processor: 1)


def _swallows_the_loss(patch: pytest.MonkeyPatch) -> None:
    verify = leases.verify

    def quietly(connection: Any, fence: Any) -> None:
        try:
            verify(connection, fence)
        except HoldLost:
            return

    patch.setattr(leases, "verify", quietly)


def _releases_for_whoever_asks(patch: pytest.MonkeyPatch) -> None:
    claim = Registry.claim_incident

    def taken(registry: Registry, incident_id: int, run_id: str, now: Any, **known: Any) -> int | None:
        with registry._database.writing() as connection:
            table = tables.incidents
            connection.execute(update(table).where(table.c.id == incident_id).values(claimed_by=None))
        return claim(registry, incident_id, run_id, now, **known)

    patch.setattr(Registry, "claim_incident", taken)


def _takes_the_living_for_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(incidents, "is_gone", lambda name: True)


def _takes_what_was_silent(patch: pytest.MonkeyPatch) -> None:
    """The bug: recovery takes over an apply (execution of a plan) that had no heartbeat when recovery checked it.

    The apply's holder may have sent a heartbeat between the check and the take-over.
    """
    patch.setattr(recovery, "is_known_dead", incidents.is_broken_off)


REGISTRY_BUGS = (
    RegistryBug("an apply is ended without its token", _ends_without_token, ("former holder", "one holder", "token")),
    RegistryBug("a stage is noted without the token", _notes_without_token, ("former holder", "each effect once")),
    RegistryBug("an incident is claimed beside an apply", _claims_beside_an_apply, ("never both", "one holder")),
    RegistryBug("an apply begins beside a recovery", _begins_beside_a_recovery, ("never both", "one holder")),
    RegistryBug("the clock of another host judges a beat", _judges_by_its_own_clock, ("one holder",)),
    RegistryBug("a stage continues after a refused beat", _goes_on_after_a_refused_beat, ("effect",)),
    RegistryBug("a former holder writes through its registry", _writes_beside_the_hold, ("former holder", "liveness")),
    RegistryBug("the loss of a hold is not told by the registry", _swallows_the_loss, ("former holder",)),
    RegistryBug("each holder has the same token", _keeps_the_token, ("token", "former holder")),
    RegistryBug("recovery takes a live apply for a dead one", _takes_the_living_for_dead, ("one holder",)),
    RegistryBug("recovery takes an apply that was silent at its look", _takes_what_was_silent, ("one holder",)),
    RegistryBug("a claim is taken from a live run", _releases_for_whoever_asks, ("one holder",)),
)
