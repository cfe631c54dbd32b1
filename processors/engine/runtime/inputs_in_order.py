"""The order of reading in the loop: the next records of a task with several inputs, and the inputs to pause."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Mapping, Sequence

import structlog

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.dataframe.as_of import AsOfRight
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.foreign_keys import ForeignJoined
from holdfast.processors.engine.dataframe.joins import TablePut, TableRead
from holdfast.processors.engine.dataframe.table_joins import JoinedRow
from holdfast.processors.engine.dataframe.topic import TimestampType
from holdfast.processors.engine.runtime.grouped_order import GroupedOrder
from holdfast.processors.engine.runtime.heard import Heard
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ports import GroupMember
from holdfast.processors.engine.runtime.reach import Reach
from holdfast.processors.engine.runtime.reading_order import ReadingOrder, TimesOf
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.runtime.watermarks import NO_GROUPS, Groups
from holdfast.processors.engine.runtime.woven import Run, Woven
from holdfast.processors.engine.state.stream_time import NO_TIME

_log = structlog.get_logger("runtime.inputs_in_order")

#: Seconds after which a log line says for which input a task waits.
TOLD_AFTER_S = 10.0

#: Returns the next records to process, at most so many; none when there are none.
NextRuns = Callable[[int], Sequence[Run | Woven]]


def in_one_batch(task: Task, batch: Batch, end: int, most: int) -> Sequence[Run]:
    """The next records of a batch that a task has not processed, before the index ``end``."""
    first = bisect_left(batch.offsets, task.positions[batch.partition.topic], 0, end)
    return [Run(batch, first, min(end, first + most))] if first < end else []


class InputsInOrder:
    """Takes the next records of tasks with several inputs; ``reach`` has the worker's bounds."""

    def __init__(self, reach: Reach, clock: Clock) -> None:
        self._reach = reach
        self._clock = clock
        self._told: set[str] = set()

    def next_runs(self, task: Task, member: GroupMember, left: int | None, most: int) -> Sequence[Run | Woven]:
        """The next records of a task in the order of their event times; ``left`` limits them, too."""
        order = task.order
        assert order is not None

        def is_ended(topic: str) -> bool:
            return self._is_ended(task, topic, member)

        if isinstance(order, GroupedOrder):
            order.look_at_ends(lambda topic: member.high_watermark(Partition(topic, task.partition)))
        runs = order.runs(task.positions, most if left is None else min(most, left), self._clock.monotonic(), is_ended)
        self._tell(task, order, member)
        return runs

    def watermarks_move(self, tasks: Sequence[Task], member: GroupMember) -> bool:
        """Whether a task has to tell those behind it how far it has read, or has heard of those before it."""
        moved, now = False, self._clock.monotonic()
        for task in tasks:
            if task.time is None:
                continue
            self._look_upstream(task, member, now)
            if task.time.teller is not None:
                ended = self._is_read(task, member) and task.time.upstream_ended
                moved |= task.time.teller.look(task.time.stream.time_ms, now, ended=ended)
            moved |= task.time.hear()
        return moved

    def _look_upstream(self, task: Task, member: GroupMember, now: float) -> None:
        """Tell how far a task has read its repartition topics, while it waits for old ends to count."""
        if task.time is None or (upstream := task.time.upstream) is None:
            return
        for topic in upstream.waits(now):
            end = member.high_watermark(Partition(topic, task.partition))
            at_end = not _has_buffered(task) and self._is_ended(task, topic, member)
            upstream.look(topic, task.positions[topic], at_end=at_end, end=end)

    def _is_read(self, task: Task, member: GroupMember) -> bool:
        """Whether a task has processed all of its inputs, after all records of the last poll were processed or kept."""
        return not _has_buffered(task) and all(self._is_ended(task, topic, member) for topic in task.inputs)

    def _is_ended(self, task: Task, topic: str, member: GroupMember) -> bool:
        place = Partition(topic, task.partition)
        return self._reach.is_ended(place, task.positions[topic]) or member.is_ended(place)

    def pause_full(self, task: Task, member: GroupMember, tasks: Sequence[Task]) -> None:
        """Pauses the inputs whose buffers are full, and resumes those that have room; ``tasks`` share the memory."""
        assert task.order is not None
        full, free = task.order.change_of_pauses(sum(len(each.inputs) for each in tasks))
        if full:
            member.pause([Partition(topic, task.partition) for topic in full])
        if free:
            member.resume([Partition(topic, task.partition) for topic in free])

    def _tell(self, task: Task, order: ReadingOrder, member: GroupMember) -> None:
        late = order.awaited_for(self._clock.monotonic(), TOLD_AFTER_S)
        if not late:
            self._told.discard(task.name)
        elif task.name not in self._told:
            self._told.add(task.name)
            _log.warning(
                "a task waits for an input that is not read to its end",
                task=task.name,
                waits_for=[f"{topic}[{task.partition}]" for topic in late],
                positions={topic: task.positions[topic] for topic in late},
                ends={topic: member.high_watermark(Partition(topic, task.partition)) for topic in late},
                held_by=order.held_by(late),
                next="nothing, if the input comes; an open transaction of its producer holds it back. "
                "`Application(max_wait=...)` bounds the wait.",
            )


