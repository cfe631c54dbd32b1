"""The order in which a task processes several inputs, some of them repartition topics: by event time, if possible.

    orders (source)      o50 o60                      o50 must wait, because task p1 may still send an older price
    prices (regrouped)   p51 p52 W(p0)=52 │ …         watermarks: p0 at 52, p1 at 20  ──► messages after 20 may come

Several upstream tasks write to a repartition topic. Its first buffered message (*head*) is therefore not always its
oldest message. A *watermark* is a record with the stream time of an upstream task. The *low* of an input is the
smallest time of its buffered messages and of the messages that upstream tasks may still send (``heard``). A head is
*safe* if the lows of all other inputs are later. The safe head with the smallest time is next.

If no head is safe, some repartition topic has a younger message before an older message. The younger message must be
processed first, because offsets are committed in order. But if its input is joined with other inputs (``rights``),
older messages of these inputs are processed before it. Otherwise the join would not find their rows. A row that
comes too early does no harm in an as-of join, which ignores rows that are later than the message. An input in
``rights`` may be joined with a third input, which is then processed before both::

    alerts  a52 a40   ──joined with──►  flights  f50 f42   ──joined with──►  weather  w45 w41
                                                     order: w45 w41, f50 f42, a52 a40

If each of two streams is joined with the other, no order fits both. The head with the smallest time is then next. If
each topic has one upstream task, the order is simply by the times of the heads.

Invariants:
    - Watermarks do not move stream time past the next message of an input that is not read to its end.
    - No deadlock: while a message waits for a watermark, the input with that watermark is not paused. If that input's
      buffer is full, its messages are processed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.reading.grouped_stream_time import InHand
from holdfast.processors.engine.runtime.reading.interleaved import Run
from holdfast.processors.engine.runtime.reading.reading_order import Buffer, Piece, ReadingOrder, TimesOf, reach
from holdfast.processors.engine.runtime.reading.upstream_times import NEVER, WatermarksAhead
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME

#: A place in the reading order: a time in milliseconds, and the number of an input. At equal times, the input with the
#: smaller number is next.
_Place = tuple[int, int]
_LAST: _Place = (NEVER + 1, 0)
#: The lower bound for the next message of an input about which nothing is known yet. It is less than all times.
_UNKNOWN = NO_TIME - 1


@dataclass(slots=True)
class _Lows:
    """For any record of an input's buffer, finds the smallest event time from this record to the buffer's end.

    The buffer consists of pieces. A piece is one batch of records.
    """

    #: Maps a piece's number to a list. For each record of the piece, the list has the smallest time from it to the
    #: piece's end.
    of_piece: dict[int, list[int]] = field(default_factory=dict)
    #: The pieces whose smallest time is less than all times in later pieces, each as a pair: the piece's number, and
    #: its smallest time.
    chain: list[tuple[int, int]] = field(default_factory=list)
    #: The number of the first buffered piece. ``count`` is the number that the next added piece gets.
    first: int = 0
    count: int = 0

    def add(self, lows: list[int]) -> None:
        while self.chain and self.chain[-1][1] >= lows[0]:
            self.chain.pop()
        self.chain.append((self.count, lows[0]))
        self.of_piece[self.count] = lows
        self.count += 1

    def drop_to(self, first: int) -> None:
        for number in range(self.first, first):
            del self.of_piece[number]
        self.first = first
        if self.chain and self.chain[0][0] < first:
            del self.chain[: bisect_left(self.chain, (first, _UNKNOWN))]

    def behind(self, number: int) -> int:
        """Returns the smallest time of all pieces after the piece with this number."""
        at = bisect_left(self.chain, (number + 1, _UNKNOWN))
        return self.chain[at][1] if at < len(self.chain) else NEVER

    def clear(self) -> None:
        self.of_piece.clear()
        self.chain.clear()
        self.first = self.count


class _Bound(NamedTuple):
    """A lower bound for an input's messages that are not buffered yet: none of them is earlier than ``time_ms``."""

    time_ms: int
    #: Whether other inputs must wait for the messages that are not buffered yet. False after ``wait_s`` seconds of
    #: waiting.
    holds: bool


