"""``sdf.test(value)``: runs the steps of a stream on one message, without Kafka."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.infra.kafka.records import Batch, Headers, Partition
from holdfast.processors.engine.formats.serialization import written_headers
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.step import StoreForm

if TYPE_CHECKING:
    from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame

#: One result of ``sdf.test``: value, key, timestamp, headers.
Result = tuple[Any, Any, int, Headers]


@dataclass(frozen=True, slots=True)
class Trial:
    """The message of one call of ``sdf.test``.

    ``state`` has the state of the message's key; the functions change it.
    """

    value: Any
    key: Any
    timestamp: int
    headers: Headers
    state: dict[str, Any] | None


def trial_of(
    frame: StreamingDataFrame, value: Any, key: Any, timestamp: int, headers: Any, state: dict[str, Any] | None
) -> list[Result]:
    """Returns the results of the stream's last steps. If a function raises an error, the error is raised unchanged.

    ``headers`` has names with their values; each value is bytes, text or None.

    Raises:
        StepInvalid: State is given, but the stream has no store or several stores. Or the stream comes after a step
            that groups or joins rows of tables.
    """
    if frame.topic.between:
        raise StepInvalid(
            f"`sdf.test` got a stream that begins at {frame.topic.name}. Its messages are changes of rows, which an "
            "earlier step makes.",
            action="Test the whole application with `InMemoryCluster`: produce rows, run, and read the results.",
        )
    trial = Trial(value, key, timestamp, written_headers(headers, "sdf.test") or None, state)
    found: list[Result] = []

    def collect(*result: Any) -> None:
        found.append(result)

    end = Node("update", collect, metadata=True, in_place=False)
    for tail in frame._tails:
        tail.children.append(end)
    try:
        _run(frame, trial)
    finally:
        for tail in frame._tails:
            tail.children.remove(end)
    return found


def _run(frame: StreamingDataFrame, trial: Trial) -> None:
    stores = sorted({node.store for node in frame.source.walk() if node.store is not None})
    task = Task("test-0", "test", 0, (frame.topic.name,))
    task.open(TaskStore(MemoryDatabases(lambda path, items: None), Path("unused")) if stores else None, tuple(stores))
    raw_key = None if trial.key is None else trial.key if isinstance(trial.key, bytes) else str(trial.key).encode()
    given = copy(frame)
    given.topic = copy(frame.topic)
    # The test's key is what the topic deserializes, so its bytes may not be those of a key of the topic.
    changes = [node for node in frame.source.walk() if node.of_engine is not None and node.of_engine.key_change]
    given._source = frame.source.bound({id(node): None for node in changes})
    given.topic.deserialize_value = lambda raw: trial.value
    given.topic.deserialize_key = lambda raw: trial.key
    name = frame.topic.name
    batch = Batch(
        Partition(name, 0),
        [raw_key],
        [None if trial.value is None else b""],
        [trial.timestamp],
        [0],
        [trial.headers],
    )
    try:
        task.start({name: given}, {name: 0}, {name: 0})
        kept = None if trial.state is None else task.states[_store_of(frame)]
        if kept is not None and trial.state is not None and raw_key is not None:
            kept.point_at(raw_key, trial.timestamp)
            for key, value in trial.state.items():
                kept.set(key, value)
            kept.keep_message()
        if not task.process(batch, 0, 1, _raise):  # the answer of a durable call is used after its commit
            for each in task.keepers:
                each.committed()
            task.process(batch, 0, 1, _raise)
        if kept is not None and trial.state is not None and raw_key is not None:
            kept.point_at(raw_key, trial.timestamp)
            left = dict(kept.items())
            trial.state.clear()
            trial.state.update(left)
    finally:
        task.close()


def _raise(failed: FailedMessage) -> None:
    raise failed.error


def _store_of(frame: StreamingDataFrame) -> str:
    stores = {
        node.store
        for node in frame.source.walk()
        if node.store is not None and node.kept is None and node.store_use.form is StoreForm.VALUES
    }
    if len(stores) == 1:
        return stores.pop()
    if frame._stem in stores:
        return frame._stem
    raise StepInvalid(
        f"`sdf.test` got `state`, and the stream has {len(stores) or 'no'} stores of functions; expected one.",
        action="Leave `state` out, or test the stream with `InMemoryCluster`.",
    )
