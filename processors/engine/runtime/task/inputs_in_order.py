"""Chooses the next records of tasks with several inputs, pauses full inputs, and decides when watermarks are due."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial

import structlog

from holdfast.infra.kafka.records import Batch, Partition
from holdfast.infra.schemas.codecs import RegistryReader, without_value_id
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.reading.fresh_ends import FreshEnds
from holdfast.processors.engine.runtime.reading.grouped_order import GroupedOrder
from holdfast.processors.engine.runtime.reading.grouped_stream_time import Upstream
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.reading.read_bounds import ReadBounds
from holdfast.processors.engine.runtime.reading.reading_order import ReadingOrder, TimesOf
from holdfast.processors.engine.runtime.reading.upstream_times import WatermarksAhead
from holdfast.processors.engine.runtime.reading.watermark_writer import NO_GROUPS, Groups, Quiet, WatermarkWriter
from holdfast.processors.engine.runtime.reading.watermarks import REPEAT_S
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.runtime.task.task_time import TaskTime
from holdfast.processors.engine.state.time.stream_time import NO_TIME
from holdfast.processors.engine.steps.topic import TimestampType

_log = structlog.get_logger("runtime.inputs_in_order")

#: Seconds. If a task has waited this long for an input, the input's name is logged.
TOLD_AFTER_S = 10.0

#: Seconds by which the timeout of ``Worker.run`` is extended while messages wait for watermarks. A message that passes
#: several ``group_by`` steps must wait for several watermarks in a row.
WORDS_S = 10.0
#: Seconds. After messages have waited for watermarks, the timeout of ``Worker.run`` stays extended for this time.
HEARD_S = 1.0

#: A function that returns the next records to process, at most the given number; empty if there are none.
NextRuns = Callable[[int], Sequence[Run | InterleavedRun]]


def in_one_batch(task: Task, batch: Batch, end: int, most: int) -> Sequence[Run]:
    """Returns the next unprocessed records of a batch: at most ``most``, and only those before the index ``end``."""
    first = bisect_left(batch.offsets, task.positions[batch.partition.topic], 0, end)
    return [Run(batch, first, min(end, first + most))] if first < end else []


def has_messages(task: Task, batch: Batch) -> bool:
    """Whether a batch has messages. A batch of a repartition topic may have only watermarks (records without a key)."""
    return batch.partition.topic not in task.regrouped or any(key is not None for key in batch.keys)


class InputsInOrder:
    """Chooses the next records of tasks with several inputs, and decides when watermarks are due.

    ``reach`` has the offsets up to which a shadow (a worker that only rebuilds a store) may read.
    """

    def __init__(self, reach: ReadBounds, cluster: Cluster) -> None:
        self._reach = reach
        self._clock = cluster.clock
        self._told: set[str] = set()
        self._fresh_ends, self._again_at = FreshEnds(cluster), 0.0
        #: Monotonic seconds at which watermarks last advanced the stream time of a task.
        self.moved_at = 0.0
        #: Monotonic seconds at which a message or a stream time last waited for watermarks.
        self._waited_at = -HEARD_S

    def next_runs(self, task: Task, member: GroupMember, left: int | None, most: int) -> Sequence[Run | InterleavedRun]:
        """Returns a task's next records by event time: at most ``most``, and at most ``left`` if that is not None."""
        order = task.order
        assert order is not None

        def is_ended(topic: str) -> bool:
            return self._is_ended(task, topic, member)

        runs = order.runs(task.positions, most if left is None else min(most, left), self._clock.monotonic(), is_ended)
        self._tell(task, order, member)
        return runs

    def watermarks_move(self, tasks: Sequence[Task], member: GroupMember) -> bool:
        """Whether a commit is due: to write watermarks, or because watermarks have advanced a task's stream time."""
        due, now = False, self._clock.monotonic()
        again = now >= self._again_at
        if again:  # All idle tasks are checked in the same turn, so that they share the requests and the commit.
            self._again_at = now + REPEAT_S
            self._fresh_ends.begin()
            self._look_for_waits(tasks)
        for task in tasks:
            # The order of several inputs needs these end offsets even if the task keeps no stream time.
            if again and isinstance(task.order, GroupedOrder):
                self._mark_for_order(task, task.order, member)
            if (time := task.time) is None:
                continue
            for writer in time.watermark_writers:
                quiet = self._quiet(task, time, writer, member)
                confirm = partial(self._ended_at, task, time, writer, member) if again else _not_now
                due |= writer.look(time.watermark_ms(writer), now, quiet, confirm)
            if time.upstream is not None:
                if again:
                    self._mark_for_time(task, time.upstream, member)
                time.upstream.look(task.positions)
                if time.hear():
                    due, self.moved_at = True, now
        return due

    def _mark_for_order(self, task: Task, order: GroupedOrder, member: GroupMember) -> None:
        """Requests the end offsets of repartition topics. Buffered messages wait for the watermarks of these topics."""
        for topic, heard in order.heard.items():
            place = Partition(topic, task.partition)
            if heard.wants_end(order.newest_ms) and (end := self._fresh_ends.end_of(place, member)) is not None:
                heard.mark(end, order.newest_ms)

    def _mark_for_time(self, task: Task, upstream: Upstream, member: GroupMember) -> None:
        """Requests the end offsets of repartition topics. The stream time waits for the watermarks of these topics."""
        for topic in upstream.topics:
            place = Partition(topic, task.partition)
            if upstream.wants_end(topic) and (end := self._fresh_ends.end_of(place, member)) is not None:
                upstream.mark(topic, end)

    def waits_s(self, tasks: Sequence[Task]) -> float:
        """Returns extra seconds for the timeout of ``Worker.run``; 0 if no message waited for watermarks recently."""
        self._look_for_waits(tasks)
        return WORDS_S if self._clock.monotonic() - self._waited_at < HEARD_S else 0.0

    def _look_for_waits(self, tasks: Sequence[Task]) -> None:
        held = any(isinstance(task.order, GroupedOrder) and task.order.buffered for task in tasks)
        if held or any(task.time.waits for task in tasks if task.time is not None):
            self._waited_at = self._clock.monotonic()

    def _quiet(self, task: Task, time: TaskTime, writer: WatermarkWriter, member: GroupMember) -> Quiet | None:
        """Returns numbers that identify the current idle period of a watermark writer; None while it has input."""
        heard = writer.inputs & task.regrouped
        upstream = time.upstream.quiet(heard) if writer.hears and time.upstream is not None else ()
        if upstream is None or not self._is_read(task, writer.inputs - task.regrouped, member):
            return None
        return (time.work, *upstream)

    def _ended_at(self, task: Task, time: TaskTime, writer: WatermarkWriter, member: GroupMember) -> float | None:
        """Returns a moment (monotonic seconds) when an idle task had read all inputs to their ends; None if unknown.

        A source topic is at its end if the task has read it up to the end offset that Kafka reports now. This is never
        true for a repartition topic, because upstream tasks write watermarks all the time. The method therefore
        requests the end offset of a repartition topic, and stores the moment of the request. When the task has
        processed the topic up to that offset, the method returns the stored moment.
        """
        now = self._clock.monotonic()
        places = [Partition(topic, task.partition) for topic in writer.inputs]
        if not all(self._fresh_ends.is_read(place, member) for place in places if place.topic not in task.regrouped):
            return None
        heard = [place for place in places if place.topic in task.regrouped]
        if not heard:
            return now
        before, writer.asked = writer.asked, None
        passed = before is not None and all(task.positions[topic] >= end for topic, end in before[1].items())
        if before is not None and not passed:
            writer.asked = before
            return None
        ends = {place.topic: self._fresh_ends.end_of(place, member) for place in heard}
        known = {topic: end for topic, end in ends.items() if end is not None}
        writer.asked = (now, known) if len(known) == len(ends) else None
        if before is None or (time.upstream is not None and not _is_said_again(time.upstream, writer)):
            return None
        return before[0]

    def _is_read(self, task: Task, topics: Collection[str], member: GroupMember) -> bool:
        """Whether these inputs are processed to their ends: no record is buffered, and Kafka has no further record."""
        kept = 0 if task.order is None else task.order.buffered_of(topics)
        return not kept and all(self._is_ended(task, topic, member) for topic in topics)

    def _is_ended(self, task: Task, topic: str, member: GroupMember) -> bool:
        place = Partition(topic, task.partition)
        return self._reach.is_ended(place, task.positions[topic]) or member.is_ended(place)

    def pause_full(self, task: Task, member: GroupMember, tasks: Sequence[Task]) -> None:
        """Pauses the task's inputs whose buffers are full, and resumes inputs whose buffers have space again.

        The inputs of all ``tasks`` share the memory limit.
        """
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