@dataclass(slots=True)
class _Cursor:
    """A read position in the buffer of one input. The record at this position is called the head."""

    topic: str
    buffer: Buffer
    lows: _Lows | None
    bound: _Bound
    #: Topics of the inputs with which this input is joined.
    rights: frozenset[str]
    full: bool
    index: int = 0
    at: int = 0

    @property
    def piece(self) -> Piece:
        return self.buffer.pieces[self.index]

    @property
    def has_head(self) -> bool:
        return self.index < len(self.buffer.pieces)

    @property
    def head(self) -> _Place:
        return self.piece.times[self.at], self.buffer.rank

    @property
    def buffered_low(self) -> int:
        """The smallest time of the buffered messages.

        For a source topic, this is the time of the first message, because the messages of a source keep their order.
        """
        if not self.has_head:
            return NEVER
        if self.lows is None:
            return self.piece.times[self.at]
        number = self.lows.first + self.index
        return min(self.lows.of_piece[number][self.at], self.lows.behind(number))

    @property
    def low(self) -> _Place:
        if self.lows is None and self.has_head:
            return self.head
        low, bound = self.buffered_low, self.bound
        return (min(low, bound.time_ms) if bound.holds else low), self.buffer.rank

    @property
    def next_ms(self) -> int:
        """The smallest time of the buffered messages.

        For a source topic with an empty buffer, it is the lower bound of the times of its next messages.
        """
        if self.lows is None and not self.has_head and self.bound.holds:
            return self.bound.time_ms
        return self.buffered_low

    @property
    def goes(self) -> bool:
        """Whether the head (first buffered record) may be processed although another input may have older messages.

        True for a source topic, for a full buffer, and after ``wait_s`` seconds of waiting. Also true if no message can
        still arrive in this input that is older than the buffered messages. False for an empty buffer.
        """
        if self.lows is None or not self.has_head:
            return self.has_head
        return self.full or not self.bound.holds or self.buffered_low <= self.bound.time_ms

    def take(self, last: int) -> Run:
        piece, first = self.piece, self.at
        self.at = last
        if last == piece.end:
            self.index += 1
            self.at = self.piece.at if self.has_head else 0
        return Run(piece.batch, first, last)

    def reach_low(self, most: int, bound: _Place) -> int:
        """Returns the index up to which records must be taken, so that no message from before ``bound`` is left.

        The index is at most the end of the piece, and at most ``most`` records are taken.
        """
        piece = self.piece
        end = min(piece.end, self.at + most)
        if self.lows is None:
            return self.at + 1
        number, rank = self.lows.first + self.index, self.buffer.rank
        if (self.lows.behind(number), rank) < bound:
            return end
        found = (bisect_right if rank < bound[1] else bisect_left)(self.lows.of_piece[number], bound[0], self.at, end)
        return found if found > self.at else end

    def reach(self, most: int, bound: _Place) -> int:
        """Returns the index of the first record at or after ``bound``, so that the caller takes the records before it.

        The head (first buffered record) is always taken, and at most ``most`` records are taken.
        """
        return reach(self.piece, self.at, min(self.piece.end, self.at + most), bound, self.buffer.rank)


