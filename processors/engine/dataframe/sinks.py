"""The step of ``sdf.sink``: it collects a task's results until the next commit, and hands them over to the sink.

    message ──► SinkBox of the task ──deliver──► sink.add, sink.flush ──► commit

The sink may answer that it takes nothing now (``SinkBackpressureError``), that it will never take a result
(``SinkRowsRefused``), or that another worker has the partition (``SinkFenced``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from holdfast.infra.clock import Clock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import MembershipLost
from holdfast.infra.kafka.records import Headers, Partition
from holdfast.infra.log import get_logger
from holdfast.processors.engine.changelog.names import IllegalName, check_name
from holdfast.processors.engine.connectors import SinkFigures, failure_text
from holdfast.processors.engine.dataframe.message_context import MessageContext
from holdfast.processors.engine.sinks.errors import (
    SinkBackpressureError,
    SinkFailed,
    SinkFenced,
    SinkRowRefused,
    SinkRowsRefused,
)
from holdfast.processors.engine.sinks.sink import BaseSink
from holdfast.processors.engine.sinks.staging import STORE_PREFIX, SinkTask, StagedResults, StagingSink
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.steps.in_place import copied
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.outbox import Outbox
from holdfast.processors.engine.steps.step import Step

_log = get_logger("sinks")

#: Maximum seconds that one commit waits for a sink. Kafka aborts a transaction that stays open too long.
WAIT_S = 5.0
#: Maximum seconds of one piece of a wait. Between two pieces, the worker shows that it lives.
PIECE_S = 0.5
#: Estimated memory of one waiting result, in bytes. A commit starts early if the waiting results need too much memory.
ITEM_BYTES = 500
#: Maximum number of times in a row that a sink refuses rows without storing anything. The worker then stops.
REFUSALS_MAX = 20


class Sunk(Step):
    """The step of ``sdf.sink``.

    When a task compiles its steps, it replaces this step by a ``SinkBox``, which collects the task's results.
    """

    def __init__(self, sink: BaseSink) -> None:
        self.sink = sink
        #: The monotonic time of the next attempt, after the sink has raised SinkBackpressureError.
        self.ready_at = 0.0
        #: The counts of stored results and of failures, since the worker's start.
        self.figures = SinkFigures()
        self._started = False
        #: The results that the sink refuses: key, value and reason, by topic, partition and offset of the message.
        self._refused: dict[MessageContext, list[tuple[Any, Any, SinkRowsRefused, str]]] = {}
        self._refusals_in_a_row = 0

    def start(self) -> None:
        """Start the sink. A sink is started only once in a process.

        Raises:
            SinkFailed: The sink's ``setup`` raised an error.
        """
        if not self._started:
            with _reported(self.sink, "start"):
                self.sink.start()
            self._started = True

    def close(self) -> None:
        """Close the sink, if it was started. An error of the sink is only logged, because all its work is done."""
        if self._started:
            self._started = False
            try:
                self.sink.close()
            except Exception as failure:
                _log.warning("`close` of a sink raised", sink=self.name, error=f"{type(failure).__name__}: {failure}")

    @property
    def name(self) -> str:
        """The name of the sink's class."""
        return type(self.sink).__qualname__

    def stored(self, count: int, at: float) -> None:
        """Must be called after a flush that stored all results, or after a publication.

        ``count`` is the number of results, and ``at`` the present time in seconds since 1970.
        """
        self.figures = replace(self.figures, stored=self.figures.stored + count, stored_at=at, fails=False)

    def flushed(self) -> None:
        """Must be called after a flush that stored all results. Forgets which results were refused."""
        self._refused.clear()
        self._refusals_in_a_row = 0

    def failed(self, error: Exception, at: float) -> None:
        """Must be called after a failed attempt to store or publish. ``at`` is the present time, since 1970."""
        text, known = failure_text(error.__cause__ or error), self.figures
        self.figures = replace(known, failures=known.failures + 1, failure=text, failed_at=at, fails=True)

    def refuse(self, refusal: SinkRowsRefused, at: float) -> None:
        """Remembers which results the sink refuses. ``check`` then fails their messages.

        ``at`` is the present time in seconds since 1970.

        Raises:
            SinkFailed: The sink has refused rows many times in a row, although their messages failed.
        """
        refused, text = self.figures.refused + len(refusal.rows), failure_text(refusal.rows[0][1])
        self.figures = replace(self.figures, refused=refused, refused_at=at, failure=text, fails=False)
        self._refusals_in_a_row += 1
        if self._refusals_in_a_row > REFUSALS_MAX:
            raise SinkFailed(
                f"Sink {self.name} refused rows {self._refusals_in_a_row} times in a row, and stored nothing between. "
                f"The last row: {refusal.rows[0][1]}",
                action=refusal.action,
                sink=self.name,
                name=_name_of(self.sink),
            ) from refusal
        for item, why in refusal.rows:
            place = MessageContext(refusal.batch.topic, refusal.batch.partition, item.offset)
            self._refused.setdefault(place, []).append((item.key, item.value, refusal, why))

    def check(self, place: MessageContext, key: Any, value: Any) -> None:
        """Raises SinkRowRefused if the sink has refused this result."""
        for refused_key, refused_value, refusal, why in self._refused.get(place, ()):
            if refused_key == key and refused_value == value:
                raise SinkRowRefused(why, action=refusal.action, sink=self.name) from refusal

    @property
    def refuses(self) -> bool:
        """Whether the sink has refused results that it may get again."""
        return bool(self._refused)

    @property
    def store(self) -> str:
        """The name of the store with the list of a ``StagingSink``; empty for other sinks."""
        return f"{STORE_PREFIX}{self.sink.name}" if isinstance(self.sink, StagingSink) else ""

    @property
    def outbox(self) -> str:
        """The key of the sink's ``SinkBox`` in a task's dict of unsent outputs. No topic has this name."""
        return f"sink {id(self.sink)}"

    def describe(self) -> str:
        """Returns the word ``sink`` and the name of the sink's class."""
        return f"sink {self.name}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Does nothing, because a task calls its ``SinkBox`` instead of this step.

        Only runs without a task call this method, for example ``sdf.test``, which sends no result.
        """


class SinkBox(Outbox, Step):
    """Holds the results of one task that wait for a sink. The compiled steps call it for each result.

    ``staged`` is the list of what a ``StagingSink`` has staged for the task; None for other sinks.
    """

    __slots__ = ("_place", "_places", "partitions", "staged", "step")

    to_kafka: ClassVar[bool] = False

    def __init__(self, step: Sunk, place: Callable[[], MessageContext], staged: StagedResults | None) -> None:
        super().__init__(step.outbox)
        self.step, self.staged = step, staged
        self._place = place
        self._places: list[MessageContext] = []
        #: Topic and partition of the results that were handed over last.
        self.partitions: dict[tuple[str, int], None] = {}

    @property
    def outbox(self) -> str:
        """The key of this object in the task's dict of unsent outputs."""
        return self.topic

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Appends one result: a copy, because later steps may change the value in place.

        Raises:
            SinkRowRefused: The sink has refused this result before.
        """
        count, place = len(self.values), self._place()
        if self.step.refuses:
            self.step.check(place, key, value)
        self.values.append(copied(value))
        self.keys.append(key)
        self.timestamps.append(timestamp)
        self._places.append(place)
        if headers:
            self.headers[count] = list(headers)

    def drop(self) -> None:
        """Removes all results, because their transaction was aborted."""
        self.clear()
        if self.staged is not None:
            self.staged.restore()

    def keep(self, count: int) -> None:
        """Removes all results after the first ``count``."""
        super().keep(count)
        del self._places[count:]

    def hand_over(self) -> None:
        """Passes all results to the sink's ``add``, and empties the box."""
        for at, (value, key, time_ms, place) in enumerate(
            zip(self.values, self.keys, self.timestamps, self._places, strict=True)
        ):
            self.step.sink.add(value, key, time_ms, self.headers.get(at), place.topic, place.partition, place.offset)
        self.partitions = dict.fromkeys((place.topic, place.partition) for place in self._places)
        self.clear()


