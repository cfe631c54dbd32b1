"""A task is a processor's work on one partition of a subtopology, the input topics that share stores.

``_run`` finds the message that raised an error without a counter in the hot loop. A generated function with the
compiled steps takes messages from iterators. When it raises, it has taken the failed message, but no later message.
``length_hint`` returns the number of items that are left in an iterator::

    index in the batch    first ······ failed   failed+1 ······ last-1
    iterator of values    [── taken ────────]   [── length_hint ─────]     failed = last - length_hint(values) - 1

The next call of the function continues with the same iterators, after the failed message.

Invariants:
    - A message changes state, outputs and position together or not at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import length_hint
from typing import Any

from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import WovenFunction, compile_run
from holdfast.processors.engine.dataframe.groups import processor_of
from holdfast.processors.engine.dataframe.message_context import place_of, processing
from holdfast.processors.engine.dataframe.plain_loop import Run as Steps
from holdfast.processors.engine.dataframe.plain_loop import RunFunction, Timing
from holdfast.processors.engine.dataframe.sinks import SinksOf, sinks_of, waiting_bytes
from holdfast.processors.engine.formats.serialization import Deserializer
from holdfast.processors.engine.record_size import UNLIMITED
from holdfast.processors.engine.record_times import ANY_TIME, RecordTimeRefused, RecordTimes
from holdfast.processors.engine.runtime.reading.deserialized import ENDING, RECORDS_AT_ONCE, Readable, read
from holdfast.processors.engine.runtime.reading.grouped_stream_time import Upstream
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run, prefetch
from holdfast.processors.engine.runtime.reading.reading_order import ReadingOrder
from holdfast.processors.engine.runtime.reading.turns import in_turn, without_watermarks
from holdfast.processors.engine.runtime.reading.watermark_writer import NO_GROUPS, Groups
from holdfast.processors.engine.runtime.task.arrivals import Arrivals
from holdfast.processors.engine.runtime.task.awaited import AwaitedStream, awaited_stream
from holdfast.processors.engine.runtime.task.columns import ColumnarStream, columnar_stream
from holdfast.processors.engine.runtime.task.facts import TaskFacts, TaskPhase
from holdfast.processors.engine.runtime.task.failed_message import OnFailure, failed_record
from holdfast.processors.engine.runtime.task.failure_policy import Failures
from holdfast.processors.engine.runtime.task.interleaved_steps import WIDTH, InterleavedStreams, interleaved_streams
from holdfast.processors.engine.runtime.task.store_time import declared_stores
from holdfast.processors.engine.runtime.task.task_time import Closings, TaskTime
from holdfast.processors.engine.runtime.task.task_timers import Until
from holdfast.processors.engine.runtime.task.timed_steps import (
    add_steps,
    processors_of,
    schedules_of,
    sources_of,
    time_of,
    watermark_topics,
    watermark_writers_of,
)
from holdfast.processors.engine.schedules.firing import TaskSchedules
from holdfast.processors.engine.sources.running import TaskSources
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.kept_answers import KeptAnswers
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.topic import TimestampType

_NONE: Mapping[str, Any] = {}


@dataclass(slots=True)
class _Stream:
    run: Steps
    columns: ColumnarStream | None
    deserialize: Deserializer
    deserialize_key: Deserializer
    wants_headers: bool
    awaited: AwaitedStream | None = None


class Task(TaskFacts):
    """One task: its stores, its compiled steps, its input positions, and its outputs that are not sent yet."""

    def __init__(self, name: str, subtopology: str, partition: int, inputs: tuple[str, ...]) -> None:
        super().__init__(name, subtopology, partition, inputs)
        self.states: dict[str, StoreState] = {}
        self.outboxes = Outboxes()
        self.held = False  # whether a commit must come before the next message: a limit of timers or windows is reached
        self._streams: dict[str, _Stream] = {}
        self.woven: InterleavedStreams | None = None  # all streams compiled as one function
        self._record_bytes_max: Mapping[str, int] = _NONE
        self._times = ANY_TIME
        self.time: TaskTime | None = None  # None if no step needs stream time
        self.order: ReadingOrder | None = None  # ``order`` is None if the task has one input.
        #: Watermarks that the next commit sends: topic, partition, value, and timestamp of the record in ms.
        self.watermarks: list[tuple[str, int, bytes, int]] = []
        self.regrouped: frozenset[str] = frozenset()  # the inputs that are repartition topics
        self._monotonic = NO_GROUPS.monotonic
        self.failures = Failures(self, self.states, self.outboxes)
        self.schedules: TaskSchedules | None = None
        self.sources: TaskSources | None = None

    def open(
        self,
        store: TaskStore | None,
        store_names: tuple[str, ...],
        changelogs: Mapping[str, str] = _NONE,
        record_bytes_max: Mapping[str, int] = _NONE,
        times: RecordTimes = ANY_TIME,
    ) -> None:
        """Opens the task: attaches its RocksDB (None for a task without stores), and changes the phase to RESTORING.

        ``changelogs`` maps a store to its changelog topic. ``record_bytes_max`` has the maximum bytes of a record by
        topic. ``times`` has the range of record timestamps that the written topics accept.
        """
        self._times = times
        self._record_bytes_max = record_bytes_max
        self.opened(store)
        if store is not None:
            for name in store_names:
                topic = changelogs.get(name, "")
                self.states[name] = StoreState(name, store, topic, record_bytes_max.get(topic, UNLIMITED))

    def start(
        self,
        frames: Mapping[str, StreamingDataFrame],
        committed: Mapping[str, int],
        began: Mapping[str, int],
        groups: Groups = NO_GROUPS,
    ) -> None:
        """Starts the task after its state is restored: compiles the steps, and changes the phase to RUNNING.

        ``committed`` has the next offset after the restored state, by input topic. ``began`` has the first offset to
        read.
        """
        own = [frames[topic] for topic in self.inputs]
        declared = declared_stores(self.states, own)
        self.states.update({name: state for name, (state, _) in declared.items()})
        watermark_writers = watermark_writers_of(self.name, own, groups.topics, frames)
        self.time = time_of(own, self.states, declared, self._times, tells=bool(watermark_writers))
        self.regrouped = frozenset(topic for topic in self.inputs if frames[topic].topic.repartitions)
        self._monotonic = groups.monotonic
        if self.time is not None:
            self.time.watermark_writers = watermark_writers
        if self.time is not None and (hears := watermark_topics(own, groups.topics, frames)):
            self.time.upstream = Upstream(self.time.stream, hears)
        limits, seen = (self._record_bytes_max, self._times), set[int]()
        self.schedules = schedules_of(own, self.partition, self._store, self.states, self.outboxes, *limits)
        self.sources = sources_of(own, self.partition, self.states, self.outboxes, *limits)
        processors = processors_of(own, self.states, declared, self.time, self._times)

        def compiled(node: Node, timing: Timing) -> Steps:
            return compile_run(node, self.states, self.outboxes, *limits, timing)

        mine = [Partition(topic, self.partition) for topic in self.inputs]
        of = SinksOf(processor_of(own[0]), mine, self.states, self._times.clock, starts=not groups.shadow)
        bound: dict[int, Any] = {
            **sinks_of([each.source for each in own], self.failures.last_message, self.outboxes, of)
        }
        bound |= {at: one.on_message for at, one in processors.items()}
        sources = [each.source.bound(bound) for each in own]
        for topic, source in zip(self.inputs, sources, strict=True):
            frame, place = frames[topic], Partition(topic, self.partition)
            awaited = awaited_stream(source, self._times, self._timing(topic), self.states, self._store, place)
            steps = source if awaited is None else awaited.behind
            run = compiled(steps, self._timing(topic))
            if self.time is not None:
                add_steps(self.time, frame, source, processors, compiled, self._timing(topic), seen)
            columns = columnar_stream(frame, own, self.states, self.outboxes, *limits, self.time)
            wants_headers = run.wants_headers if awaited is None else awaited.wants_headers
            how = frame.topic.deserialize_value, frame.topic.deserialize_key, wants_headers
            self._streams[topic] = _Stream(run, columns, *how, awaited)
        one_by_one = not any(each.columns or each.awaited for each in self._streams.values())
        if len(own) > 1 and one_by_one and (self.time is None or self.time.timers is None):
            timings = [self._timing(topic) for topic in self.inputs]
            self.woven = interleaved_streams(own, sources, timings, self.states, self.outboxes, *limits)
        self.begins(committed, began)
        if self.time is not None:
            self.time.load()
        self.arrivals.begin(self.time, self._times.now_ms)
        self.move(TaskPhase.RUNNING)

    def _timing(self, topic: str) -> Timing:
        kinds = TimestampType
        kind = kinds.TIMESTAMP_LOG_APPEND_TIME if topic in self._times.stamped else kinds.TIMESTAMP_CREATE_TIME
        made = Timing(kind=kind, aside=self.failures.aside)
        return made if self.time is None else replace(made, stream=self.time.stream, windows=self.time.takers)

    def before_commit(self, on_failure: OnFailure, *, due: bool = True) -> None:
        """Close due windows, fire due timers and schedules, take messages of sources, and make watermarks.

        If ``due`` is False, schedules and sources wait. Windows and timers wait, too, unless a limit of timers or
        windows was reached between two messages (``held``). An error of a window, timer or schedule is handled like a
        failed message. Raises the errors of ``on_failure``.
        """
        self.failures.on_failure = on_failure
        self._close_and_fire(on_failure, due=due)
        if self.schedules is not None and due:  # fires last, so that schedules read the results of windows and timers
            self.schedules.fire(self._times.now_ms, partial(self.failures.slot, on_failure))
        if self.sources is not None and due:
            self.sources.take()

    def _close_and_fire(self, on_failure: OnFailure, *, due: bool) -> None:
        if self.time is None:
            return
        if not (due or self.held):
            self.time.keep() if self.progressed else None  # restored stores stay unchanged until there is new work
            return

        self.time.before_commit(self.failures.windows(on_failure), self.failures.timers(on_failure))
        for writer in self.time.watermark_writers:
            if (value := writer.tell(self.time.watermark_ms(writer), self._monotonic())) is not None:
                places = [(topic, number) for topic, each in writer.topics.items() for number in range(each.partitions)]
                self.watermarks += [(topic, number, value, self._times.now_ms()) for topic, number in places]
                self.time.dirty = True

    @property
    def arrivals(self) -> Arrivals:
        """The task's counts of late, dead-lettered, skipped and misplaced messages."""
        return self.failures.arrivals

    def keep_time(self) -> None:
        """Write the stream time into the stores, for a commit that closes no window and fires no schedule."""
        if self.time is not None:
            self.time.keep()

    def process(self, batch: Batch, first: int, last: int, on_failure: OnFailure) -> int:
        """Process records ``first`` to ``last`` - 1 (indices into the batch); return the number of processed messages.

        Records before the task's ``positions`` are skipped, because they are already processed. If ``on_failure``
        raises, the records before the failed record are processed. If not all records were processed, the caller must
        call the method again with the same records. If ``held`` is True, the caller must commit before that.
        """
        topic, self.held, self.failures.on_failure = batch.partition.topic, False, on_failure
        if self.time is not None:
            self.time.look()
        first, done = bisect_left(batch.offsets, self._positions[topic], first, last), 0
        if topic not in self.regrouped:
            try:
                return self._process(batch, first, last, on_failure)
            finally:  # if a message stops the worker, the messages before it are committed
                self.arrivals.saw_run(Run(batch, first, last), self._positions)
        if None not in batch.keys[first:last]:
            return self._process(batch, first, last, on_failure)
        for run in in_turn(without_watermarks(batch, first, last), self):
            if batch.keys[run.first] is None:
                self._take_watermark(batch, run.first)
            else:
                done += self._process(*run, on_failure)
        return done

    def _take_watermark(self, batch: Batch, index: int) -> None:
        topic, offset = batch.partition.topic, batch.offsets[index]
        if self.time is not None and self.time.upstream is not None:
            self.time.upstream.take(topic, offset, batch.values[index], self._monotonic())
            self.time.hear()
        self._positions[topic] = offset + 1

    def _process(self, batch: Batch, first: int, last: int, on_failure: OnFailure) -> int:
        """Processes records that are not processed yet and are no watermarks. Returns how many were processed."""
        topic = batch.partition.topic
        stream = self._streams[topic]
        index = first
        if self.time is not None:
            self.time.work += last - first
        if stream.columns is not None:
            if not self._acted_between(on_failure):
                return 0  # the next messages must wait for a commit
            for begin, end in stream.columns.runs(first, last):
                for piece in stream.columns.pieces(batch, begin, end):
                    index = self._by_columns(stream, stream.columns, batch, piece, on_failure)
                    if index < piece[1] or not self._acted_between(on_failure):
                        return index - first  # the next messages must wait for a commit
            if index < last:
                stream.columns.leave(batch, index, last)
        if index < last:
            last = self._one_by_one(stream, batch, index, last, on_failure)
        return last - first

    def _by_columns(
        self, stream: _Stream, columns: ColumnarStream, batch: Batch, run: tuple[int, int], on_failure: OnFailure
    ) -> int:
        """Processes records with numpy. If numpy can't process them, halves them and tries again.

        Short halves are processed one by one. Returns the index after the last processed record; it is less than the
        end of the run if a commit must come first.
        """
        first, last = run
        if columns.take(batch, first, last):
            self._positions[batch.partition.topic] = batch.offsets[last - 1] + 1
            return last
        middle = columns.split(first, last)
        if middle is None:
            columns.leave(batch, first, last)
            return self._one_by_one(stream, batch, first, last, on_failure)
        reached = self._by_columns(stream, columns, batch, (first, middle), on_failure)
        return self._by_columns(stream, columns, batch, (middle, last), on_failure) if reached == middle else reached

    @property
    def _between(self) -> Closings | None:
        """The object that closes windows and fires timers between two messages; None if the task needs none."""
        return self.time.closings if self.time is not None and self.time.closings.act_between else None

    def _acted_between(self, on_failure: OnFailure) -> bool:
        """Closes windows and fires timers that are due now. Returns False if a commit must come first."""
        between = self._between
        if between is None or not between.stop_messages():
            return True
        self.held = not between.act(self.failures.windows(on_failure), self.failures.timers(on_failure))
        return not self.held

    def _one_by_one(self, stream: _Stream, batch: Batch, index: int, last: int, on_failure: OnFailure) -> int:
        """Processes records one by one. Returns the index after the last processed record."""
        prefetch(self.states.values(), Run(batch, index, last))
        awaited = stream.awaited
        while index < last:
            most = index + (RECORDS_AT_ONCE if awaited is None else awaited.at_once)
            how = stream.deserialize, stream.deserialize_key, stream.wants_headers
            readable = read(batch, index, min(most, last), *how)
            end = index + len(readable.values)
            run = self._run if awaited is None else self._run_awaited
            if index < end and (reached := run(stream, Run(batch, index, end), readable, on_failure)) < end:
                index = reached
                if self.held or awaited is not None:
                    return index
                continue
            if readable.failure is not None:
                self._fail(batch, end, readable.failure, on_failure)
                end += 1
            index = end
            if awaited is not None and awaited.called:
                return index  # further async calls start in the next turn: all calls of a turn must end in time
        return index

    def take(self, records: Run | InterleavedRun, on_failure: OnFailure) -> int:
        """Processes the next records in reading order, possibly of several inputs. Returns the same as ``process``."""
        if isinstance(records, Run):
            return self.process(*records, on_failure)
        assert self.woven is not None
        self.failures.on_failure, self.held, made = on_failure, False, self.woven.columns(records)
        if made is None:  # a record can't be deserialized, so each input is processed separately
            return sum(self.process(*run, on_failure) for run in in_turn(records.runs(), self))
        if self.time is not None:
            self.time.look()
            self.time.work += 1
        prefetch(self.states.values(), *records.parts)
        try:
            return self._run_function(self.woven.function, records, made, on_failure)
        finally:
            for part in records.parts:
                self.arrivals.saw_run(part, self._positions)

    def _run_awaited(self, stream: _Stream, records: Run, readable: Readable, on_failure: OnFailure) -> int:
        """Makes the async calls of these records, and then processes their results. Returns the same as ``_run``."""
        assert stream.awaited is not None
        batch, first = records.batch, records.first

        def run(made: Batch, values: Readable) -> int:
            return self._run(stream, Run(made, 0, len(made.offsets)), values, on_failure)

        def fail(index: int, error: BaseException) -> None:
            self._fail(batch, index, error, on_failure)

        try:
            reached = stream.awaited.process(batch, first, readable, run, fail)
            self._positions.update(records.behind(reached - first))
            return reached
        finally:  # if a message stops the worker, the messages before it are committed
            stream.awaited.settle(self._positions[batch.partition.topic])

    def _run(self, stream: _Stream, records: Run, readable: Readable, on_failure: OnFailure) -> int:
        """Processes deserialized records. The module's docstring shows how a failed record is found.

        Returns the index after the last processed record. If this index is less than ``records.last``, the caller must
        deserialize the next record again, because the steps may have changed its value. If ``held`` is True, the caller
        must commit first.
        """
        batch, first, last = records
        # An error ends the call of the generated function. The iterators then show which message failed, and the next
        # call continues with the same iterators.
        between = self._between
        values = iter(readable.values) if between is None else Until(readable.values, between.stop_messages)
        raw_keys, timestamps = iter(batch.keys[first:last]), iter(batch.timestamps[first:last])
        columns = values, raw_keys, timestamps, iter(readable.keys), iter(readable.headers)
        if self.time is not None:
            place = self.time.place
            place.topic, place.partition = batch.partition
            place.offset = lambda: batch.offsets[last - length_hint(values) - 1]
        return first + self._run_function(stream.run.function, records, columns, on_failure)

    def _run_function(
        self,
        function: RunFunction | WovenFunction,
        records: Run | InterleavedRun,
        columns: tuple[Iterator[Any], ...],
        on_failure: OnFailure,
    ) -> int:
        """Calls a generated function with the iterators ``columns``. Returns the number of processed records."""
        count, values = records.size, columns[-WIDTH]
        between = self._between

        def repeats(error: BaseException) -> bool:
            if not isinstance(error, RecordTimeRefused):
                return False
            at = count - length_hint(values) - 1
            newest = records.newest(at)  # the newest of all later records, so that no later message is repeated
            return self._times.learn(records.place(at)[0].partition.topic, newest)

        self.failures.aside.repeats = repeats
        while True:
            try:
                processing(lambda: place_of(*records.place(count - length_hint(values) - 1)), function, columns)
            except BaseException as error:
                for state in self.states.values():
                    state.undo_message()
                failed = count - length_hint(values) - 1
                self._positions.update(records.behind(failed))
                if isinstance(error, (StateFailed, FormatUnknown)):
                    raise  # an unreadable state is not an error of the message, so the failure policy does not decide
                if not isinstance(error, (Exception, *ENDING)):
                    raise
                batch, index = records.place(failed)
                if error is self.failures.aside.repeated or repeats(error):
                    return failed
                self._fail(batch, index, error, on_failure)
            else:
                reached = count - length_hint(values)
                self._positions.update(records.behind(reached))
                if between is None or reached == count:
                    return reached
                if not between.act(self.failures.windows(on_failure), self.failures.timers(on_failure)):
                    self.held = True
                    return reached

    def _fail(self, batch: Batch, index: int, error: BaseException, on_failure: OnFailure) -> None:
        """Applies the failure policy to a failed message, whose writes are undone, and moves the position after it."""
        topic = batch.partition.topic
        self.failures.decide(on_failure, failed_record(batch, index, error, regrouped=topic in self.regrouped))
        self._positions[topic] = batch.offsets[index] + 1

    @property
    def awaits(self) -> bool:
        """Whether a stream of this task makes async calls (``apply_async``)."""
        return any(stream.awaited is not None for stream in self._streams.values())

    @property
    def must_commit(self) -> bool:
        """Whether a commit must come before the next message: ``held``, or answers of durable calls wait for it."""
        return self.held or any(one.awaited is not None and one.awaited.dirty for one in self._streams.values())

    @property
    def keepers(self) -> tuple[TaskTime | TaskSchedules | TaskSources | KeptAnswers, ...]:
        """Stream time, schedules, sources and durable calls: each takes part in every commit and abort."""
        calls = [one.awaited.answers for one in self._streams.values() if one.awaited is not None]
        return tuple(each for each in (self.time, self.schedules, self.sources, *calls) if each is not None)

    @property
    def progressed(self) -> bool:
        """Whether a commit is needed: something has moved, new stores began empty, or ownership must be proven."""
        moved = self._positions != self._committed or self._again_after == self.meta.transaction
        return moved or bool(self._begun_empty) or any(each.dirty for each in self.keepers)

    def commit_again(self) -> None:
        """Makes the next commit contain this task, even without changes. The commit proves that the task is owned."""
        self._again_after = self.meta.transaction

    def dirty_bytes(self) -> int:
        """Returns the estimated bytes of the uncommitted writes."""
        return sum(state.dirty_bytes() for state in self.states.values()) + waiting_bytes(self.outboxes.values())

    def drop(self) -> dict[str, int]:
        """Drops all uncommitted work. Returns the committed offset of each topic, from which to read again."""
        for state in self.states.values():
            state.drop()
        for each in self.keepers:
            each.restore()
        self.order.clear() if self.order is not None else None
        for box in self.outboxes.values():
            box.drop()
        self.watermarks.clear()
        self.arrivals.restore()
        return self.back_to_committed()

    def close(self) -> None:
        """Drops uncommitted work and closes the RocksDB. A second call does nothing."""
        if self._phase is TaskPhase.CLOSED:
            return
        if self.sources is not None:
            self.sources.close()
        for state in self.states.values():
            state.drop()
        self.states.clear()
        self._streams.clear()
        self.release()
        self.move(TaskPhase.CLOSED)
