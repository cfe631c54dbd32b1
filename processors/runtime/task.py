"""A task: one processor's work on one partition of a subtopology — its stores, input positions and pending outputs.

    CREATED ──open──► RESTORING ──restored──► RUNNING ──close──► CLOSED
                          └───────────────close──────────────────►┘

Moved only by ``Task.move``; an illegal move raises.

Invariants:
    - A message changes state, outputs and position together or not at all.
    - ``positions`` runs ahead of ``committed`` only by what is in the overlay and in the open transaction, and by
      the chosen start of an input that has no committed offset: the first commit pins it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from infra.errors import HoldfastError
from infra.kafka.records import Batch, Headers, Partition
from processors.changelog.format import FormatUnknown
from processors.dataframe.compilation import CurrentMessage, Output, Step, compile_steps
from processors.dataframe.dataframe import StreamingDataFrame
from processors.dataframe.serialization import Deserializer, ValueUnreadable
from processors.record_size import UNLIMITED
from processors.state.errors import StateFailed
from processors.state.store import StoreState
from processors.state.task_store import TaskMeta, TaskStore

_NONE: Mapping[str, Any] = {}


class FunctionExits(HoldfastError):
    """A user's function asked the whole process to end."""


#: What a function may raise that is no Exception, yet is its own doing.
_ENDING = (SystemExit, GeneratorExit)


class TaskPhase(Enum):
    """Where a task is in its life."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"


_MOVES = {
    TaskPhase.CREATED: {TaskPhase.RESTORING, TaskPhase.CLOSED},
    TaskPhase.RESTORING: {TaskPhase.RUNNING, TaskPhase.CLOSED},
    TaskPhase.RUNNING: {TaskPhase.CLOSED},
    TaskPhase.CLOSED: set(),
}


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message whose processing raised; its writes and outputs are undone already."""

    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    error: Exception


#: Decides about a failed message: an output that stands for it, None to skip it; raises to stop.
OnFailure = Callable[[FailedMessage], Output | None]


@dataclass(slots=True)
class _Stream:
    step: Step
    deserialize: Deserializer
    deserialize_key: Deserializer


