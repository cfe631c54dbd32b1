"""Sinks: outputs to systems other than Kafka, with the classes and the calls of Quix Streams.

The task collects results in memory, like its outputs to topics. Before each commit, the worker passes the results to
the sink, and flushes the sink. A failed message adds no result to a sink. A crash or an abort between flush and commit
repeats results, so a sink gets each result at least once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.dataframe.message_context import MessageContext
from holdfast.processors.engine.steps.in_place import copied
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.outbox import Outbox
from holdfast.processors.engine.steps.step import Step

#: Maximum seconds that one commit waits for a sink. Kafka aborts a transaction that stays open too long.
WAIT_S = 5.0
#: Estimated memory of one waiting result, in bytes. A commit starts early if the waiting results need too much memory.
ITEM_BYTES = 500


class SinkInvalid(BadConfiguration):
    """The argument of ``sdf.sink`` is not a sink."""


class SinkFailed(HoldfastError):
    """A sink raised an error. The work since the last commit is not committed."""


class SinkBackpressureError(HoldfastError):
    """A sink's ``write`` or ``flush`` raises this error if its system accepts no data at the moment.

    Args:
        retry_after: The seconds after which the worker tries again.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"A sink takes nothing for {retry_after} s.", action="Wait: the worker tries again by itself.")
        self.retry_after = float(retry_after)


@dataclass(frozen=True, slots=True)
class SinkItem:
    """One result in a batch; ``timestamp`` is in milliseconds since 1970."""

    value: Any
    key: Any
    timestamp: int
    headers: Headers
    offset: int


class SinkBatch:
    """The results of one partition since the last flush, in processing order."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self._items: list[SinkItem] = []

    @property
    def size(self) -> int:
        """The number of results."""
        return len(self._items)

    @property
    def start_offset(self) -> int | None:
        """The offset of the first result's message; None for an empty batch."""
        return self._items[0].offset if self._items else None

    def append(self, value: Any, key: Any, timestamp: int, headers: Headers, offset: int) -> None:
        """Adds one result."""
        self._items.append(SinkItem(value, key, timestamp, headers, offset))

    def clear(self) -> None:
        """Removes all results."""
        self._items.clear()

    def empty(self) -> bool:
        """Whether there is no result."""
        return not self._items

    def iter_chunks(self, n: int) -> Iterator[Iterable[SinkItem]]:
        """Yields the results in tuples of ``n`` results. The last tuple may be shorter."""
        items = iter(self._items)
        while chunk := tuple(islice(items, n)):
            yield chunk

    def __iter__(self) -> Iterator[SinkItem]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class BaseSink(ABC):
    """Base class of sinks: ``add`` gets each result, and ``flush`` stores all results that ``add`` has buffered.

    Args:
        on_client_connect_success: Called without arguments after ``setup``.
        on_client_connect_failure: Called with the error that ``setup`` raised. The error is then not raised again.
    """

    def __init__(
        self,
        on_client_connect_success: Callable[[], None] | None = None,
        on_client_connect_failure: Callable[[Exception | None], None] | None = None,
    ) -> None:
        self._on_client_connect_success = on_client_connect_success
        self._on_client_connect_failure = on_client_connect_failure

    @abstractmethod
    def add(
        self, value: Any, key: Any, timestamp: int, headers: Headers, topic: str, partition: int, offset: int
    ) -> None:
        """Gets one result, with topic, partition and offset of its message.

        The sink may buffer the result until ``flush``.
        """

    @abstractmethod
    def flush(self) -> None:
        """Stores all results.

        The worker calls it before each commit, and commits only if ``flush`` returns without an error.

        Raises:
            SinkBackpressureError: The system can't store results now.
        """

    def setup(self) -> None:  # noqa: B027 # a sink without a connection needs none
        """Connects to the other system. The worker calls it before the first message."""

    def start(self) -> None:
        """Calls ``setup``, then ``on_client_connect_success`` or ``on_client_connect_failure``."""
        try:
            self.setup()
        except Exception as failure:
            if self._on_client_connect_failure is None:
                raise
            self._on_client_connect_failure(failure)
            return
        if self._on_client_connect_success is not None:
            self._on_client_connect_success()

    def on_paused(self) -> None:  # noqa: B027 # a sink without a buffer needs none
        """Drops all buffered results.

        The worker calls it after it has abandoned a commit, and will add the same results again.
        """


class BatchingSink(BaseSink):
    """A sink that writes its results in batches. At each flush, ``write`` gets one batch for each partition."""

    def __init__(
        self,
        on_client_connect_success: Callable[[], None] | None = None,
        on_client_connect_failure: Callable[[Exception | None], None] | None = None,
    ) -> None:
        super().__init__(on_client_connect_success, on_client_connect_failure)
        self._batches: dict[tuple[str, int], SinkBatch] = {}

    @abstractmethod
    def write(self, batch: SinkBatch) -> None:
        """Stores a batch.

        A batch that is stored is not written again if the write of another batch meets backpressure.
        """

    def add(
        self, value: Any, key: Any, timestamp: int, headers: Headers, topic: str, partition: int, offset: int
    ) -> None:
        """Adds one result to the batch of its partition."""
        place = topic, partition
        if place not in self._batches:
            self._batches[place] = SinkBatch(topic, partition)
        self._batches[place].append(value, key, timestamp, headers, offset)

    def flush(self) -> None:
        """Calls ``write`` for each batch. A batch that is written is removed, and not written again."""
        for place in list(self._batches):
            self.write(self._batches[place])
            del self._batches[place]

    def on_paused(self) -> None:
        """Drops all batches."""
        self._batches.clear()