class GroupedOrder(ReadingOrder):
    """Buffers the records of one task's inputs, and chooses the next records.

    At least one input is a repartition topic.

    Args:
        times_of: Maps each input topic to a function that returns the event times of a batch. At equal times, the topic
            that comes first in this mapping is next.
        heard: Maps each repartition topic to the watermarks (stream times) of its upstream tasks.
        rights: Maps each input topic to the topics with which it is joined.
        wait_s: Maximum seconds to wait for an input; None waits without limit.
    """

    def __init__(
        self,
        times_of: Mapping[str, TimesOf],
        heard: Mapping[str, WatermarksAhead],
        rights: Mapping[str, frozenset[str]],
        wait_s: float | None = None,
    ) -> None:
        super().__init__(times_of, wait_s)
        self.heard = heard
        self._rights = {topic: rights.get(topic, frozenset()) for topic in times_of}
        self._lows = {topic: _Lows() for topic in heard}
        #: The smallest times in the buffers. ``runs`` and ``add`` update them. They are unknown before the first call
        #: of ``runs``.
        self.in_hand = InHand(all_ms=_UNKNOWN)
        #: The smallest time of all buffered messages at the last call of ``runs``.
        self._oldest_ms = NEVER
        #: The largest event time that has arrived in any input.
        self.newest_ms = NO_TIME

    def add(self, batch: Batch, end: int) -> None:
        """Buffers the first ``end`` records of a batch, and applies the watermarks among them."""
        topic = batch.partition.topic
        if not end:
            return
        if topic in self.heard:
            times, lows = self.heard[topic].hear(batch, end)
            self._buffers[topic].append(batch, times, end)
            self._lows[topic].add(lows)
            self.in_hand.grouped_ms = min(self.in_hand.grouped_ms, lows[0])
        else:
            super().add(batch, end)
            lows = [self._buffers[topic].pieces[-1].times[0]]
        self.newest_ms = max(self.newest_ms, *self._buffers[topic].pieces[-1].times[:end])
        self.in_hand.all_ms = min(self.in_hand.all_ms, lows[0])

    def clear(self) -> None:
        """Discards the buffered records, because the caller reads them again.

        Paused inputs stay paused until the next call of ``change_of_pauses``.
        """
        super().clear()
        for topic, lows in self._lows.items():
            lows.clear()
            self.heard[topic].begin()
        self.newest_ms = NO_TIME
        self.in_hand.all_ms, self.in_hand.grouped_ms = _UNKNOWN, EVENT_TIME_END_MS

    def runs(self, positions: Mapping[str, int], most: int, now: float, is_ended: Callable[[str], bool]) -> list[Run]:
        """Returns the next records in their order, at most ``most``; empty while the task waits for an input."""
        cursors = [self._cursor(topic, positions[topic], now, is_ended) for topic in self._buffers]
        self.in_hand.all_ms = min(each.next_ms for each in cursors)
        if self.in_hand.all_ms >= self.in_hand.ahead_ms:
            self.in_hand.ahead_ms = NO_TIME
        self._oldest_ms = min(each.buffered_low for each in cursors)
        self.in_hand.grouped_ms = min(each.buffered_low for each in cursors if each.lows is not None)
        runs, left = list[Run](), most
        while left:
            chosen = _next(cursors, left)
            if chosen is None:
                break
            cursor, last, in_order = chosen
            if cursor.lows is None and not in_order:
                self.in_hand.ahead_ms = max(self.in_hand.ahead_ms, cursor.head[0])
            runs.append(cursor.take(last))
            left -= runs[-1].last - runs[-1].first
        self._note_waits(cursors, now)
        return runs

    def held_by(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """Maps each repartition topic in ``topics`` to the upstream tasks for which buffered messages wait.

        These tasks may still send messages that are older than all buffered messages.
        """
        return {topic: self.heard[topic].behind(self._oldest_ms) for topic in topics if topic in self.heard}

    def _cursor(self, topic: str, position: int, now: float, is_ended: Callable[[str], bool]) -> _Cursor:
        buffer, lows = self._buffers[topic], self._lows.get(topic)
        before = len(buffer.pieces)
        buffer.advance(position)
        if lows is not None:
            lows.drop_to(lows.first + before - len(buffer.pieces))
        ended, heard = is_ended(topic), self.heard.get(topic)
        reached = heard.reached(position) if heard else NEVER if ended else _UNKNOWN
        since, most = buffer.awaited_since, self._wait_s
        holds = most is None or (most > 0 and (since is None or now - since < most))
        made = _Cursor(topic, buffer, lows, _Bound(reached, holds), self._rights[topic], topic in self.paused)
        made.at = made.piece.at if made.has_head else 0
        return made

    def _note_waits(self, cursors: list[_Cursor], now: float) -> None:
        """Stores for each input the time since which other inputs wait for it; None if no input waits for it."""
        for each in cursors:
            others = [other.head for other in cursors if other is not each and other.has_head]
            behind = min(each.buffered_low, each.bound.time_ms) if each.lows or not each.has_head else NEVER
            held = bool(others) and (behind, each.buffer.rank) < min(others)
            if not held or each.buffered_low <= each.bound.time_ms:
                each.buffer.awaited_since = None
            elif each.buffer.awaited_since is None:
                each.buffer.awaited_since = now


class _Next(NamedTuple):
    """The next records: their input, and the index after the last record to take."""

    cursor: _Cursor
    last: int
    #: Whether these records are in time order: the messages of other inputs that follow all have later times.
    in_order: bool


def _next(cursors: list[_Cursor], most: int) -> _Next | None:
    """Chooses the next records, which are from one input.

    Returns None if the task must wait, because an input may still get older messages.
    """
    by_low = sorted(cursors, key=lambda each: each.low)
    first, second = by_low[0], by_low[1].low
    bounds = [(each, second if each is first else first.low) for each in cursors if each.has_head]
    safe = [(each, bound) for each, bound in bounds if each.head < bound]
    if safe:
        each, bound = min(safe, key=lambda one: one[0].head)
        return _Next(each, each.reach(most, bound), in_order=True)
    return _before_older_ones(cursors, first, second, most) if first.goes else None


def _before_older_ones(cursors: list[_Cursor], chosen: _Cursor, bound: _Place, most: int) -> _Next | None:
    """Chooses the next records if no head (first buffered record of an input) is safe to process next.

    The input ``chosen`` has an older message, from before ``bound``, behind its head. Records of one topic keep their
    order, so the head is processed first. But if the head is joined with messages of other inputs, these messages are
    processed before the head. Returns None if the task must wait for such messages.
    """
    passed = list[_Cursor]()
    while chosen not in passed:
        rights = [each for each in cursors if each.topic in chosen.rights]
        before = [each for each in rights if each.low < chosen.head]
        if not before:
            last = chosen.reach(most, min((each.low for each in rights), default=_LAST))
            return _Next(chosen, min(last, chosen.reach_low(most, bound)), in_order=False)
        passed.append(chosen)
        chosen, bound = min(before, key=lambda each: each.low), chosen.head
        if not chosen.goes:
            return None
    circle = sorted(passed[passed.index(chosen) :], key=lambda each: each.head)
    return _Next(circle[0], circle[0].reach(most, circle[1].head), in_order=False)
