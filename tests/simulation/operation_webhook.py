"""The simulated sensor ``notifications``, which posts messages about incidents and problems to a webhook.

A problem here is a state of the processor that needs a person, for example an interrupted command. The module checks
which messages reach the webhook, how often, and whether the end of a problem is reported.

A tick (one run of the sensor) takes no virtual time. It reads Holdfast's registry and the workers' statuses, and posts
messages. A signal may end it at each of its calls. It draws no random numbers. So a course (a simulated sequence of
commands and faults) runs in the same way with and without the webhook.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx

from holdfast.infra.errors import HoldfastError
from holdfast.infra.webhook import Answer
from holdfast.orchestration.sensors.webhook import INCIDENTS_MAX, NOTIFY_EVERY_S
from holdfast.processors.lifecycle.recovery.messages import state_messages, webhook_messages
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import Cursor, Need, Notification, Outbox
from holdfast.processors.lifecycle.recovery.processor_now import ProcessorNow, processor_now
from tests.simulation.lifecycle_machine import SimulatedClient, _answer
from tests.simulation.operation_world import LIMITS, OperationWorld, Person
from tests.simulation.scheduler import Crashed
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP

if TYPE_CHECKING:
    from holdfast.processors.engine.runtime.loop import Worker

#: Maximum seconds until a problem that needs a person is reported, and maximum seconds until its end is reported.
PROMISED_S = 60.0
REPEAT = timedelta(hours=24)


class Watcher:
    """The process in which one tick of the sensor runs. No virtual time passes in this process."""

    ended = crashed = frozen = False

    def __init__(self, world: OperationWorld, name: str) -> None:
        self.name, self._world, self._interrupted = name, world, False

    def point(self, name: str) -> None:
        """Pass a point: the place before or after a call of the tick. A signal may end the tick here.

        Raises:
            Crashed: The tick is killed here.
            KeyboardInterrupt: The tick is interrupted here.
        """
        if any(strike(self, name) for strike in list(self._world.strikes)):  # type: ignore[arg-type]
            raise Crashed
        if self._interrupted:
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """Return at once, because no virtual time passes in a tick."""

    def interrupt(self) -> None:
        """Interrupt the tick, as SIGINT does: the next call raises KeyboardInterrupt."""
        self._interrupted = True


class DirectClient(SimulatedClient):
    """A client whose requests a worker answers at once, because no virtual time may pass in a tick."""

    def _done_by(
        self, worker: Worker, work: Callable[[], dict[str, Any]], timeout_s: float, *, only_reads: bool
    ) -> httpx.Response | None:
        return _answer(200, work())


class WatchingPerson(Person):
    """The simulated program with which a tick reads Holdfast's registry, the workers' statuses and the broker."""

    #: The timeout of requests to the broker. It is 0, because no time passes in a tick: if the broker is down, a
    #: request fails at once.
    request_timeout_s = 0.0

    def _client(self, processor: str, slot: str) -> SimulatedClient:
        return DirectClient(self._world, self.process, processor, slot)


class Webhook:
    """The simulated sensor, its cursor (which Dagster stores in production), and the messages that were accepted."""

    def __init__(self, world: OperationWorld, tell: Callable[[str], None]) -> None:
        self._world, self._tell, self._ticks = world, tell, 0
        self._cursor = Cursor(Outbox(), 0)
        #: The accepted messages by id. A repeated id counts as one message, as with the header ``Idempotency-Key``.
        self.received: dict[str, Notification] = {}

    def begin(self) -> None:
        """Start the sensor's ticks."""
        self._world.clock.call_later(NOTIFY_EVERY_S, self._due)

    def _due(self) -> None:
        self._world.clock.call_later(NOTIFY_EVERY_S, self._due)
        self._ticks += 1
        watcher: Any = Watcher(self._world, f"hook{self._ticks}")
        try:
            self._tick(WatchingPerson(self._world, watcher))
        except (Crashed, KeyboardInterrupt):
            self._tell(f"webhook: tick {self._ticks} ended early")

    def _tick(self, person: Person) -> None:
        """Run one tick, as ``orchestration.sensors.webhook`` does."""
        registry, states, lags = person.acting.registry, self._cursor.states, self._cursor.lags
        known = {each.id: each for each in (*registry.incidents(INCIDENTS_MAX), *registry.open_incidents())}
        found = [each for number in sorted(known) for each in webhook_messages.of_incident(known[number])]
        now, unread = self._world.now(), set[str]()
        needs: list[Need]
        try:
            seen = processor_now(GROUP, person.acting, LIMITS, before=lags.get(GROUP))
        except HoldfastError as failed:
            unread = {GROUP, state_messages.BROKER}
            needs = [state_messages.need_of_unread(GROUP, failed)]
        else:
            need = state_messages.need_of(GROUP, seen.answer, is_open=_is_open(seen))
            needs = [] if need is None else [need]
            lags = {} if seen.lag is None else {GROUP: seen.lag}
        states = state_messages.follow(states, state_messages.without_repeats(needs), unread, now)
        found += state_messages.messages_of(states, REPEAT, now)
        self._keep(person, Cursor(self._cursor.outbox, 0, states, lags))
        pending = webhook_messages.waiting(self._cursor.outbox, found, now)
        sending = webhook_messages.deliver(
            self._cursor.outbox,
            pending,
            lambda one: self._post(person, one),
            self._world.now,
            keep=lambda so_far: self._keep(person, Cursor(so_far, 0, states, lags)),
        )
        outbox = webhook_messages.forget(sending.outbox, [each.id for each in found])
        self._keep(person, Cursor(outbox, 0, states, lags))

    def _keep(self, person: Person, cursor: Cursor) -> None:
        person.process.point("dagster.set_cursor:before")
        self._cursor = cursor
        person.process.point("dagster.set_cursor:after")

    def _post(self, person: Person, message: Notification) -> Answer:
        person.process.point("webhook:before")
        if message.id not in self.received:
            self.received[message.id] = message
            self._tell(f"webhook: {message.event} {message.id}: {message.action}")
        person.process.point("webhook:after")
        return Answer(200, "")

    def lasting(self) -> dict[str, str]:
        """The reported problems whose end was not reported: id of a problem's first message -> action for the user."""
        found: dict[str, str] = {}
        for each in self.received.values():
            if each.event == "state.needs":
                found[each.id.partition("-changed-")[0].partition("-again-")[0]] = each.action
        return {name: action for name, action in found.items() if f"{name}-over" not in self.received}

    def check(self) -> None:
        """Check the messages: a problem that needs a person has exactly one, with its action; without a problem, none.

        Raises:
            InvariantBroken: After ``PROMISED_S``, the messages still do not match the processor's status.
        """
        until = self._world.clock.monotonic() + PROMISED_S
        while wrong := self._wrong(self._now()):
            if self._world.clock.monotonic() >= until:
                raise InvariantBroken("webhook", wrong)
            self._world.rest(NOTIFY_EVERY_S / 3)

    def _now(self) -> ProcessorNow:
        """The processor's present status, as `holdfast status` reads it."""
        watcher: Any = Watcher(self._world, "reader")
        return processor_now(GROUP, WatchingPerson(self._world, watcher).acting, LIMITS)

    def _wrong(self, seen: ProcessorNow) -> str:
        """The difference between the sent messages and the problem in `holdfast status`; empty if there is none."""
        answer, incident, lasting = seen.answer, seen.incident, self.lasting()
        said = f"{lasting} are told; status: {answer.text}"
        if answer.passed:
            return said if lasting else ""
        if answer.incident is not None and incident is not None and not incident.is_open:
            (*_, closed) = webhook_messages.of_incident(incident)
            is_told = closed.event == "incident.failed" and closed.id in self.received
            return "" if is_told and not lasting else f"incident {incident.id}: {said}"
        if not answer.action:
            # A problem without an action ends by itself, or is reported only after a time that no simulation reaches.
            return ""
        return "" if list(lasting.values()) == [answer.action] else said


def _is_open(seen: ProcessorNow) -> bool:
    return seen.incident is not None and seen.incident.is_open