class Task:
    """One task.

    Args:
        name: ``<subtopology>-<partition>``.
        subtopology: The subtopology's name.
        partition: The partition number.
        inputs: The input topics.
    """

    def __init__(self, name: str, subtopology: str, partition: int, inputs: tuple[str, ...]) -> None:
        self.name = name
        self.subtopology = subtopology
        self.partition = partition
        self.inputs = inputs
        self.phase = TaskPhase.CREATED
        self.store: TaskStore | None = None
        self.states: dict[str, StoreState] = {}
        self.meta = TaskMeta()
        self.committed: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        #: Where reading began: the committed offsets, or what was chosen where there were none.
        self.began: dict[str, int] = {}
        self.outputs: list[Output] = []
        self._streams: dict[str, _Stream] = {}
        self._current = CurrentMessage()
        self._record_bytes_max: Mapping[str, int] = _NONE

    def move(self, to: TaskPhase) -> None:
        """Go to the next phase.

        Raises:
            RuntimeError: The move is not in the drawing above.
        """
        if to not in _MOVES[self.phase]:
            raise RuntimeError(f"task {self.name} can't move from {self.phase.value} to {to.value}")
        self.phase = to

    def open(
        self,
        store: TaskStore | None,
        store_names: tuple[str, ...],
        changelogs: Mapping[str, str] = _NONE,
        record_bytes_max: Mapping[str, int] = _NONE,
    ) -> None:
        """Take the task's RocksDB (None for a task without stores) and start restoring.

        Args:
            store: The RocksDB.
            store_names: The stores in it.
            changelogs: By store, the changelog's topic, where it has one.
            record_bytes_max: By topic that is written to, how large a record may be.
        """
        self._record_bytes_max = record_bytes_max
        self.store = store
        if store is not None:
            self.meta = store.meta() or TaskMeta()
            for name in store_names:
                topic = changelogs.get(name, "")
                self.states[name] = StoreState(name, store, topic, record_bytes_max.get(topic, UNLIMITED))
        self.move(TaskPhase.RESTORING)

    def start(
        self, frames: Mapping[str, StreamingDataFrame], committed: Mapping[str, int], began: Mapping[str, int]
    ) -> None:
        """State is restored: compile the steps and be ready for messages.

        Args:
            frames: The streams by input topic.
            committed: The inputs' next offsets that the state holds.
            began: Where each input is read from: the same, and a chosen offset for inputs without one.
        """
        for topic in self.inputs:
            frame = frames[topic]
            step = compile_steps(frame.source, self.states, self._current, self.outputs.append, self._record_bytes_max)
            self._streams[topic] = _Stream(step, frame.topic.deserialize_value, frame.topic.deserialize_key)
        self.committed = dict(committed)
        self.began = dict(began)
        self.positions = dict(began)
        self.move(TaskPhase.RUNNING)

    def process(self, batch: Batch, first: int, last: int, on_failure: OnFailure) -> int:
        """Process records ``first`` to ``last`` (indices into the batch); return how many were new.

        Raises:
            Exception: ``on_failure`` chose to stop; the records before the failed one are processed.
        """
        topic = batch.partition.topic
        stream = self._streams[topic]
        keys = batch.keys[first:last]
        if self.states:
            distinct = {key for key in keys if key is not None}
            for state in self.states.values():
                state.prefetch(distinct)
        states = tuple(self.states.values())
        position = self.positions[topic]
        outputs, current, done = self.outputs, self._current, 0
        for index, key in enumerate(keys, first):
            offset = batch.offsets[index]
            if offset < position:
                continue
            mark = len(outputs)
            current.key = key
            try:
                value = _read(stream, key, batch.values[index], batch.partition, offset)
                stream.step(value[0], value[1], batch.timestamps[index], batch.headers[index])
            except (StateFailed, FormatUnknown):
                for state in states:
                    state.undo_message()
                del outputs[mark:]
                raise  # the state is at fault, not the message
            except (Exception, *_ENDING) as error:
                for state in states:
                    state.undo_message()
                del outputs[mark:]
                instead = on_failure(_failed(batch, index, error if isinstance(error, Exception) else _exits(error)))
                if instead is not None:
                    outputs.append(instead)
            else:
                for state in states:
                    state.keep_message()
            self.positions[topic] = position = offset + 1
            done += 1
        return done

    @property
    def progressed(self) -> bool:
        """Whether there is anything to commit."""
        return self.positions != self.committed

    def dirty_bytes(self) -> int:
        """Roughly how much memory the uncommitted writes hold."""
        return sum(state.dirty_bytes() for state in self.states.values())

    def drop(self) -> dict[str, int]:
        """Forget everything uncommitted; return where to read again (topic -> offset)."""
        for state in self.states.values():
            state.drop()
        self.outputs.clear()
        self.positions = {**self.began, **self.committed}
        return dict(self.positions)

    def close(self) -> None:
        """Drop what is uncommitted and release the RocksDB."""
        if self.phase is TaskPhase.CLOSED:
            return
        for state in self.states.values():
            state.drop()
        self.states.clear()
        self._streams.clear()
        if self.store is not None:
            self.store.close()
            self.store = None
        self.move(TaskPhase.CLOSED)


def _read(stream: _Stream, key: bytes | None, raw: bytes | None, partition: Partition, offset: int) -> tuple[Any, Any]:
    try:
        return (
            None if raw is None else stream.deserialize(raw),
            None if key is None else stream.deserialize_key(key),
        )
    except HoldfastError:
        raise
    except Exception as failure:
        shown = raw[:40] if raw is not None else b""
        raise ValueUnreadable(
            f"The message at {partition.topic}[{partition.number}] offset {offset} can't be read: {failure} "
            f"(it begins with {shown!r}).",
            action="Correct the producer or the topic's deserializer, or set dead_letter_topic.",
            topic=partition.topic,
            partition=partition.number,
            offset=offset,
        ) from failure


def _exits(error: BaseException) -> FunctionExits:
    return FunctionExits(
        f"A function raised {type(error).__name__}({error}), which would end the process in mid-message.",
        action="Raise an ordinary error for a message that can't be processed; call Application.stop() to end.",
        error=type(error).__name__,
    )


def _failed(batch: Batch, index: int, error: Exception) -> FailedMessage:
    return FailedMessage(
        batch.partition,
        batch.offsets[index],
        batch.keys[index],
        batch.values[index],
        batch.timestamps[index],
        batch.headers[index],
        error,
    )
