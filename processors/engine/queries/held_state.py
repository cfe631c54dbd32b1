"""Finds the state from which one worker may answer a query: the view of an owned task, or that of a standby.

    the worker owns the task, and it runs ──► its view, if the worker's loop has turned lately (``freshness``)
    the worker has a standby of the task  ──► its view, if the query accepts stale answers
    neither                               ──► ``Elsewhere``: another worker may answer

All functions are called by threads of the HTTP server, never by the worker's loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from holdfast.infra.clock import Clock
from holdfast.processors.engine.queries.demand import Demand, Position
from holdfast.processors.engine.queries.errors import QueryWrong, StateAway, StoreUnknown
from holdfast.processors.engine.runtime.ownership.freshness import Freshness, Ownership
from holdfast.processors.engine.runtime.task.facts import TaskFacts, TaskPhase
from holdfast.processors.engine.state.databases.views import NoView, View
from holdfast.processors.engine.topology import StoreSpec, Subtopology, Topology

#: Seconds after which a client asks again while a task is restored, if the time that is left is not known.
RETRY_RESTORE_S, RETRY_MOVE_S = 2.0, 1.0


class Elsewhere(Exception):
    """This worker has no state of the task. Another worker may own it."""


class HeldTasks(Protocol):
    """The tasks of one worker, as far as queries need them."""

    topology: Topology
    freshness: Freshness
    clock: Clock
    slot: str

    def owned(self) -> Sequence[TaskFacts]:
        """All tasks that the group has assigned to this worker."""

    def followed(self) -> Sequence[TaskFacts]:
        """The standbys of this worker."""

    def restore_progress(self, task: str) -> Mapping[str, float | None] | None:
        """The progress of a restore, with ``remaining`` records and ``seconds_left``; None if none runs."""


class Read(NamedTuple):
    """A view of one task, and where it stands."""

    view: View
    position: Position


def spec_of(topology: Topology, store: str) -> tuple[StoreSpec, Subtopology]:
    """Returns a store's description, and the subtopology that has it. Raises StoreUnknown."""
    for spec in topology.stores:
        if spec.name == store:
            return spec, next(sub for sub in topology.subtopologies if store in sub.stores)
    names = ", ".join(sorted(spec.name for spec in topology.stores)) or "none"
    raise StoreUnknown(
        f"Processor {topology.processor} has no store {store[:80]!r}; its stores are {names}.",
        action="Ask for one of these stores.",
        store=store[:80],
    )


@contextmanager
def opened(held: HeldTasks, store: str, partition: int, demand: Demand) -> Iterator[Read]:
    """A context with the state of one task of a store that meets the demand.

    Raises:
        Elsewhere: This worker neither owns the task nor has a standby that meets the demand.
        StateAway: The worker owns the task, and can't answer now.
        QueryWrong: The demand names a topic that the task does not read.
    """
    _, sub = spec_of(held.topology, store)
    name = sub.task(partition)
    held.freshness.asked()
    demanded = _of_task(demand, sub, partition)
    task = next((each for each in held.owned() if each.name == name), None)
    if task is not None and task.store is not None and demand.stale_ok_s is None:
        # The age is that of the turn before the view is made. So the view has at least the commits of that turn.
        known_at = _known_at(held)
        with _view_of(task, held) as view:
            age_s = max(0.0, held.clock.monotonic() - known_at)
            _check_age(age_s, demand)
            _check_position(view.meta.inputs, demanded)
            yield Read(view, _position(view, partition, age_s, "owner", held.slot))
            # The process may have been frozen while the answer was built.
            _known_at(held)
        return
    if demand.stale_ok_s is not None:
        with _stale(held, task, name, store, demand, demanded) as read:
            yield read
        return
    if task is not None:
        raise _restoring(held, task)
    raise Elsewhere(name)


def _of_task(demand: Demand, sub: Subtopology, partition: int) -> dict[str, int]:
    """Returns the part of ``after`` that is about this task, by topic."""
    unknown = sorted({place.topic for place in demand.after} - set(sub.inputs))
    if unknown:
        raise QueryWrong(
            f"`after` names topic {unknown[0]}; the tasks of this store read {', '.join(sub.inputs)}.",
            action="Demand a position of these topics. A position of a topic before a `group_by` can't be waited for.",
            topic=unknown[0],
        )
    return {place.topic: offset for place, offset in demand.after.items() if place.number == partition}