def _keep_staged(sink: BaseSink, boxes: Sequence[SinkBox]) -> None:
    """Adds what a sink has staged to the lists of the tasks, which their next commit contains."""
    if isinstance(sink, StagingSink):
        staged = sink.take_staged()
        for box in boxes:
            parts = [part for place in box.partitions for part in staged.get(place, ())]
            if box.staged is not None and parts:
                box.staged.add(parts)


#: The errors by which a sink says what the worker should do, by the name of the method.
_ANSWERS: dict[str, tuple[type[HoldfastError], ...]] = {
    "flush": (SinkBackpressureError, SinkRowsRefused, SinkFenced),
    "publish": (SinkBackpressureError,),
}


@contextmanager
def _reported(sink: BaseSink, what: str) -> Iterator[None]:
    """Converts errors of the sink to SinkFailed. The answers of ``flush`` and ``publish`` are raised unchanged."""
    try:
        yield
    except Exception as error:
        if isinstance(error, _ANSWERS.get(what, ())):
            raise
        name = type(sink).__qualname__
        again = (
            "Repair the sink or its system, then restart: the results come again. For a system that is busy for a "
            "while, let `flush` or `write` raise `SinkBackpressureError(retry_after=seconds)`."
        )
        said, action = str(error), again
        if isinstance(error, HoldfastError):
            said, action = error.message, f"{error.action} Then restart: the results come again."
        kept = "What it has staged is committed; the next start publishes it."
        left = kept if what == "publish" else "Nothing since the last commit is committed."
        raise SinkFailed(
            f"`{what}` of sink {name} raised {type(error).__name__}: {said.rstrip('.')}. {left}",
            action=action,
            sink=name,
            name=_name_of(sink),
        ) from error


