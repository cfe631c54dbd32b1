"""Bugs that tests plant in windows, sessions, timers and values with a TTL. The tests must detect each of them.

The simulation and the tests of one step (``test_*_as_modelled.py``) plant the same bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast.processors.engine.dataframe.results_aside import Mark, ResultsAside
from holdfast.processors.engine.runtime import commit, loop
from holdfast.processors.engine.runtime.committer import Committer
from holdfast.processors.engine.runtime.task.task_time import TaskTime
from holdfast.processors.engine.runtime.task.task_timers import TaskTimers
from holdfast.processors.engine.state.own_keys import RESERVED
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.expiries import Expiries
from holdfast.processors.engine.state.time.stream_time import Remembered, StreamTime
from holdfast.processors.engine.state.time.time_index import TimeIndex
from holdfast.processors.engine.state.time.timers import Timers
from holdfast.processors.engine.windows.by_columns import ColumnarWindows
from holdfast.processors.engine.windows.fixed import WindowStore
from holdfast.processors.engine.windows.sessions import Open, SessionStore
from holdfast.processors.engine.windows.stored import Closing

Plants = Mapping[str, Callable[[pytest.MonkeyPatch], None]]


# -- windows -----------------------------------------------------------------------------------------------------------


def _window_early(patch: pytest.MonkeyPatch) -> None:
    former = WindowStore.closing

    def early(self: WindowStore, limit: int) -> list[Closing]:
        self._stream.time_ms += 11
        try:
            return former(self, limit)
        finally:
            self._stream.time_ms -= 11

    patch.setattr(WindowStore, "closing", early)


def _late_in_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowStore, "_is_late", lambda self, end, known: False)


def _window_twice(patch: pytest.MonkeyPatch) -> None:
    former = WindowStore.load

    def forgets(self: WindowStore) -> Any:
        found = former(self)
        self._closed = "due/"
        return found

    patch.setattr(WindowStore, "load", forgets)


def _time_forgotten(patch: pytest.MonkeyPatch) -> None:
    former = WindowStore.load

    def forgets(self: WindowStore) -> Any:
        former(self)
        return Remembered()

    patch.setattr(WindowStore, "load", forgets)


def _left_windows_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "more_is_due", lambda tasks: False)


def _more_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowStore, "_more", lambda self, known, upto_ms, limit: [])


def _quiet_unsent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowStore, "_left_open", lambda self, entry: None)


WINDOWS: Plants = {
    "a window closes early": _window_early,
    "a late message counts in its window": _late_in_window,
    "a window that closed before a restart closes again": _window_twice,
    "a restart forgets the stream time": _time_forgotten,
    "windows that one commit leaves wait for the next message": _left_windows_wait,
    "windows without room in the record of their key stay open": _more_forgotten,
    "a window of a quiet key leaves without a result": _quiet_unsent,
}


# -- results of windows and sessions that fail ------------------------------------------------------------------------


def _failed_result_stays(patch: pytest.MonkeyPatch) -> None:
    former = ResultsAside.fails

    def undoes_nothing(self: ResultsAside, result: Any, raw_key: bytes, mark: Mark, error: BaseException) -> None:
        former(self, result, raw_key, self.mark(), error)

    patch.setattr(ResultsAside, "fails", undoes_nothing)


def _result_fails_its_message(patch: pytest.MonkeyPatch) -> None:
    def fails(self: ResultsAside, result: Any, raw_key: bytes, mark: Mark, error: BaseException) -> None:
        raise error

    patch.setattr(ResultsAside, "fails", fails)


#: Bugs in the handling of failed results. The tests of one step detect them; in the simulation, no result fails.
RESULTS: Plants = {
    "a result that failed leaves its outputs": _failed_result_stays,
    "a result that fails makes the message fail that closes its window": _result_fails_its_message,
}


# -- sessions ----------------------------------------------------------------------------------------------------------


def _not_merged(patch: pytest.MonkeyPatch) -> None:
    former = SessionStore._reached
    patch.setattr(SessionStore, "_reached", lambda self, *given: former(self, *given)[-1:])


def _swallowed_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStore, "_leave_index", lambda self, session, raw_key: None)


def _session_early(patch: pytest.MonkeyPatch) -> None:
    former = SessionStore._of_entry

    def early(self: SessionStore, entry: Any) -> Open | None:
        # With this bug, a session closes too early: at the end that it had when its index entry was written.
        session = former(self, entry)
        return session if session is None else session._replace(end=entry.end)

    patch.setattr(SessionStore, "_of_entry", early)


def _session_twice(patch: pytest.MonkeyPatch) -> None:
    former = SessionStore._settle

    def forgets(self: SessionStore, session: Open, due_ms: int, raw_key: bytes) -> None:
        former(self, session, due_ms, raw_key)
        self._keep(session._replace(entered=[due_ms, session.end]))

    patch.setattr(SessionStore, "_settle", forgets)


def _late_in_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStore, "_is_late", lambda self, due_ms, known: False)


def _more_sessions_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionStore, "_near", lambda self, known, upto_ms: iter(()))


SESSIONS: Plants = {
    "sessions that a message connects are not merged": _not_merged,
    "a merge leaves what it swallowed in the index": _swallowed_left,
    "a session closes early": _session_early,
    "a session closes twice": _session_twice,
    "a late message opens a session": _late_in_session,
    "a session without room in the record of its key is not reached": _more_sessions_missed,
}


# -- timers, and values with a TTL -------------------------------------------------------------------------------------


def _timer_lost(patch: pytest.MonkeyPatch) -> None:
    former = TimeIndex.due
    patch.setattr(TimeIndex, "due", lambda self, time_ms, limit: former(self, time_ms, limit)[-1:])


def _timer_twice(patch: pytest.MonkeyPatch) -> None:
    former = Timers.take

    def keeps(self: Timers, due: Any) -> bool:
        taken = former(self, due)
        timer = due.timer
        if taken and timer.clock == "stream" and timer.time % 5 == 0:
            self._state.write_own(due.message_key, f"{RESERVED}timers/{timer.name}", ["stream", timer.time + 1])
            self._indexes["stream"].enter(due.entry._replace(time_ms=timer.time + 1))
        return taken

    patch.setattr(Timers, "take", keeps)


def _expired_value_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expiries, "are_over", lambda self, key: False)


def _end_goes_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeclaredState, "overwritten_ms", lambda self, key: None)


def _timer_sees_later(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamTime, "begin_call", lambda self, timer_ms: None)


def _leaves_before_timers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskTimers, "reached_ms", property(lambda self: self._stream.time_ms))


def settled_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The bug: a restart between two due timers forgets which of them has fired. Few random runs detect it."""
    former = StreamTime.record

    def forgets(self: StreamTime) -> dict[str, Any]:
        return {name: each for name, each in former(self).items() if name != "settled"}

    patch.setattr(StreamTime, "record", forgets)


