"""Sessions: windows that grow with each message of a key, and end when a gap passes without a message.

    messages of a key   ──x──x───x────────────x──x──►      gap ├────┤
    sessions              ├──────┤            ├──┤
                                     x                     a message within a gap of both sessions merges them
                          ├──────────────────────┤

A session is due when a gap has passed after its end. The grace is not included in this time. A message that extends a
session does not move the session's entry in the index by time. An entry that is due before its session is written
again, with the session's present end. A session therefore writes at most one entry per gap.

Invariants:
    - Open sessions of a key that still accept messages are more than a gap apart. A message within a gap of several
      sessions merges these sessions.
    - When two sessions are merged, one of them is deleted with its record and its index entry.
    - A closed session accepts no messages. It is stored in the same form as a closed window of another kind.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.processors.engine.aggregates.key_time import OPEN_KEPT, KeyTime
from holdfast.processors.engine.state.ranges import state_keys, state_keys_between
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import StreamTime
from holdfast.processors.engine.state.time.window_keys import (
    INDEXES,
    OWN_KEY,
    SESSION,
    SESSIONS,
    DueEntry,
    due_entry,
    due_key,
    opened_of,
    session_key,
    window_key,
)
from holdfast.processors.engine.windows.spec import WindowSpec
from holdfast.processors.engine.windows.stored import Closing, MessagePlace, OwedResult, Result, StoredWindows

#: Maximum number of due index entries that ``due_at`` reads. If there are this many, ``due_at`` returns True without a
#: check of the sessions.
LOOKED_AT = 100
#: Open sessions of a key that are not in the key's record are read from the store. One read returns at most the first
#: number of them. One message closes at most the second number of them.
READ_AT_ONCE, MORE_MAX = 4, 100_000


class Open(NamedTuple):
    """An open session.

    Attributes:
        opened: The event time of the message that opened the session. This time identifies the session in the store. It
            never changes, but ``start`` may change.
        start: The event time of its earliest message.
        end: The event time of its latest message, plus 1.
        stored: Its aggregates, in stored form.
        entered: The time and the session end in its index entry; None if it has no index entry.
    """

    opened: int
    start: int
    end: int
    stored: dict[str, Any]
    entered: list[int] | None = None


class SessionStore(StoredWindows):
    """The sessions of one step in one task."""

    def __init__(self, spec: WindowSpec, state: StoreState, stream: StreamTime, place: MessagePlace) -> None:
        super().__init__(spec, state, stream, place)
        # An index entry can be due although its session is still open. So an entry before the position ``_closed`` in
        # the index is not always about a closed session; ``_may_leave`` decides whether it may be deleted.
        self._closes = False
        state.scattered = (*INDEXES, *SESSIONS)
        #: Sessions that ``closing`` has returned, but for which ``closed`` was not called yet: index entry, key,
        #: session.
        self._closing: deque[tuple[str, bytes, Open]] = deque()

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its session and returns the results to send now.

        Raises the errors of ``StoredWindows.take``.
        """
        spec, state, stream = self.spec, self._state, self._stream
        if len(raw_key) > self.key_bytes_max:
            raise self._key_too_large(raw_key)
        if time_ms < 0:
            stream.check(time_ms, 0)
        state.message_key, state.timestamp_ms = raw_key, time_ms
        known = self._of_key()
        judged_by = known if self._by_key else None
        reached = self._reached(known, time_ms, judged_by)
        updated: list[Result] = []
        if not reached and self._is_late(time_ms + 1 + spec.duration_ms, judged_by):
            now_ms = stream.ends_ms if judged_by is None else known.time
            self._be_late(value, key, time_ms, [(time_ms, time_ms + 1)], now_ms, whole=True)
        else:
            made = self._grown(reached, value, time_ms, raw_key)
            if [(each.start, each.opened) for each in reached] != [(made.start, made.opened)]:
                gone = {each.opened for each in reached}
                left = [each for each in known.open if each[1] not in gone]
                if known.more is None or made.opened > known.more[1]:
                    insort(left, [made.start, made.opened])
                else:  # the key's record does not list this session
                    known.more = [min(known.more[0], made.opened), known.more[1]]
                known.open = left
            if not spec.final:
                updated.append((spec.aggregation.result(made.start, made.end, made.stored), made.start))
        return self._key_moves(known, raw_key, time_ms) or updated

    def _reached(self, known: KeyTime, time_ms: int, judged_by: KeyTime | None) -> list[Open]:
        """Returns the sessions to which a message of time ``time_ms`` belongs, sorted by start.

        These are the sessions within a gap of this time that still accept messages.
        """
        gap_ms, opens = self.spec.duration_ms, known.open
        at = bisect_right(opens, [time_ms + gap_ms + 1])
        found = self._taking((opened for _, opened in reversed(opens[:at])), time_ms, judged_by)
        nearer = bisect_right(opens, [time_ms - gap_ms + 1])
        if known.more is not None and not (nearer and opens[nearer - 1][1] > known.more[1]):
            found += self._taking(self._near(known, time_ms + gap_ms), time_ms, judged_by)
        by_name = {each.opened: each for each in found if each.start <= time_ms + gap_ms}
        return sorted(by_name.values(), key=attrgetter("start"))

    def _taking(self, names: Iterable[int], time_ms: int, judged_by: KeyTime | None) -> list[Open]:
        """Returns the sessions in ``names`` that end at most a gap before ``time_ms`` and still accept messages.

        A name is the session's opening time. The names must be sorted with the newest first, because the scan stops at
        the first session that ended too early.
        """
        gap_ms, found = self.spec.duration_ms, list[Open]()
        for opened in names:
            session = self._session(opened)
            if session is None or self._is_over(session.end + gap_ms, judged_by):
                continue  # a command has deleted the session, or the next commit closes it
            if session.end - 1 + gap_ms < time_ms:
                break
            found.append(session)
        return found

    def _near(self, known: KeyTime, upto_ms: int) -> Iterator[int]:
        """Yields the opening times of open sessions that are not in the key's record, newest first.

        All opening times except the first are at most ``upto_ms``; the first may be later.
        """
        first, last = known.more
        raw_key = self._state.message_key
        # The first session that was opened after ``upto_ms`` is included, too. Its start may be earlier than its
        # opening time, because a late message may have extended it to the past.
        behind = state_keys_between(self._state, raw_key, session_key(upto_ms), session_key(last + 1), limit=1)
        yield from (opened_of(place) for place, _ in behind)
        begin, before = session_key(first).encode(), session_key(min(upto_ms, last) + 1).encode()
        while True:
            with closing(state_keys(self._state, raw_key, begin, before, reverse=True)) as found:
                names = [opened_of(place.decode()) for place, _ in islice(found, READ_AT_ONCE)]
            yield from names
            if len(names) < READ_AT_ONCE:
                return
            before = session_key(names[-1]).encode()

    def _is_over(self, due_ms: int, known: KeyTime | None) -> bool:
        """Whether an open session accepts no more messages: its end, the gap and the grace have passed."""
        return self._is_late(due_ms, None) or (known is not None and self._is_closed(due_ms, known))

    def _session(self, opened: int) -> Open | None:
        """Reads the current key's open session with this opening time; None if there is no such session."""
        stored = self._state.get(session_key(opened))
        if stored is None:
            return None
        kept = stored.pop(SESSION)
        return Open(opened, kept["start"], kept["end"], stored, kept["entered"])

    def _grown(self, reached: Sequence[Open], value: Any, time_ms: int, raw_key: bytes) -> Open:
        """Returns the session that contains the message.

        This is a new session, or the result of merging all sessions within a gap of the message (``reached``).
        """
        aggregation = self.spec.aggregation
        if not reached:
            made = Open(time_ms, time_ms, time_ms + 1, aggregation.folded(None, value, time_ms))
        else:
            # The message is added to the last session that began before it. A later merge then combines values in the
            # order of event times.
            taker = max(bisect_right([each.start for each in reached], time_ms) - 1, 0)
            stored: Any = None
            for number, each in enumerate(reached):
                part = aggregation.folded(each.stored, value, time_ms) if number == taker else each.stored
                stored = part if stored is None else aggregation.merged(stored, part)
            first, end = reached[0], max(time_ms + 1, *(each.end for each in reached))
            made = Open(first.opened, min(time_ms, first.start), end, stored, first.entered)
            for each in reached[1:]:
                self._state.delete(session_key(each.opened))
                self._leave_index(each, raw_key)
        if made.entered is None:
            made = self._entered_at(made, max(made.end + self.spec.duration_ms, self._first_ms), raw_key)
        self._keep(made)
        return made

    def _keep(self, session: Open) -> None:
        about = {"start": session.start, "end": session.end, "entered": session.entered}
        self._set(session_key(session.opened), {**session.stored, SESSION: about})

    def _entered_at(self, session: Open, due_ms: int, raw_key: bytes) -> Open:
        """Writes an index entry for the session's present end.

        Returns the session with ``entered`` set to this entry.
        """
        self._enter(due_ms, session.opened, session.end, raw_key)
        return session._replace(entered=[due_ms, session.end])

    def _leave_index(self, session: Open, raw_key: bytes) -> None:
        if session.entered is not None:
            self._state.message_key = OWN_KEY
            self._state.delete(due_key(session.entered[0], session.opened, session.entered[1], raw_key))
            self._state.message_key = raw_key

    def _key_moves(self, known: KeyTime, raw_key: bytes, time_ms: int) -> Sequence[Result]:
        """Stores the key's record after a message. Returns the final results of sessions that the message closes.

        With closing strategy ``key``, a message with a new largest event time of its key may close sessions of the key.
        With ``partition``, a message closes no session.
        """
        results: list[Result] = []
        if self._by_key:
            known.take(time_ms, self._stream.cap_ms)
            for session in self._passed(known):
                if self.spec.final:
                    result = self.spec.aggregation.due(session.start, session.end, session.stored)
                    results.append(OwedResult(result, session.start))
                self._close(known, session, raw_key)
        self._keep_open(known)
        return results

    def _passed(self, known: KeyTime) -> list[Open]:
        """Returns the open sessions of the key that the key's largest event time closes, sorted by start."""
        found: list[Open] = []
        if known.more is not None:
            first, last = known.more
            upto_ms = min(last, known.time - self.spec.grace_ms - self.spec.duration_ms)
            if first <= upto_ms:
                after, before = session_key(first)[:-1], session_key(upto_ms + 1)
                places = state_keys_between(self._state, self._state.message_key, after, before, MORE_MAX)
                found = list(self._due_sessions((opened_of(place) for place, _ in places), known))
        found += self._due_sessions((opened for _, opened in known.open), known)
        by_name = {each.opened: each for each in found}
        return sorted(by_name.values(), key=attrgetter("start")) if len(by_name) > 1 else found[:1]

    def _due_sessions(self, names: Iterable[int], known: KeyTime) -> Iterator[Open]:
        for opened in names:
            session = self._session(opened)
            if session is None:
                continue  # a command has deleted the session
            if not self._is_closed(session.end + self.spec.duration_ms, known):
                return  # All later sessions are due later, too.
            yield session

    def _keep_open(self, known: KeyTime) -> None:
        """Stores the key's record with its newest open sessions.

        Range reads find older open sessions, which are not listed in the record.
        """
        if len(known.open) > OPEN_KEPT:
            names = [opened for _, opened in known.open[:-OPEN_KEPT]] + (known.more or [])
            known.more, known.open = [min(names), max(names)], known.open[-OPEN_KEPT:]
        self._keep_time(known)

    def _close(self, known: KeyTime, session: Open, raw_key: bytes) -> None:
        """Closes a session of the key: it is stored as a closed window and removed from the key's open sessions."""
        due_ms = session.end + self.spec.duration_ms
        self._settle(session, max(due_ms, self._first_ms), raw_key)
        self._forget_open(known, session.opened)

    def _forget_open(self, known: KeyTime, opened: int) -> None:
        """Removes a session from the open sessions in the key's record in memory. The caller must store the record."""
        known.open = [each for each in known.open if each[1] != opened]
        if known.more is not None and (opened == known.more[0] or not known.open):
            first, last = known.more
            after, before = session_key(first)[:-1], session_key(last + 1)
            left = state_keys_between(self._state, self._state.message_key, after, before, limit=1)
            known.more = [opened_of(left[0][0]), last] if left else None

    def reached(self) -> list[tuple[int, int, dict[str, Any] | None]]:
        """Returns the sessions of the current key that the key's largest event time closes.

        Each item has two numbers that identify the session (opening time and end), and the session's result.
        """
        made = self.spec.aggregation.due
        passed = self._passed(self._of_key())
        return [(each.opened, each.end, made(each.start, each.end, each.stored)) for each in passed]

    def close_one(self, first: int, second: int) -> None:
        """Closes the session with the opening time ``first``. The caller has sent the session's result before."""
        known, session = self._of_key(), self._session(first)
        if session is not None:
            self._close(known, session, self._state.message_key)
        self._keep_open(known)

    def reach_key(self) -> None:
        """Stores the key's record. The caller has sent all results that ``reached`` returned before."""
        self._keep_open(self._of_key())

    def _settle(self, session: Open, due_ms: int, raw_key: bytes) -> None:
        """Deletes the record and the index entry of an open session.

        Writes the record and the index entry of a closed window.
        """
        self._leave_index(session, raw_key)
        self._enter(due_ms, session.start, session.end, raw_key)
        self._state.delete(session_key(session.opened))
        self._set(window_key(session.start, session.end), session.stored)

    # -- methods called with each commit ---------------------------------------------------------------------------

    def closing(self, limit: int) -> list[Closing]:
        """Returns the next sessions to close, in the order of their index entries. Reads at most ``limit`` entries.

        A session declared with ``current()`` is also closed here, but without a result, so that its index entry gets
        the time of the session's real end. If a session has grown and is not due yet, its index entry is written again
        for its present end. With closing strategy ``key``, messages of a key normally close its sessions. The result
        then has only sessions whose retention has ended before such a message came.
        """
        self._closing.clear()
        spec, found = self.spec, []
        for place in self._due(limit, self._stream.ends_ms):
            entry = due_entry(place)
            raw_key, session, result = entry.message_key, self._of_entry(entry), None
            if session is not None:
                due_ms = session.end + spec.duration_ms
                if due_ms + self._after_ms > self._stream.ends_ms:
                    self._leave_index(session, raw_key)
                    self._keep(self._entered_at(session, due_ms, raw_key))
                else:
                    self._closing.append((place, raw_key, session))
                    if spec.final:
                        result = spec.aggregation.due(session.start, session.end, session.stored)
            found.append(Closing(place, raw_key, result, 0 if session is None else session.start))
        self._state.keep_message()
        return found

    def due_at(self, time_ms: int) -> bool:
        """Whether a session would close if stream time were ``time_ms``."""
        places = self._due(LOOKED_AT, time_ms)
        limit_ms = time_ms - self._after_ms - self.spec.duration_ms
        sessions = (self._of_entry(due_entry(place)) for place in places)
        return len(places) == LOOKED_AT or any(each is not None and each.end <= limit_ms for each in sessions)

    def closed(self, closing: Closing) -> None:
        """Closes all sessions up to ``closing``. The caller has sent the results of these sessions before."""
        state, time_ms = self._state, max(self._stream.time_ms, 0)
        while self._closing and self._closing[0][0] <= closing.place:
            place, raw_key, session = self._closing.popleft()
            state.point_at(raw_key, time_ms)
            # The retention of a closed session begins at its real end. But its new index entry must not be earlier than
            # its old entry. Commits may already have passed earlier positions of the index, and would never delete the
            # session.
            due_ms = max(session.end + self.spec.duration_ms, due_entry(place).time_ms)
            back = due_key(due_ms, session.start, session.end, raw_key) < place
            self._settle(session, due_ms + back, raw_key)
            known = self._of_key()
            self._forget_open(known, session.opened)
            self._keep_open(known)
        state.keep_message()
        super().closed(closing)

    def _may_leave(self, entry: DueEntry) -> bool:
        """Whether the session of an index entry is closed, so that the index entry may be deleted."""
        return self._of_entry(entry) is None

    def _of_entry(self, entry: DueEntry) -> Open | None:
        """Returns the open session of an index entry; None if the session does not exist or has a newer index entry."""
        self._state.point_at(entry.message_key, max(self._stream.time_ms, 0))
        session = self._session(entry.start)
        return session if session is not None and session.entered == [entry.time_ms, entry.end] else None