@dataclass(frozen=True, slots=True)
class SinksOf:
    """The task that starts with its sinks: its processor, its input partitions, its stores, and the worker's clock.

    ``starts`` is False for a second run that only rebuilds a store. Its sinks get nothing, and must not start.
    """

    processor: str
    partitions: Sequence[Partition]
    states: dict[str, StoreState]
    clock: Clock
    starts: bool = True


def sinks_of(
    sources: Iterable[Node], place: Callable[[], MessageContext], into: dict[str, Outbox], task: SinksOf
) -> dict[int, SinkBox]:
    """Creates a box for each sink in the streams of ``sources``, and adds the boxes to ``into``.

    Replaces, in the task's stores, those of staging sinks. Returns the boxes by the ``id`` of their nodes.

    Raises:
        SinkFailed: A sink can't start.
    """
    found, boxes = dict[int, SinkBox](), dict[str, SinkBox]()
    for node in steps_of(sources):
        if isinstance(node.function, Sunk):
            if node.outbox not in boxes:
                boxes[node.outbox] = _box_of(node.function, place, task)
            found[id(node)] = boxes[node.outbox]
    into.update(boxes)
    return found


def _box_of(step: Sunk, place: Callable[[], MessageContext], task: SinksOf) -> SinkBox:
    if not task.starts:
        return SinkBox(step, place, None)
    step.start()
    with _reported(step.sink, "assigned"):
        step.sink.assigned(task.processor, task.partitions)
    if not isinstance(step.sink, StagingSink) or step.store not in task.states:
        return SinkBox(step, place, None)
    task.states[step.store] = store = DeclaredState(task.states[step.store], None)
    staged = StagedResults(
        step.sink, SinkTask(task.processor, step.sink.name, task.partitions[0].number), store, task.clock
    )
    staged.load()
    return SinkBox(step, place, staged)


def stores_of_sinks(nodes: Iterable[Node]) -> dict[int, str]:
    """Maps the ``id`` of each step with a ``StagingSink`` to the name of the store with the sink's list."""
    steps = ((id(node), node.function) for node in nodes)
    return {place: step.store for place, step in steps if isinstance(step, Sunk) and step.store}


def named_sinks(sources: Iterable[Node]) -> dict[str, list[Sunk]]:
    """Maps the name of each sink in the streams of ``sources`` to its steps.

    A sink is named by its ``name``, or by its class. The name of a further sink of this name gets a number.
    """
    steps: dict[int, list[Sunk]] = {}
    for node in steps_of(sources):
        step = node.function
        if isinstance(step, Sunk) and step.describe():  # the step of ``app.run(collect=True)`` describes nothing
            steps.setdefault(id(step.sink), []).append(step)
    found: dict[str, list[Sunk]] = {}
    for those in steps.values():
        base = _name_of(those[0].sink)
        more = (f"{base}-{number}" for number in range(2, len(steps) + 2))
        found[next(name for name in (base, *more) if name not in found)] = those
    return found


def _name_of(sink: BaseSink) -> str:
    try:
        return check_name(getattr(sink, "name", None) or "", "name of a sink")
    except IllegalName:
        return type(sink).__name__


def sink_figures(sources: Iterable[Node], boxes: Iterable[Outbox]) -> dict[str, SinkFigures]:
    """Maps each sink in the streams of ``sources`` to its figures. ``boxes`` has the outputs of the worker's tasks."""
    of_sink: dict[int, list[SinkBox]] = {}
    for box in boxes:
        if isinstance(box, SinkBox):
            of_sink.setdefault(id(box.step.sink), []).append(box)
    told = {}
    for name, steps in named_sinks(sources).items():
        own, known = of_sink.get(id(steps[0].sink), []), [step.figures for step in steps]
        newest = max(known, key=lambda each: max(each.failed_at or 0.0, each.refused_at or 0.0))
        staged = [box.staged.unpublished for box in own if box.staged is not None]
        told[name] = SinkFigures(
            stored=sum(each.stored for each in known),
            stored_at=max((each.stored_at for each in known if each.stored_at is not None), default=None),
            refused=sum(each.refused for each in known),
            refused_at=max((each.refused_at for each in known if each.refused_at is not None), default=None),
            failures=sum(each.failures for each in known),
            failed_at=max((each.failed_at for each in known if each.failed_at is not None), default=None),
            failure=newest.failure,
            fails=any(each.fails for each in known),
            waiting=sum(len(box.values) for box in own),
            unpublished=sum(staged) if isinstance(steps[0].sink, StagingSink) else None,
        )
    return told


