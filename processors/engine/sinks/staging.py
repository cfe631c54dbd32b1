"""Sinks that are exactly-once: they stage results before the commit, and publish them after it.

    add … add ──► stage ──► one transaction of Kafka: the list of what is staged, state, offsets ──► publish
                    └── killed or aborted: no list names what was staged, and no reader sees it

The list is a record in the store ``sink-<name>`` of the task. Like all state, it is in the changelog, so the next owner
of the task publishes what its predecessor has committed and not published.

Invariants:
    - Only what is in a committed list is published, in the order of the commits.
    - ``publish`` may be called again for the same parts, also by two workers at the same time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.sinks.sink import BatchingSink, SinkBatch
from holdfast.processors.engine.state.own_keys import SINKS
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: The prefix of the names of the stores of staging sinks.
STORE_PREFIX = "sink-"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class SinkTask:
    """The task whose results a sink stages.

    Attributes:
        processor: The name of the processor.
        sink: The name of the sink, unique in the processor.
        partition: The number of the task's partition.
    """

    processor: str
    sink: str
    partition: int

    @property
    def label(self) -> str:
        """A text that names the task in files and properties."""
        return f"{self.processor}-{self.sink}-{self.partition}"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one commit has staged.

    Attributes:
        sequence: A number that grows with each commit of the task, also if its state is restored to an earlier time.
        content: What ``stage`` returned for each batch of the commit.
    """

    sequence: int
    content: tuple[Any, ...]