def _has_buffered(task: Task) -> bool:
    return task.order is not None and task.order.buffered > 0


def order_of(
    task: Task,
    declared: Sequence[str],
    frames: Mapping[str, StreamingDataFrame],
    options: RuntimeOptions,
    groups: Groups = NO_GROUPS,
) -> ReadingOrder | None:
    """The order in which a task reads its inputs, given all inputs in the order of their declaration; None for one."""
    own = [frames[topic] for topic in declared if topic in task.inputs]
    read = {node.store for frame in own for node in frame.source.walk() if isinstance(node.function, TableRead)}
    own.sort(key=lambda frame: not _feeds_others(frame, read))  # a row is there for messages of its own millisecond
    if len(own) < 2:
        return None
    times_of = {each.topic.name: _times_of(each, options.record_times.stamped) for each in own}
    stream = task.time.stream if task.time is not None and task.time.is_kept else None
    heard = {
        name: Heard(name, groups.topics[name].tasks, groups.ends[name], groups.monotonic, stream)
        for name in times_of
        if name in groups.topics and groups.topics[name].ordered
    }
    if not heard:
        return ReadingOrder(times_of, options.wait_s, weaves=task.woven is not None)
    feeders = frozenset(each.topic.name for each in own if _feeds_others(each, read))
    made = GroupedOrder(times_of, heard, feeders, options.wait_s)
    if task.time is not None and task.time.upstream is not None:
        task.time.upstream.follow(made.in_hand, {topic: each.old_ends for topic, each in heard.items()})
    return made


def _feeds_others(frame: StreamingDataFrame, read: Container[str | None]) -> bool:
    """Whether a stream is the right side of an as-of join, or changes a table among those that streams read.

    A table that is joined with tables only feeds no stream: the stream that changes it may be the left side of another
    join, and then has to wait for the right side.
    """
    return any(
        isinstance(node.function, AsOfRight)
        or (isinstance(node.function, (TablePut, JoinedRow, ForeignJoined)) and node.store in read)
        for node in frame.source.walk()
    )


def _times_of(frame: StreamingDataFrame, stamped: Container[str]) -> TimesOf:
    extract, deserialize = frame.topic.timestamp_extractor, frame.topic.deserialize_value
    if frame.topic.repartitions:
        return _with_watermarks
    if extract is None:
        return lambda batch: batch.timestamps
    kinds = TimestampType
    kind = kinds.TIMESTAMP_LOG_APPEND_TIME if frame.topic.name in stamped else kinds.TIMESTAMP_CREATE_TIME

    def extracted(batch: Batch) -> Sequence[int]:
        times = []
        for index, (value, time_ms) in enumerate(zip(batch.values, batch.timestamps, strict=True)):
            try:
                read = None if value is None else deserialize(value)
                found = extract(read, batch.headers[index], time_ms, kind)
            except Exception:  # processing it raises again, and decides by the failure policy
                found = time_ms
            times.append(found if isinstance(found, int) else time_ms)
        return times

    return extracted


def _with_watermarks(batch: Batch) -> Sequence[int]:
    """The times of messages; watermarks, which have no event time, come with the message before them."""
    times, last = [], NO_TIME
    for key, time_ms in zip(batch.keys, batch.timestamps, strict=True):
        last = last if key is None else time_ms
        times.append(last)
    return times