def close_sinks(sources: Iterable[Node]) -> None:
    """Closes the sinks in the streams of ``sources``. Must be called when the worker ends."""
    for node in steps_of(sources):
        if isinstance(node.function, Sunk):
            node.function.close()


def staged_of(boxes: Iterable[Outbox]) -> list[StagedResults]:
    """Returns the lists of what sinks have staged for a task."""
    return [box.staged for box in boxes if isinstance(box, SinkBox) and box.staged is not None]


def publish(boxes: Iterable[Outbox], clock: Clock) -> None:
    """Publishes what sinks have staged and what is committed. If a system does not answer, a later call does it.

    Raises:
        SinkFailed: A sink raised an error. Its list is committed, so the next start publishes it.
    """
    for box in boxes:
        if isinstance(box, SinkBox) and box.staged is not None and box.staged.pending:
            step = box.step
            if step.ready_at > clock.monotonic():
                continue
            try:
                with _reported(step.sink, "publish"):
                    box.staged.publish()
                step.stored(0, clock.time())
            except SinkBackpressureError as pressed:
                step.failed(pressed, clock.time())
                step.ready_at = clock.monotonic() + max(pressed.retry_after, 0.01)
                _log.warning(
                    "a sink can't publish what is committed; it is tried again",
                    sink=step.name,
                    error=step.figures.failure,
                )


def waiting_bytes(boxes: Iterable[Outbox]) -> int:
    """The approximate memory of all results that wait for sinks, in bytes."""
    return ITEM_BYTES * sum(len(box.values) for box in boxes if isinstance(box, SinkBox))


def ready_at(boxes: Iterable[Outbox]) -> float:
    """The monotonic time before which a sink of these boxes takes nothing; 0 if all sinks take results."""
    return max((box.step.ready_at for box in boxes if isinstance(box, SinkBox)), default=0.0)


def deliver(boxes: Iterable[Outbox], clock: Clock, wait: Callable[[float], None]) -> bool:
    """Passes all waiting results to their sinks, and flushes the sinks.

    Returns False if a sink takes nothing for longer than ``WAIT_S`` seconds, or refuses some of the results. The caller
    must then not commit. All results since the last commit must be computed again. ``wait`` waits for some seconds.

    Raises:
        SinkFailed: A sink raised an error.
        MembershipLost: A sink knows that another worker has a partition now.
    """
    by_sink: dict[int, list[SinkBox]] = {}
    for box in boxes:
        if isinstance(box, SinkBox) and box.values:
            by_sink.setdefault(id(box.step.sink), []).append(box)
    return all(_delivered(each, clock, wait) for each in by_sink.values())


def _delivered(boxes: list[SinkBox], clock: Clock, wait: Callable[[float], None]) -> bool:
    step, last = boxes[0].step, clock.monotonic() + WAIT_S
    handed, count = False, sum(len(box.values) for box in boxes)
    while True:
        if step.ready_at > last:
            step.sink.on_paused()
            _log.warning("a sink takes nothing now; its inputs are paused", sink=step.name, error=step.figures.failure)
            return False
        while (left_s := step.ready_at - clock.monotonic()) > 0:
            wait(min(left_s, PIECE_S))
        try:
            if not handed:
                with _reported(step.sink, "add"):
                    for box in boxes:
                        box.hand_over()
                handed = True
            with _reported(step.sink, "flush"):
                step.sink.flush()
            _keep_staged(step.sink, boxes)
        except SinkBackpressureError as pressed:
            step.failed(pressed, clock.time())
            step.ready_at = clock.monotonic() + max(pressed.retry_after, 0.01)
        except SinkRowsRefused as refusal:
            step.sink.on_paused()
            step.refuse(refusal, clock.time())
            _log.warning("a sink refused results; their messages are processed again, and fail", rows=len(refusal.rows))
            return False
        except SinkFenced as fenced:
            step.sink.on_paused()
            raise MembershipLost(fenced.message, action=fenced.action) from fenced
        except SinkFailed:
            step.sink.on_paused()  # the sink drops its buffered results, because the worker will add them again
            raise
        else:
            step.flushed()
            step.stored(count, clock.time())
            return True