class StagingSink(BatchingSink):
    """Base class of sinks that stage results before the commit, and publish them after it.

    A subclass implements ``stage`` and ``publish``; ``recover`` may remove what was staged without a commit.

    Args:
        name: The name of the sink, unique in the application. Its list is in the store ``sink-<name>``.
        on_client_connect_success: Called without arguments after ``setup``.
        on_client_connect_failure: Called with the error that ``setup`` raised. The error is then not raised again.
    """

    def __init__(
        self,
        name: str,
        on_client_connect_success: Callable[[], None] | None = None,
        on_client_connect_failure: Callable[[Exception | None], None] | None = None,
    ) -> None:
        super().__init__(on_client_connect_success, on_client_connect_failure)
        self.name = check_name(name, "name of a sink")
        self._staged: dict[tuple[str, int], list[Any]] = {}
        self._tasks: dict[tuple[str, int], SinkTask] = {}

    def assigned(self, processor: str, partitions: Sequence[Partition]) -> None:
        """Records the tasks of partitions that this worker has just got. An override must call it."""
        for each in partitions:
            self._tasks[each.topic, each.number] = SinkTask(processor, self.name, each.number)

    def task_of(self, batch: SinkBatch) -> SinkTask:
        """Returns the task whose results are in a batch."""
        return self._tasks[batch.topic, batch.partition]

    @abstractmethod
    def stage(self, batch: SinkBatch) -> Any:
        """Stores a batch where no reader sees it, and returns what ``publish`` needs to find it.

        The returned value must be JSON of texts and whole numbers. It becomes a part of the task's state, so it should
        be short: the name of a file, not its content. A kill after ``stage`` leaves it staged for ever, unless
        ``recover`` removes it.

        Raises:
            SinkBackpressureError: The system can't store results now.
            SinkRowsRefused: The system will never accept some of the results.
        """

    @abstractmethod
    def publish(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        """Shows committed parts to readers, in this order.

        The worker calls it after the commit, and again if it does not know whether the last call has finished. Parts
        that were published before, by this worker or another one, must be left out. Their ``sequence`` is not greater
        than the last one that was published for this task, so the system must keep this number.

        Raises:
            SinkBackpressureError: The system does not answer now. The worker tries again, and pauses the task's inputs.
        """

    def recover(self, task: SinkTask, parts: Sequence[StagedPart]) -> None:
        """Called when a task starts, before its first result. Publishes its committed parts.

        An override may also remove what other calls of ``stage`` have left for this task: no later commit names it.
        """
        if parts:
            self.publish(task, parts)

    def published(self, task: SinkTask) -> int:
        """Returns the ``sequence`` of the task's part that was published last; 0 if none was, or if it is unknown.

        Parts of later commits get greater numbers, also if the worker's clock was set back and the list was cleared.

        Raises:
            SinkBackpressureError: The system does not answer now.
        """
        return 0

    def write(self, batch: SinkBatch) -> None:
        """Stages a batch, and keeps what ``stage`` returned for the commit."""
        self._staged.setdefault((batch.topic, batch.partition), []).append(self.stage(batch))

    def take_staged(self) -> dict[tuple[str, int], list[Any]]:
        """Returns what was staged since the last call, by topic and partition."""
        taken, self._staged = self._staged, {}
        return taken

    def on_paused(self) -> None:
        """Drops all batches, and forgets what was staged."""
        super().on_paused()
        self._staged.clear()


class StagedResults:
    """The list of what one sink has staged for one task, in the task's store.

    Args:
        sink: The sink.
        task: The task.
        store: The store of the list.
        clock: The worker's clock.
    """

    def __init__(self, sink: StagingSink, task: SinkTask, store: DeclaredState, clock: Clock) -> None:
        self.sink, self.task, self._store, self._clock = sink, task, store, clock
        self._committed: tuple[StagedPart, ...] = ()
        self._next: tuple[StagedPart, ...] = ()
        self._last = self._published = 0
        self._recovered = False

    def load(self) -> None:
        """Reads the list. Must be called at the start, and after a command has changed the store.

        Raises:
            FormatUnknown: The record has another format version.
        """
        held = self._store.read_own(OWN_KEY, SINKS + self.sink.name)
        if held is not None and held.get("format") != FORMAT_VERSION:
            raise unknown_version(f"The record of sink {self.sink.name}", held.get("format"), FORMAT_VERSION)
        found = [] if held is None else held["staged"]
        self._committed = self._next = tuple(StagedPart(number, tuple(content)) for number, content in found)
        self._last = 0 if held is None else held["last"]
        self._published, self._recovered = 0, False

    def add(self, content: Sequence[Any]) -> None:
        """Adds what was staged to the list, in the task's next commit. Parts that are published leave the list."""
        # The clock makes the number greater than all former ones, also if the state was restored to an earlier time.
        self._last = max(self._last + 1, int(self._clock.time() * 1000))
        unpublished = (part for part in self._committed if part.sequence > self._published)
        self._next = (*unpublished, StagedPart(self._last, tuple(content)))
        record = {
            "format": FORMAT_VERSION,
            "last": self._last,
            "staged": [[part.sequence, list(part.content)] for part in self._next],
        }
        self._store.point_at(OWN_KEY, int(self._clock.time() * 1000))
        self._store.write_own(OWN_KEY, SINKS + self.sink.name, record)
        self._store.keep_message()

    def committed(self) -> None:
        """Must be called after each successful commit."""
        self._committed = self._next

    def restore(self) -> None:
        """Must be called after an aborted transaction."""
        self._next = self._committed

    @property
    def pending(self) -> bool:
        """Whether ``publish`` has work: committed parts, or the recovery of a task that has just started."""
        return not self._recovered or any(part.sequence > self._published for part in self._committed)

    @property
    def unpublished(self) -> int:
        """The number of committed parts that are not published."""
        return sum(part.sequence > self._published for part in self._committed)

    def publish(self) -> None:
        """Publishes committed parts.

        Raises:
            SinkBackpressureError: The system does not answer now.
        """
        parts = [part for part in self._committed if part.sequence > self._published]
        if not self._recovered:
            self.sink.recover(self.task, parts)
            # A part with a smaller number than a published one would be left out silently.
            self._last = max(self._last, self.sink.published(self.task))
            self._recovered = True
        elif parts:
            self.sink.publish(self.task, parts)
        self._published = max((part.sequence for part in parts), default=self._published)