class Sunk(Step):
    """The step of ``sdf.sink``.

    When a task compiles its steps, it replaces this step by a ``SinkBox``, which collects the task's results.
    """

    def __init__(self, sink: BaseSink) -> None:
        self.sink = sink
        #: Seconds to wait before the next attempt, after the sink has raised SinkBackpressureError.
        self.wait_s = 0.0
        self._started = False

    def start(self) -> None:
        """Start the sink. A sink is started only once in a process.

        Raises:
            SinkFailed: The sink's ``setup`` raised an error.
        """
        if not self._started:
            with _reported(self.sink, "start"):
                self.sink.start()
            self._started = True

    @property
    def outbox(self) -> str:
        """The key of the sink's ``SinkBox`` in a task's dict of unsent outputs. No topic has this name."""
        return f"sink {id(self.sink)}"

    def describe(self) -> str:
        """Returns the word ``sink`` and the name of the sink's class."""
        return f"sink {type(self.sink).__qualname__}"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Does nothing, because a task calls its ``SinkBox`` instead of this step.

        Only runs without a task call this method, for example ``sdf.test``, which sends no result.
        """


class SinkBox(Outbox, Step):
    """Holds the results of one task that wait for a sink. The compiled steps call it for each result."""

    __slots__ = ("_place", "_places", "step")

    to_kafka: ClassVar[bool] = False

    def __init__(self, step: Sunk, place: Callable[[], MessageContext]) -> None:
        super().__init__(step.outbox)
        self.step = step
        self._place = place
        self._places: list[MessageContext] = []

    @property
    def outbox(self) -> str:
        """The key of this object in the task's dict of unsent outputs."""
        return self.topic

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Appends one result: a copy, because later steps may change the value in place."""
        count = len(self.values)
        self.values.append(copied(value))
        self.keys.append(key)
        self.timestamps.append(timestamp)
        self._places.append(self._place())
        if headers:
            self.headers[count] = list(headers)

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
        self.clear()


@contextmanager
def _reported(sink: BaseSink, what: str) -> Iterator[None]:
    """Converts errors of the sink to SinkFailed. SinkBackpressureError is raised unchanged if ``flush`` raised it."""
    try:
        yield
    except Exception as error:
        if what == "flush" and isinstance(error, SinkBackpressureError):
            raise
        name = type(sink).__qualname__
        raise SinkFailed(
            f"`{what}` of sink {name} raised {type(error).__name__}: {error}. Nothing since the last commit is "
            "committed.",
            action="Repair the sink or its system, then restart: the results come again. For a system that is busy for "
            "a while, let `flush` or `write` raise `SinkBackpressureError(retry_after=seconds)`.",
            sink=name,
        ) from error


def sinks_of(
    sources: Iterable[Node], place: Callable[[], MessageContext], into: dict[str, Outbox]
) -> dict[int, SinkBox]:
    """Creates a box for each sink in the streams of ``sources``, and adds the boxes to ``into``.

    Returns the boxes by the ``id`` of their nodes.

    Raises:
        SinkFailed: A sink can't start.
    """
    found, boxes = dict[int, SinkBox](), dict[str, SinkBox]()
    for node in steps_of(sources):
        if isinstance(node.function, Sunk):
            node.function.start()
            found[id(node)] = boxes.setdefault(node.outbox, SinkBox(node.function, place))
    into.update(boxes)
    return found


def waiting_bytes(boxes: Iterable[Outbox]) -> int:
    """The approximate memory of all results that wait for sinks, in bytes."""
    return ITEM_BYTES * sum(len(box.values) for box in boxes if isinstance(box, SinkBox))


def deliver(boxes: Iterable[Outbox], on_wait: Callable[[], None]) -> bool:
    """Passes all waiting results to their sinks, and flushes the sinks.

    Returns False if a sink still raises SinkBackpressureError after ``WAIT_S`` seconds. The caller must then not
    commit. All results since the last commit must be computed again.

    Raises:
        SinkFailed: A sink raised an error.
    """
    by_sink: dict[int, list[SinkBox]] = {}
    for box in boxes:
        if isinstance(box, SinkBox) and box.values:
            by_sink.setdefault(id(box.step.sink), []).append(box)
    return all(_delivered(each, on_wait) for each in by_sink.values())


def _delivered(boxes: list[SinkBox], on_wait: Callable[[], None]) -> bool:
    step, left_s = boxes[0].step, WAIT_S
    handed = False
    while True:
        left_s -= (paused := min(step.wait_s, left_s))
        step.wait_s -= paused
        _pause(paused, on_wait)
        if step.wait_s > 0:
            step.sink.on_paused()
            return False
        try:
            if not handed:
                with _reported(step.sink, "add"):
                    for box in boxes:
                        box.hand_over()
                handed = True
            with _reported(step.sink, "flush"):
                step.sink.flush()
        except SinkBackpressureError as pressed:
            step.wait_s = max(pressed.retry_after, 0.01)
        except SinkFailed:
            step.sink.on_paused()  # the sink drops its buffered results, because the worker will add them again
            raise
        else:
            return True


def _pause(seconds: float, on_wait: Callable[[], None]) -> None:
    """Waits in pieces of at most 0.5 s. Calls ``on_wait`` before each piece, for example for the worker's heartbeat."""
    while seconds > 0:
        on_wait()
        time.sleep(piece := min(seconds, 0.5))
        seconds -= piece
