"""The order in which a task processes several inputs: the record with the smallest event time is next.

    poll ──► add ──► [ buffers, one for each input ] ──► runs ──► process
                          │                                └── no runs: an input is empty and not read to its end
                          └── full: the input is paused until three quarters of its buffer are processed

A *head* is the first buffered record of an input. At equal times, the input that comes first in ``times_of`` is next.
The task waits for an input with an empty buffer, because the input's next record may be older than all heads. The wait
ends when the input is read to its end, or after ``wait_s`` seconds. Messages are therefore processed in the order of
their times, even after a restart with a backlog, or when state is rebuilt. Kafka Streams reads its inputs in the same
way (KIP-353, KIP-695).

A run has consecutive records of one input. If the times of two inputs alternate, a run has only one or two records, and
each run has a fixed cost. If a task's steps allow it, the task gets an ``InterleavedRun`` instead: records of all
inputs, and their order.

Invariants:
    - A buffer has only records after the task's positions. Buffers can be discarded: their records are read again.
    - Records of one input keep their order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

from holdfast.infra.kafka.records import Batch
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run

#: Maximum records in the buffer of one input; then the input is paused. One poll returns fewer records, so a buffer is
#: rarely empty while its input has more records. Pauses should be rare, because a resumed input must be fetched again.
BUFFERED_MAX = 10_000
#: Maximum bytes of keys and values in the buffer of one input; then the input is paused.
BUFFERED_BYTES_MAX = 16 << 20
#: Maximum records and bytes in the buffers of all inputs of a worker. Each input may use an equal part of both.
TOGETHER_MAX, TOGETHER_BYTES_MAX = 100_000, 64 << 20

#: Minimum and maximum records of an ``InterleavedRun``. With fewer records, a run would cost too much
#: for each record. The data of more records would not fit into the CPU caches.
WOVEN_MIN, WOVEN_MAX = 16, 256

#: A function that returns the event time of each record of a batch, in milliseconds since 1970.
TimesOf = Callable[[Batch], Sequence[int]]


@dataclass(slots=True)
class Piece:
    """A buffered batch whose records ``at`` to ``end`` - 1 are not processed yet.

    ``size`` is the bytes of the whole batch.
    """

    batch: Batch
    times: Sequence[int]
    at: int
    end: int
    size: int


@dataclass(slots=True)
class Buffer:
    """The records of one input that were polled but not processed yet. ``size`` is their bytes."""

    rank: int
    times_of: TimesOf
    pieces: deque[Piece] = field(default_factory=deque)
    records: int = 0
    size: int = 0
    #: Monotonic seconds since when other inputs wait for this input; None while no input waits for it.
    awaited_since: float | None = None

    def add(self, batch: Batch, end: int) -> None:
        """Buffers the first ``end`` records of a batch, and computes their event times."""
        self.append(batch, self.times_of(batch), end)

    def append(self, batch: Batch, times: Sequence[int], end: int) -> None:
        """Buffers the first ``end`` records of a batch whose event times are already computed."""
        size = sum(map(len, filter(None, chain(batch.keys, batch.values))))
        self.pieces.append(Piece(batch, times, 0, end, size))
        self.records += end
        self.size += size

    def advance(self, position: int) -> None:
        """Removes the processed records: those with offsets below ``position``."""
        while self.pieces:
            piece = self.pieces[0]
            at = bisect_left(piece.batch.offsets, position, piece.at, piece.end)
            self.records -= at - piece.at
            piece.at = at
            if at < piece.end:
                return
            self.size -= piece.size
            self.pieces.popleft()

    def clear(self) -> None:
        """Removes all records."""
        self.pieces.clear()
        self.records = self.size = 0
        self.awaited_since = None

    def is_full(self, records_max: int, bytes_max: int) -> bool:
        """Whether the buffer has reached a limit, so that the input has to be paused."""
        return self.records >= records_max or self.size >= bytes_max

    def is_nearly_empty(self, records_max: int, bytes_max: int) -> bool:
        """Whether at most a quarter of each limit is used, so that a paused input can be resumed."""
        return self.records <= records_max // 4 and self.size <= bytes_max // 4


class ReadingOrder:
    """Buffers the records of one task's inputs, and chooses the next records to process.

    Args:
        times_of: Maps each input topic to a function that returns the event times of a batch. At equal times, the topic
            that comes first in this mapping is next.
        wait_s: Maximum seconds to wait for an empty input that is not read to its end; None waits without limit.
        weaves: Whether ``runs`` may return records of several inputs as one ``InterleavedRun``.
    """

    def __init__(self, times_of: Mapping[str, TimesOf], wait_s: float | None = None, *, weaves: bool = False) -> None:
        self._buffers = {topic: Buffer(rank, each) for rank, (topic, each) in enumerate(times_of.items())}
        self._wait_s, self._weaves = wait_s, weaves
        #: Inputs that are paused because their buffers are full.
        self.paused: frozenset[str] = frozenset()

    def add(self, batch: Batch, end: int) -> None:
        """Buffers the first ``end`` records of a batch."""
        if end:
            self._buffers[batch.partition.topic].add(batch, end)

    def runs(
        self, positions: Mapping[str, int], most: int, now: float, is_ended: Callable[[str], bool]
    ) -> Sequence[Run | InterleavedRun]:
        """Returns the next records to process, in their order; empty while the task waits for an input.

        Args:
            positions: Maps each topic to the next offset to process.
            most: Maximum number of records.
            now: The current time, in monotonic seconds.
            is_ended: A function that returns whether a topic without buffered records is read to its end.
        """
        heads: list[Buffer] = []
        for topic, buffer in self._buffers.items():
            buffer.advance(positions[topic])
            if buffer.pieces:
                buffer.awaited_since = None
                heads.append(buffer)
        if not heads:
            self._await_none()
            return []
        if not self._complete(now, is_ended):
            return []
        # an interleaved run must have room for at least one record of each input
        if self._weaves and most >= WOVEN_MIN and 1 < len(heads) <= min(most, WOVEN_MAX):
            return [_woven(heads, min(most, WOVEN_MAX))]
        return _merged(heads, most)

    def _complete(self, now: float, is_ended: Callable[[str], bool]) -> bool:
        """Whether the task can process records now, and need not wait for an input with an empty buffer.

        The task does not wait for an input that is read to its end, or for which it has waited ``wait_s`` seconds.
        """
        complete = True
        for topic, buffer in self._buffers.items():
            if buffer.pieces:
                continue
            if is_ended(topic):
                buffer.awaited_since = None
                continue
            if buffer.awaited_since is None:
                buffer.awaited_since = now
            complete &= self._wait_s is not None and now - buffer.awaited_since >= self._wait_s
        return complete

    def _await_none(self) -> None:
        for buffer in self._buffers.values():
            buffer.awaited_since = None

    def awaited_for(self, now: float, seconds: float) -> list[str]:
        """Returns the input topics for which the task has waited at least this many seconds."""
        since = {topic: buffer.awaited_since for topic, buffer in self._buffers.items()}
        return [topic for topic, began in since.items() if began is not None and now - began >= seconds]

    def held_by(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """Maps each repartition topic in ``topics`` to the upstream tasks for which buffered messages wait.

        Empty in this class, which reads no repartition topics.
        """
        return {}

    @property
    def buffered(self) -> int:
        """The number of records in all buffers."""
        return sum(buffer.records for buffer in self._buffers.values())

    def buffered_of(self, topics: Iterable[str]) -> int:
        """Returns the number of records in the buffers of these inputs."""
        return sum(self._buffers[topic].records for topic in topics)

    def change_of_pauses(self, sharing: int = 1) -> tuple[list[str], list[str]]:
        """Returns the topics that the caller must pause now, and those that it must resume now.

        ``sharing`` is the number of the worker's inputs that share the memory limit.
        """
        most = min(BUFFERED_MAX, TOGETHER_MAX // sharing), min(BUFFERED_BYTES_MAX, TOGETHER_BYTES_MAX // sharing)
        pause = [topic for topic, each in self._buffers.items() if topic not in self.paused and each.is_full(*most)]
        resume = [topic for topic in self.paused if self._buffers[topic].is_nearly_empty(*most)]
        self.paused = (self.paused | frozenset(pause)) - frozenset(resume)
        return pause, resume

    def flows(self) -> None:
        """Forgets which inputs were paused. Must be called after all inputs were resumed or paused together."""
        self.paused = frozenset()

    def clear(self) -> None:
        """Discards the buffered records, because the caller reads them again.

        Paused inputs stay paused until the next call of ``change_of_pauses``.
        """
        for buffer in self._buffers.values():
            buffer.clear()


def _merged(heads: list[Buffer], most: int) -> list[Run]:
    """Returns runs (consecutive records of one input) in the order of their times.

    Ends after ``most`` records, or when one buffer is empty.
    """
    cursors = {buffer.rank: (0, buffer.pieces[0].at) for buffer in heads}
    by_rank = {buffer.rank: buffer for buffer in heads}
    runs: list[Run] = []
    left = most

    def head(rank: int) -> tuple[int, int]:
        index, at = cursors[rank]
        return by_rank[rank].pieces[index].times[at], rank

    live = list(by_rank)
    while left and live:
        order = sorted(map(head, live))
        rank, bound = order[0][1], order[1] if len(order) > 1 else None
        index, first = cursors[rank]
        piece = by_rank[rank].pieces[index]
        last = reach(piece, first, min(piece.end, first + left), bound, rank)
        runs.append(Run(piece.batch, first, last))
        left -= last - first
        if last < piece.end:
            cursors[rank] = (index, last)
        elif index + 1 < len(by_rank[rank].pieces):
            cursors[rank] = (index + 1, by_rank[rank].pieces[index + 1].at)
        else:
            break  # This input's next record is not polled yet. It may be older than all other records.
    return runs


def _woven(heads: list[Buffer], most: int) -> Run | InterleavedRun:
    """Returns the next records of all inputs, interleaved in the order of their times; at most ``most`` in total.

    Records of one input keep their order: if a record is earlier than its predecessor, it is sorted by the
    predecessor's time. Each input contributes at most an equal share of the records. The result ends at the last record
    of an input that has used up its share. The next record of this input may be older than later records of other
    inputs.
    """
    share = most // len(heads)
    pieces = [(buffer.pieces[0], buffer.pieces[0].at) for buffer in heads]
    taken = [_latest_so_far(piece.times[at : min(piece.end, at + share)]) for piece, at in pieces]
    time_ms, rank = min((times[-1], rank) for rank, times in enumerate(taken))
    parts, keys = [], []
    for each, (piece, at) in enumerate(pieces):
        times = taken[each]
        count = bisect_right(times, time_ms) if each <= rank else bisect_left(times, time_ms)
        if count:
            parts.append(Run(piece.batch, at, at + count))
            keys += times[:count]
    if len(parts) == 1:
        return parts[0]
    return InterleavedRun(tuple(parts), sorted(range(len(keys)), key=keys.__getitem__))


def _latest_so_far(times: Sequence[int]) -> list[int]:
    ordered = sorted(times)
    return ordered if ordered == times else list(accumulate(times, max))


def reach(piece: Piece, first: int, most: int, bound: tuple[int, int] | None, rank: int) -> int:
    """Decides how many records of ``piece`` are processed before the next record of another input.

    Returns the index after the last of these records. It is at least ``first`` + 1, so one record is always processed,
    and at most ``most``. ``rank`` is the number of the piece's input. ``bound`` has the time of the other input's next
    record, and the number of that input; None if no other input has a record. At equal times, the input with the
    smaller number comes first.
    """
    if bound is None:
        return most
    last, times = first + 1, piece.times
    time_ms, other = bound
    if rank < other:
        while last < most and times[last] <= time_ms:
            last += 1
    else:
        while last < most and times[last] < time_ms:
            last += 1
    return last
