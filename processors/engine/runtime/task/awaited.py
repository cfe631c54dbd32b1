"""Runs a stream with ``apply_async`` in one task: the async calls of several messages run at the same time.

    messages ──► earlier steps ──► calls, many at once ──► results in the order of the messages ──► later steps
                                     └── a call fails: the failure policy decides, after the earlier messages

The later steps run message by message, as in every stream: state, outputs and position change together. The calls run
before these changes. After an abort or a crash, a call may be repeated.

Durable calls need several turns. One turn makes the calls and stores the answers; then a commit must come. The next
turn runs the later steps with the committed answers. The turn after it makes the calls of the next messages::

    turn 1   calls of messages 0..15       commit: answers 0..15, position 0
    turn 2   later steps of 0..15
    turn 3   calls of messages 16..31      commit: answers 16..31, position 16, outputs of 0..15

All calls of one turn of the worker's main loop end within ``CALLS_WITHIN_MS`` (``call_schedule``). If a message's call
would end later, the message waits for the next turn.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile
from operator import itemgetter
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.clients.message_headers import MessageHeaders
from holdfast.infra.kafka.records import Batch, Headers, Partition
from holdfast.processors.engine.dataframe.calls import call_of
from holdfast.processors.engine.dataframe.message_context import place_of, processing
from holdfast.processors.engine.dataframe.plain_loop import (
    Compiled,
    CurrentMessage,
    Timing,
    compile_steps,
    uses_headers,
)
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime.reading.deserialized import ENDING, RECORDS_AT_ONCE, Readable
from holdfast.processors.engine.runtime.task.call_schedule import CallSchedule, Place
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.kept_answers import WAITS, Asked, KeptAnswers
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.steps.async_calls import AsyncCall, AsyncCallFailed, awaited
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Output

#: A function that runs the steps after the async call, for several messages. It returns the index after the last
#: processed message.
RunBehind = Callable[[Batch, Readable], int]
#: A function that applies the failure policy (stop, dead letter or skip) to a message. Its arguments are the message's
#: index in the batch and the error.
Fail = Callable[[int, BaseException], None]

#: Maximum seconds for which the end of the process is delayed by cancelled calls that still run.
ENDING_S = 1.0

_of_thread = threading.local()


@dataclass(slots=True)
class _Job:
    """A message between the steps before the async call and the steps after it.

    ``value`` is first the result of the steps before the call, and then the call's answer. ``dropped`` is True if these
    steps filtered the message out. ``place`` is the call's place in the schedule; None if the message needs no call.
    ``waits`` is True if the answer of a durable call is not committed yet, ``answered`` if it is committed.
    """

    index: int
    value: Any = None
    timestamp_ms: int = 0
    headers: Headers = None
    dropped: bool = True
    error: BaseException | None = None
    place: Place | None = None
    waits: bool = False
    answered: bool = False


class AwaitedStream:
    """The part of a stream up to and including its async call. ``behind`` has the steps after the call.

    ``answers`` has the answers of durable calls; None if the calls are not durable.
    """

    def __init__(
        self,
        found: tuple[Sequence[Node], Node],
        source: Node,
        times: RecordTimes,
        timing: Timing,
        answers: KeptAnswers | None,
    ) -> None:
        before, node = found
        call = node.call
        assert call is not None
        self._call, self.answers = call, answers
        self.behind = Node("source", None, max_ahead_ms=source.max_ahead_ms, children=node.children)
        self._job = _Job(0)
        #: Whether a step of the stream reads headers.
        self.wants_headers = uses_headers(source)
        #: Whether the last ``process`` made calls. If so, the caller leaves all later messages for the next turn of the
        #: main loop.
        self.called = False
        tail = Node("update", self._collect, metadata=True)
        for each in reversed(before):
            tail = replace(each, children=[tail])
        first = replace(source, children=[tail])
        self._before: Compiled = compile_steps(first, {}, CurrentMessage(), _no_output, {}, times, timing)

    def _collect(self, value: Any, key: Any, timestamp_ms: int, headers: Headers) -> None:
        job = self._job
        job.value, job.timestamp_ms, job.headers, job.dropped = value, timestamp_ms, headers, False

    @property
    def at_once(self) -> int:
        """Maximum number of messages that may be passed to one call of ``process``."""
        most = self._call.concurrency * self._call.rounds
        all_call = self._call.known is None and self.answers is None
        return min(RECORDS_AT_ONCE, most) if all_call else RECORDS_AT_ONCE

    def process(self, batch: Batch, first: int, readable: Readable, run: RunBehind, fail: Fail) -> int:
        """Processes deserialized messages. Returns the index after the last processed message.

        Messages whose calls would not end within the time limit of a turn are left for the next turn. So are messages
        from the first durable call on whose answer is not committed. Afterwards, ``called`` says whether this call has
        made async calls.
        """
        jobs = self._jobs(batch, first, readable)
        called = [job for job in jobs if job.place is not None]
        self.called = bool(called)
        if called:
            _loop().run_until_complete(_all(self._call, called))
        if self.answers is not None:
            self._keep(self.answers, batch, called)
            jobs = list(takewhile(lambda job: not job.waits, jobs))
        failed = [job.index for job in jobs if job.error is not None]
        bounds = [first - 1, *failed, first + len(jobs)]
        for before, end in pairwise(bounds):
            made = [job for job in jobs[before + 1 - first : end - first] if not job.dropped]
            if made:
                reached = run(_batch_of(batch, made), _readable_of(made, readable, first))
                if reached < len(made):
                    return made[reached].index
            if end < first + len(jobs):
                error = jobs[end - first].error
                assert error is not None
                fail(end, error)
        return first + len(jobs)

    @property
    def dirty(self) -> bool:
        """Whether answers of durable calls wait for a commit."""
        return self.answers is not None and self.answers.dirty

    def settle(self, position: int) -> None:
        """Deletes the answers of the messages before ``position``. Must be called after each ``process``."""
        if self.answers is not None:
            self.answers.settle(position)

    def _jobs(self, batch: Batch, first: int, readable: Readable) -> list[_Job]:
        """Runs the steps before the call.

        Returns the messages before the first one whose call would not end in time.
        """
        jobs, schedule = list[_Job](), CallSchedule(self._call.concurrency, self._call.rounds, by_key=self._call.by_key)
        uncommitted, uses_answers = 0, False
        for place, value in enumerate(readable.values):
            index = first + place
            self._job = job = _Job(index)
            headers = readable.headers[place] if readable.headers else None
            try:
                given = (value, readable.keys[place], batch.timestamps[index], headers)
                processing(partial(place_of, batch, index), self._before, given)
            except (Exception, *ENDING) as error:
                job.error = error
            if not job.dropped and job.error is None and not self._is_known(job, batch):
                # A crash repeats durable calls whose answers are not committed. This bounds their number, and no user
                # function runs before their commit.
                is_full = self.answers is not None and (uses_answers or uncommitted == self._call.concurrency)
                job.place = None if is_full else schedule.place(batch.keys[index])
                if job.place is None:
                    break
            uncommitted += job.waits or job.place is not None
            uses_answers |= job.answered
            jobs.append(job)
        return jobs

    def _is_known(self, job: _Job, batch: Batch) -> bool:
        """Whether the message needs no call now. Sets its answer, its error, or that its answer must be committed."""
        answer: Any = None if self._call.known is None else self._call.known(job.value)
        if self.answers is not None:
            answer = self.answers.find(_asked(batch, job.index))
        if answer is WAITS:
            job.waits = True
        elif isinstance(answer, BaseException):
            job.error = answer
        elif answer is not None:
            job.value, job.answered = answer[0], self.answers is not None
        return answer is not None

    def _keep(self, answers: KeptAnswers, batch: Batch, called: Sequence[_Job]) -> None:
        """Stores the answers of durable calls. A call without a storable answer has failed."""
        for job in called:
            asked = _asked(batch, job.index)
            if job.error is None:
                try:
                    answers.put(asked, job.value, getattr(self._call.func, "__qualname__", repr(self._call.func)))
                    job.waits = True
                except HoldfastError as error:
                    job.error = error
            if job.error is not None:
                answers.failed(asked, job.error)


def awaited_stream(
    source: Node,
    times: RecordTimes,
    timing: Timing,
    states: Mapping[str, StoreState],
    backend: TaskStore | None,
    place: Partition,
) -> AwaitedStream | None:
    """Returns the part of a stream up to its async call; None for a stream without an async call.

    ``states`` and ``backend`` are the stores and the database of the task. ``place`` is the partition that it reads.
    """
    found = call_of(source)
    if found is None:
        return None
    store, kept = found[1].store, None if found[1].call is None else found[1].call.answers
    answers = None
    if kept is not None and store is not None and backend is not None:
        answers = KeptAnswers(place.topic, place.number, states[store], backend, kept.ttl_ms, times.now_ms)
    return AwaitedStream(found, source, times, timing, answers)


def _asked(batch: Batch, index: int) -> Asked:
    return Asked(batch.offsets[index], batch.keys[index], batch.values[index], batch.timestamps[index])


async def _all(call: AsyncCall, jobs: Sequence[_Job]) -> None:
    """Makes the calls of these messages in the order of their schedule. Stores the answers or errors in the jobs."""
    over, lanes = [asyncio.Event() for _ in jobs], dict[int, list[tuple[int, int, _Job]]]()
    for number, job in enumerate(jobs):
        assert job.place is not None
        lanes.setdefault(job.place.lane, []).append((job.place.round, number, job))

    async def one_lane(of_lane: list[tuple[int, int, _Job]]) -> None:
        for _, number, job in sorted(of_lane, key=itemgetter(0)):
            assert job.place is not None
            try:
                if job.place.after is not None:
                    await over[job.place.after].wait()
                answer = await _in_time(call, job.value)
            finally:
                over[number].set()
            if isinstance(answer, BaseException):
                job.error = answer
            else:
                job.value = answer[0]

    await asyncio.gather(*map(one_lane, lanes.values()))


async def _in_time(call: AsyncCall, value: Any) -> tuple[Any] | BaseException:
    """Calls the function for one message.

    Returns the answer in a one-element tuple. If the call failed or timed out, returns the error.
    """
    name = getattr(call.func, "__qualname__", repr(call.func))
    task = asyncio.ensure_future(awaited(call.func, value))
    done, _ = await asyncio.wait({task}, timeout=call.timeout_ms / 1000)
    if not done:
        # The cancelled call is not awaited, because a call that ignores its cancellation would block the worker.
        task.cancel()
        task.add_done_callback(_forget)
        return AsyncCallFailed(
            f"{name} did not answer within {call.timeout_ms / 1000:g} s.",
            action="Look at the system that it asks; raise `timeout`; or set `dead_letter_topic` to put such messages "
            "aside.",
            function=name,
        )
    if task.cancelled():
        return AsyncCallFailed(
            f"A call of {name} was cancelled.",
            action="Let the function finish, or raise an error that says why it can't.",
            function=name,
        )
    error = task.exception()
    return (task.result(),) if error is None else error


def _forget(late: asyncio.Task[Any]) -> None:
    """Reads the error of a call that has ended after its timeout.

    Without this read, asyncio would log that the error was never retrieved.
    """
    if not late.cancelled():
        late.exception()


def _batch_of(batch: Batch, jobs: Sequence[_Job]) -> Batch:
    """Returns a batch with only these messages, which keep their keys, values, offsets and headers."""
    offsets, indices = [batch.offsets[job.index] for job in jobs], [job.index for job in jobs]
    return Batch(
        batch.partition,
        [batch.keys[job.index] for job in jobs],
        [batch.values[job.index] for job in jobs],
        [job.timestamp_ms for job in jobs],
        offsets,
        MessageHeaders(batch.partition, offsets, indices, batch.headers.__getitem__),
    )


def _readable_of(jobs: Sequence[_Job], readable: Readable, first: int) -> Readable:
    headers = [job.headers for job in jobs] if readable.headers else ()
    return Readable([job.value for job in jobs], [readable.keys[job.index - first] for job in jobs], headers)


def _loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of this thread.

    The loop lives until the process ends, so that user functions can reuse connections.
    """
    loop: asyncio.AbstractEventLoop | None = getattr(_of_thread, "loop", None)
    if loop is None or loop.is_closed():
        loop = _of_thread.loop = asyncio.new_event_loop()
        atexit.register(_close, loop)
    return loop


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Closes an event loop at the end of the process. Waits at most ``ENDING_S`` seconds for cancelled calls."""
    # A loop that still runs belongs to another thread. This thread is a daemon, so it ends with the process.
    if loop.is_running():
        return
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=ENDING_S))
    # Without this handler, asyncio logs each remaining call as "destroyed but pending".
    loop.set_exception_handler(lambda _, __: None)
    loop.close()


def _no_output(output: Output) -> None:
    raise AssertionError(f"a step before apply_async sent to {output.topic}")
