"""The schedules of one task: finds the due slots, and calls the functions of the schedules.

A slot is a time at which a schedule's function must run::

    look: a slot is due ──► commit ──► fire: function(slot) ──► outputs, state and the slot itself, in one transaction
                              ▲                                     └── aborted ──► restore: the slot is due again
                              └── more slots are due than one commit fires

The store of the task's schedules has a progress record for each schedule. It contains the time up to which the
schedule's slots are done. Like all state, the progress record is in the changelog, checkpoints, standbys and snapshots,
and is restored with the store.

A slot is *missed* if the worker that owns the task could not check for due slots in time. Reasons are: no worker had
the task, or the worker was paused or busy for more than ``ABSENT_S`` seconds. A slot is also missed if the next slot is
due before the slot could fire. ``Missed`` is the rule for missed slots.

Invariants:
    - A slot fires at most once in committed transactions. After a crash, it fires again only if its transaction did not
      commit.
    - If the clock is set back, no slot fires twice, because the slots up to the recorded time are done.
    - A commit fires a limited number of slots, for a limited time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.processors.engine.changelog.format import FormatUnknown, unknown_version
from holdfast.processors.engine.schedules.declaration import Schedule
from holdfast.processors.engine.schedules.slot import Reach, Slot
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.own_keys import SCHEDULES
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.window_keys import OWN_KEY
from holdfast.processors.engine.steps.outbox import Outboxes

#: Seconds. Slots are the times at which a schedule must run. If more time passes between two checks for due slots, the
#: slots in between count as missed.
ABSENT_S = 5.0
#: ``FIRED_AT_ONCE``: maximum number of slots that fire in one commit. ``FIRING_MS``: milliseconds after which a commit
#: fires no further slot.
FIRED_AT_ONCE, FIRING_MS = 100, 1_000
#: When a schedule fires, its missed slots are counted only up to this number.
COUNTED_MAX = 10_000
FORMAT_VERSION = 1

#: The failure policy for schedules: called with the schedule's name, the time of the slot, and the error.
OnScheduleError = Callable[[str, int, BaseException], None]


class Progress(msgspec.Struct, frozen=True):
    """The progress of a schedule in one task. Times are milliseconds since 1970.

    Attributes:
        slots: A text that describes the schedule's slots (times). If a new version has other slots, its first slot is
            after the start of the new version.
        upto: All slots up to this time are done: they fired or were missed.
        last: The time of the last slot that fired; None if no slot has fired yet.
        fired: The number of slots that fired.
        missed: The number of slots that were missed.
        unfired: The number of slots that were missed since the last slot that fired.
        format: The format version of this record.
    """

    slots: str
    upto: int
    last: int | None = None
    fired: int = 0
    missed: int = 0
    unfired: int = 0
    format: int = FORMAT_VERSION


@dataclass(slots=True)
class _Running:
    """A schedule in a task.

    ``progress`` also counts slots (times) that are not committed yet; it is None before the first ``look``.

    ``next_ms`` is the time of the schedule's next slot.
    """

    schedule: Schedule
    reach: Reach
    progress: Progress | None = None
    committed: Progress | None = None
    #: The progress that was written to the store but is not committed yet; None if nothing was written.
    written: Progress | None = None
    next_ms: int = 0

    def goes_to(self, progress: Progress) -> None:
        self.progress, self.next_ms = progress, self.schedule.times.after(progress.upto)


class TaskSchedules:
    """Fires the schedules of one task.

    Args:
        reaches: For each schedule, the stores and topics that its function can use.
        stores: Maps each schedule's name to the store with the schedule's progress.
        states: All stores of the task. If a function fails, its writes to these stores are undone.
        outboxes: The outputs of the task that are not sent yet.
    """

    def __init__(
        self,
        reaches: Sequence[Reach],
        stores: Mapping[str, DeclaredState],
        states: Mapping[str, StoreState],
        outboxes: Outboxes,
    ) -> None:
        self._running = [_Running(reach.schedule, reach) for reach in reaches]
        self._stores, self._states, self._outboxes = stores, states, outboxes
        #: ``_now_ms`` is the time of the worker's clock at the last ``look``; None before the first one. Slots that are
        #: due after ``_on_time_from_ms`` do not count as missed.
        self._now_ms: int | None = None
        self._on_time_from_ms = 0

    def load(self) -> None:
        """Reads the progress of the schedules from the store.

        Must be called at the start and after a command has changed the store.

        Raises:
            FormatUnknown: A stored progress record has another format version.
        """
        for each in self._running:
            name = each.schedule.name
            held = self._stores[name].read_own(OWN_KEY, SCHEDULES + name)
            if held is not None and held.get("format", FORMAT_VERSION) != FORMAT_VERSION:
                raise unknown_version(f"The record of schedule {name}", held.get("format"), FORMAT_VERSION)
            each.committed = None if held is None else msgspec.convert(held, Progress)
        self.restore()

    def restore(self) -> None:
        """Must be called after an aborted transaction: discards the progress that was not committed."""
        for each in self._running:
            each.progress = each.written = None
            if each.committed is not None and each.committed.slots == each.schedule.slots:
                each.goes_to(each.committed)

    def look(self, now_ms: int) -> bool:
        """Sets the time up to which slots are due. Returns True if a commit is needed.

        Do not call it while no slot may fire, for example while the worker is paused. A schedule without progress in
        the store starts with its first slot after ``now_ms``.
        """
        if self._now_ms is None or abs(now_ms - self._now_ms) > ABSENT_S * 1000:
            self._on_time_from_ms = now_ms
        self._now_ms = now_ms
        for each in self._running:
            if each.progress is None:
                former, slots = each.committed, each.schedule.slots
                if former is None:
                    each.goes_to(Progress(slots, now_ms))
                else:
                    each.goes_to(msgspec.structs.replace(former, slots=slots, upto=max(former.upto, now_ms)))
        return self.more or self.dirty

    @property
    def more(self) -> bool:
        """Whether a slot is due that has not fired yet."""
        return any(each.progress is not None and each.next_ms <= (self._now_ms or 0) for each in self._running)

    @property
    def dirty(self) -> bool:
        """Whether a commit is needed, because a schedule has begun or a slot is done since the last commit."""
        return any(each.progress is not None and each.progress != each.committed for each in self._running)

    def fire(self, now_ms: Callable[[], int], on_error: OnScheduleError) -> None:
        """Fires the due slots in the order of their times, up to the limits of one commit; then calls ``keep``.

        Raises the errors of ``on_error``. The slot whose function failed then stays due, and so do all later slots.
        """
        began_ms, fired = now_ms(), 0
        try:
            while self.more and fired < FIRED_AT_ONCE and now_ms() - began_ms <= FIRING_MS:
                due = [each for each in self._running if each.progress is not None]
                fired += 1
                self._fire(min(due, key=lambda each: each.next_ms), on_error)
        finally:
            self.keep()

    def keep(self) -> None:
        """Writes the schedules' new progress into the store, as a part of the next commit."""
        for each in self._running:
            if each.progress is None or each.progress == each.committed:
                continue
            state = self._stores[each.schedule.name]
            state.point_at(OWN_KEY, each.progress.upto)
            state.write_own(OWN_KEY, SCHEDULES + each.schedule.name, msgspec.to_builtins(each.progress))
            state.keep_message()
            each.written = each.progress

    def committed(self) -> None:
        """Must be called after each successful commit. Marks the written progress as committed."""
        for each in self._running:
            if each.written is not None:
                each.committed, each.written = each.written, None

    def described(self) -> dict[str, dict[str, Any]]:
        """Maps each store to the committed progress of its schedules, for the worker's status.

        Times are seconds since 1970. The field ``schedules`` has for each schedule the next slot, the last slot that
        fired, and the numbers of fired and missed slots. The fields ``pending`` and ``more`` always say that there are
        no timers, because such a store has none.
        """
        found: dict[str, dict[str, Any]] = {}
        for each in self._running:
            if (done := each.committed) is not None:
                next_ms, last_s = each.schedule.times.after(done.upto), None if done.last is None else done.last / 1000
                store = self._stores[each.schedule.name].name
                of_store = found.setdefault(store, {"pending": 0, "more": False, "schedules": {}})
                counts = {"fired": done.fired, "missed": done.missed}
                of_store["schedules"][each.schedule.name] = {"next": next_ms / 1000, "last": last_s, **counts}
        return found

    def _fire(self, each: _Running, on_error: OnScheduleError) -> None:
        """Fires the next due slot of a schedule.

        Skipped slots are counted as missed. The rule for missed slots decides which slots are skipped.
        """
        progress, schedule, now_ms = each.progress, each.schedule, self._now_ms
        assert progress is not None
        assert now_ms is not None
        slot_ms, missed = each.next_ms, 0
        if schedule.missed != "all":
            slot_ms = schedule.times.latest(progress.upto, now_ms) or each.next_ms
            missed = schedule.times.count(progress.upto, slot_ms, COUNTED_MAX) - 1
        if schedule.missed == "none" and slot_ms <= self._on_time_from_ms:
            counts = {"missed": progress.missed + missed + 1, "unfired": progress.unfired + missed + 1}
            each.goes_to(msgspec.structs.replace(progress, upto=slot_ms, **counts))
            return
        self._call(each.reach, slot_ms, progress.unfired + missed, on_error)
        counts = {"fired": progress.fired + 1, "missed": progress.missed + missed, "unfired": 0}
        each.goes_to(msgspec.structs.replace(progress, upto=slot_ms, last=slot_ms, **counts))

    def _call(self, reach: Reach, slot_ms: int, missed: int, on_error: OnScheduleError) -> None:
        schedule, state = reach.schedule, self._stores[reach.schedule.name]
        marks = {topic: len(box.values) for topic, box in self._outboxes.items()}
        state.point_at(schedule.name.encode(), slot_ms)
        try:
            with ExitStack() as opened:
                schedule.function(Slot(reach, slot_ms, missed, state, opened))
        except BaseException as error:
            for each in self._states.values():
                each.undo_message()
            for topic, box in self._outboxes.items():
                box.keep(marks.get(topic, 0))
            if isinstance(error, (StateFailed, FormatUnknown)):
                raise  # the state itself can't be read, so the failure policy may not skip this slot
            on_error(schedule.name, slot_ms, error)
        for each in self._states.values():
            each.keep_message()
