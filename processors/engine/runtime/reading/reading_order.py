"""The order in which a task reads several inputs: the head with the smallest event time next.

    poll ──► add ──► [ buffers, one for each input ] ──► runs ──► process
                          │                                └── none: an input is empty and not read to its end
                          └── full: the input is paused until three quarters of them are processed

A head is the first buffered record of an input. If times are equal, the input that comes first in ``times_of`` is next.
An empty input is waited for, because its next record may be older than all heads; the wait ends when the input is read
to its end, or after ``wait_s`` seconds. So a restart with a backlog, and a rebuild, process messages in the order of
their times, however fast Kafka delivers each input. Kafka Streams reads its inputs in the same way (KIP-353, KIP-695).

Inputs that take turns would give runs of one or two records, and a run costs as much as several messages. If a task's
steps allow it, the task gets ``InterleavedRun`` records instead: a piece of each input, and the order of all records.

Invariants:
    - The task's positions say what is processed; a buffer holds what was read behind them. Nothing here is state.
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

#: Records in an input's buffer at which the input is paused: more than one poll returns, so that a buffer is rarely
#: empty while its input has more. The client library fetches a paused input again, from where it was paused.
BUFFERED_MAX = 10_000
#: Bytes of keys and values of an input in its buffer from which on the input is paused.
BUFFERED_BYTES_MAX = 16 << 20
#: The same limit for all inputs of a worker together: each input has an equal share.
TOGETHER_MAX, TOGETHER_BYTES_MAX = 100_000, 64 << 20

#: Number of records of all inputs in one interleaved run: fewer are not worth the cost, more leave the CPU caches.
WOVEN_MIN, WOVEN_MAX = 16, 256

#: Event times of a batch, in milliseconds since 1970, one for each record.
TimesOf = Callable[[Batch], Sequence[int]]


@dataclass(slots=True)
class Piece:
    """A buffered batch from its record ``at``; ``end`` is the index after its last record to process."""

    batch: Batch
    times: Sequence[int]
    at: int
    end: int
    size: int


@dataclass(slots=True)
class Buffer:
    """The records of one input that were read and not yet processed."""

    rank: int
    times_of: TimesOf
    pieces: deque[Piece] = field(default_factory=deque)
    records: int = 0
    size: int = 0
    #: Since when (monotonic seconds) other inputs wait for this one; None while none waits.
    awaited_since: float | None = None

    def add(self, batch: Batch, end: int) -> None:
        """Takes the first ``end`` records of a batch."""
        self.append(batch, self.times_of(batch), end)

    def append(self, batch: Batch, times: Sequence[int], end: int) -> None:
        """Adds the first ``end`` records of a batch, whose times are known."""
        size = sum(map(len, filter(None, chain(batch.keys, batch.values))))
        self.pieces.append(Piece(batch, times, 0, end, size))
        self.records += end
        self.size += size

    def advance(self, position: int) -> None:
        """Forgets the records below a position."""
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
        """Forgets all records."""
        self.pieces.clear()
        self.records = self.size = 0
        self.awaited_since = None

    def is_full(self, records_max: int, bytes_max: int) -> bool:
        """Whether the input is to be paused."""
        return self.records >= records_max or self.size >= bytes_max

    def is_nearly_empty(self, records_max: int, bytes_max: int) -> bool:
        """Whether the input is to be resumed."""
        return self.records <= records_max // 4 and self.size <= bytes_max // 4


class ReadingOrder:
    """Buffers of the inputs of one task, in the order of their declaration.

    Args:
        times_of: By input topic, the event times of a batch. If times are equal, the topic that comes first here is
            next.
        wait_s: How long to wait for an empty input that is not read to its end, in seconds; None waits without limit.
        weaves: Whether ``runs`` may return records of several inputs as one ``InterleavedRun``.
    """

    def __init__(self, times_of: Mapping[str, TimesOf], wait_s: float | None = None, *, weaves: bool = False) -> None:
        self._buffers = {topic: Buffer(rank, each) for rank, (topic, each) in enumerate(times_of.items())}
        self._wait_s, self._weaves = wait_s, weaves
        #: Inputs that are paused because their buffers are full.
        self.paused: frozenset[str] = frozenset()

    def add(self, batch: Batch, end: int) -> None:
        """Takes the first ``end`` records of a batch."""
        if end:
            self._buffers[batch.partition.topic].add(batch, end)

    def runs(
        self, positions: Mapping[str, int], most: int, now: float, is_ended: Callable[[str], bool]
    ) -> Sequence[Run | InterleavedRun]:
        """The next records to process, in their order: at most ``most``; none while an input is waited for.

        Args:
            positions: By topic, the next offset to process; what is below was processed.
            most: How many records at most.
            now: Monotonic seconds.
            is_ended: Whether an input without buffered records is read to its end.
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
        if self._weaves and most >= WOVEN_MIN and 1 < len(heads) <= min(most, WOVEN_MAX):  # each has a share
            return [_woven(heads, min(most, WOVEN_MAX))]
        return _merged(heads, most)

    def _complete(self, now: float, is_ended: Callable[[str], bool]) -> bool:
        """Whether no empty input has to be waited for any longer."""
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
        """The inputs that others have waited for at least this long."""
        since = {topic: buffer.awaited_since for topic, buffer in self._buffers.items()}
        return [topic for topic, began in since.items() if began is not None and now - began >= seconds]

    def held_by(self, topics: Iterable[str]) -> dict[str, list[str]]:
        """By input that others wait for, the upstream tasks that may still send older messages."""
        return {}

    @property
    def buffered(self) -> int:
        """Records in all buffers."""
        return sum(buffer.records for buffer in self._buffers.values())

    def buffered_of(self, topics: Iterable[str]) -> int:
        """Records in the buffers of these inputs."""
        return sum(self._buffers[topic].records for topic in topics)

    def change_of_pauses(self, sharing: int = 1) -> tuple[list[str], list[str]]:
        """The inputs to pause now, and the inputs to resume; the caller pauses and resumes them.

        ``sharing`` is the number of inputs of the worker that have buffers.
        """
        most = min(BUFFERED_MAX, TOGETHER_MAX // sharing), min(BUFFERED_BYTES_MAX, TOGETHER_BYTES_MAX // sharing)
        pause = [topic for topic, each in self._buffers.items() if topic not in self.paused and each.is_full(*most)]
        resume = [topic for topic in self.paused if self._buffers[topic].is_nearly_empty(*most)]
        self.paused = (self.paused | frozenset(pause)) - frozenset(resume)
        return pause, resume

    def flows(self) -> None:
        """Records that the caller has resumed all inputs."""
        self.paused = frozenset()

    def clear(self) -> None:
        """Discards the buffers, because their records are read again.

        Paused inputs stay paused until ``change_of_pauses``.
        """
        for buffer in self._buffers.values():
            buffer.clear()


def _merged(heads: list[Buffer], most: int) -> list[Run]:
    """Runs of records in the order of their times, until a buffer is empty or ``most`` records are taken."""
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
            break  # this input's next record is not read yet: it may be older than the other heads
    return runs


def _woven(heads: list[Buffer], most: int) -> Run | InterleavedRun:
    """The next records in the order of their times, at most an equal share of each input.

    Records of one input keep their order, so a record with an earlier time directly follows its predecessor: it counts
    with the latest time so far. After the last record of a share, the next record of its input may be older than the
    other heads, so the records after it are left for later.
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
    """The index after the last record before ``bound``, which is the time and rank of the next other head."""
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