def _entry_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expiries, "forget", lambda self, key: None)


def _timer_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskTimers, "are_due", lambda self: False)


TIMERS: Plants = {
    "timers that are due together are lost but for one": _timer_lost,
    "a timer fires twice": _timer_twice,
    "a value is read after its end": _expired_value_read,
    "a late message brings the end of a value nearer": _end_goes_back,
    "a timer does not see a value that ended after its time": _timer_sees_later,
    "a value leaves before a timer that is due has seen it": _leaves_before_timers,
    "a value that is deleted keeps its end": _entry_stays,
    "timers fire with the next commit, not before the next message": _timer_late,
}


# -- windows and timers at a commit or an abort: only crashes and lost answers
# -- of the broker detect these bugs


def _places_survive_abort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskTime, "restore", lambda self: None)


def _offsets_tell(patch: pytest.MonkeyPatch) -> None:
    former = Committer._resolve

    def resolves(self: Committer, pending: commit.Commit, member: Any, why: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Committer, "_replay", lambda self, pending, member, why: None)
            former(self, pending, member, why)

    patch.setattr(Committer, "_resolve", resolves)


def _silent_timers_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskTimers, "fired", property(lambda self: False))


def _rows_survive_abort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnarWindows, "drop", lambda self: None)


COMMITS: Plants = {
    "windows that an aborted commit closed stay closed": _places_survive_abort,
    "windows by columns count what an aborted commit counted": _rows_survive_abort,
    "offsets tell whether a commit happened that moves none": _offsets_tell,
    "timers that fire without a message are not committed": _silent_timers_wait,
}
PLANTS: Plants = {**WINDOWS, **SESSIONS, **TIMERS, **COMMITS}