def _not_now() -> None:
    return None


def order_of(
    task: Task,
    declared: Sequence[str],
    frames: Mapping[str, StreamingDataFrame],
    options: RuntimeOptions,
    groups: Groups = NO_GROUPS,
) -> ReadingOrder | None:
    """Returns the object that orders the inputs of a task; None for a task with one input.

    ``declared`` has the input topics in the order of their declaration, which decides at equal event times.
    """
    own = [frames[topic] for topic in declared if topic in task.inputs]
    if len(own) < 2:
        return None
    rights = _rights(own)
    ranked = _ranked([each.topic.name for each in own], rights)
    own.sort(key=lambda frame: ranked.index(frame.topic.name))
    times_of = {each.topic.name: _times_of(each, options.record_times.stamped) for each in own}
    stream = task.time.stream if task.time is not None and task.time.is_kept else None
    heard = {
        name: WatermarksAhead(name, groups.topics[name].tasks, stream)
        for name in times_of
        if name in groups.topics and groups.topics[name].ordered
    }
    if not heard:
        return ReadingOrder(times_of, options.wait_s, weaves=task.woven is not None)
    made = GroupedOrder(times_of, heard, rights, options.wait_s)
    if task.time is not None and task.time.upstream is not None:
        task.time.upstream.reads_by(made.in_hand)
    return made