@contextmanager
def _view_of(task: TaskFacts, held: HeldTasks) -> Iterator[View]:
    store = task.store
    if task.phase is not TaskPhase.RUNNING or store is None:
        raise _restoring(held, task)
    try:
        with store.views.open() as view:
            yield view
    except NoView as reason:
        raise StateAway(
            f"Task {task.name} can't be read now: {reason}.", retry_after_s=RETRY_MOVE_S, waits=True, task=task.name
        ) from None


def _known_at(held: HeldTasks) -> float:
    """Returns the monotonic seconds at which the worker last knew that its tasks are its own. Raises StateAway."""
    ownership, turned_at, _ = held.freshness.seen
    if ownership is Ownership.UNKNOWN:
        raise StateAway("The worker is not in its group now.", retry_after_s=RETRY_MOVE_S, waits=True)
    if ownership is Ownership.DOUBTED or held.clock.monotonic() - turned_at > held.freshness.gap_s:
        raise StateAway(
            "The worker was silent for a long time, so another worker may own the task. It commits to find out.",
            retry_after_s=RETRY_MOVE_S,
            waits=True,
        )
    return turned_at


def _check_age(age_s: float, demand: Demand) -> None:
    if demand.max_age_s is not None and age_s > demand.max_age_s:
        raise StateAway(
            f"The state is {age_s:.3f} s old; the query demands at most {demand.max_age_s:g} s.", waits=True
        )


def _check_position(inputs: Mapping[str, int], demanded: Mapping[str, int]) -> None:
    for topic, offset in demanded.items():
        at = inputs.get(topic, 0)
        if at < offset:
            raise StateAway(
                f"The state has {topic} up to offset {at}; the query demands {offset}.",
                waits=True,
                topic=topic,
                seen=at,
                expected=offset,
            )


@contextmanager
def _stale(
    held: HeldTasks, task: TaskFacts | None, name: str, store: str, demand: Demand, demanded: Mapping[str, int]
) -> Iterator[Read]:
    """A context with a view of the owned task, or of a standby, that is not older than ``stale_ok_s``."""
    assert demand.stale_ok_s is not None
    if task is not None and task.phase is TaskPhase.RUNNING:
        known_at = held.freshness.seen.known_at
        with _view_of(task, held) as view:
            # Since then, another worker may own the task and have committed more.
            age_s = max(0.0, held.clock.monotonic() - known_at)
            if age_s > demand.stale_ok_s:
                raise StateAway(
                    f"The worker last knew {age_s:.3f} s ago that it owns the task; the query accepts "
                    f"{demand.stale_ok_s:g} s.",
                    retry_after_s=RETRY_MOVE_S,
                    waits=True,
                    task=name,
                )
            _check_position(view.meta.inputs, demanded)
            yield Read(view, _position(view, task.partition, age_s, "owner", held.slot))
        return
    follower = next((each for each in held.followed() if each.name == name), None)
    if follower is None or follower.store is None:
        if task is not None:
            raise _restoring(held, task)
        raise Elsewhere(name)
    try:
        with follower.store.views.published() as view:
            age_s, at = max(0.0, held.clock.time() - view.meta.complete_at), view.meta.stores[store]
            if age_s > demand.stale_ok_s:
                raise Elsewhere(name)
            _check_position(at.inputs, demanded)
            yield Read(
                view, Position(follower.partition, at.inputs, view.meta.complete_at, age_s, "standby", held.slot)
            )
    except NoView:
        raise Elsewhere(name) from None


def _restoring(held: HeldTasks, task: TaskFacts) -> StateAway:
    progress = held.restore_progress(task.name)
    left, records = (progress or {}).get("seconds_left"), (progress or {}).get("remaining")
    text = "" if records is None else f": {records:,.0f} records are left"
    return StateAway(
        f"Task {task.name} is not ready: its state is being restored{text}.",
        retry_after_s=RETRY_RESTORE_S if left is None else min(60.0, max(1.0, left)),
        task=task.name,
        remaining=records,
        seconds_left=left,
    )


def _position(view: View, partition: int, age_s: float, source: str, worker: str) -> Position:
    return Position(partition, view.meta.inputs, view.meta.complete_at, age_s, source, worker)