def _rights(frames: Sequence[StreamingDataFrame]) -> dict[str, frozenset[str]]:
    """Maps each topic to the topics with which it is joined: right sides of as-of joins, and joined tables.

    At equal event times, messages of these topics must be processed first. A topic without such joins has no entry.
    """
    writes, reads = defaultdict[str | None, set[str]](set), defaultdict[str, set[str | None]](set)
    for frame in frames:
        for node in frame.source.walk():
            if node.order == "feeds":
                writes[node.store].add(frame.topic.name)
            elif node.order == "reads":
                reads[frame.topic.name].add(node.store)
    return {
        topic: frozenset(right for store in stores for right in writes[store]) - {topic}
        for topic, stores in reads.items()
    }


def _ranked(topics: Sequence[str], rights: Mapping[str, frozenset[str]]) -> list[str]:
    """Returns the topics in the order that decides at equal event times.

    Right sides of joins come first, so that a row is processed before the messages that are joined with it. All other
    topics keep the order of ``topics``.
    """
    joined_with = frozenset[str]().union(*rights.values())
    ranked, left = list[str](), [topic for topic in topics if topic in joined_with]
    while left:  # If each remaining topic is joined with another remaining topic, the first of them is taken.
        free = [topic for topic in left if rights.get(topic, frozenset()).isdisjoint(left)]
        ranked.append((free or left)[0])
        left.remove(ranked[-1])
    return ranked + [topic for topic in topics if topic not in joined_with]


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
                headers, raw = batch.headers[index], value
                if isinstance(deserialize, RegistryReader):
                    raw = None if value is None else deserialize.framed(value, headers)
                    headers = without_value_id(headers)
                read = None if raw is None else deserialize(raw)
                found = extract(read, headers, time_ms, kind)
            except SchemaRegistryFailed:
                raise  # The message may be readable later. The broker's timestamp would change its place in the order.
            # After another error, the message gets the broker's timestamp here. Processing raises the error again, and
            # the failure policy decides.
            except Exception:
                found = time_ms
            times.append(found if isinstance(found, int) else time_ms)
        return times

    return extracted


def _is_said_again(upstream: Upstream, writer: WatermarkWriter) -> bool:
    """Whether each idle upstream task has sent a watermark since this function last returned True."""
    said = upstream.said(writer.inputs)
    before = writer.said or (0,) * len(said)
    # A smaller count than before belongs to a new idle period. It is therefore compared with 0.
    again = all(now > (then if now >= then else 0) for now, then in zip(said, before, strict=True))
    if again:
        writer.said = said
    return again


def _with_watermarks(batch: Batch) -> Sequence[int]:
    """Returns the event times of a batch. A watermark has no event time, and gets the time of the message before it."""
    times, last = [], NO_TIME
    for key, time_ms in zip(batch.keys, batch.timestamps, strict=True):
        last = last if key is None else time_ms
        times.append(last)
    return times
