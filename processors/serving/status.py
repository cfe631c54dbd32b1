"""The status of a worker as JSON-ready data, and as the frozen facts that a reader makes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from infra.kafka.records import Partition

if TYPE_CHECKING:
    from processors.runtime.loop import Worker
    from processors.runtime.task import Task


@dataclass(frozen=True, slots=True)
class InputPosition:
    """One input partition: next offsets; ``lag`` is in records, None before the first fetch."""

    committed: int | None
    position: int | None
    end: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task."""

    task: str
    subtopology: str
    partition: int
    phase: str
    inputs: Mapping[str, InputPosition]
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    restore: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """One worker; times are seconds since 1970."""

    processor: str
    slot: str
    pid: int
    phase: str
    guarantee: str
    code_version: str
    started_at: float
    heartbeat_at: float
    error: Mapping[str, Any] | None
    records: Mapping[str, int]
    commits: Mapping[str, Any]
    tasks: tuple[TaskStatus, ...]

    @property
    def lag(self) -> int | None:
        """Records still to process, over all tasks; None while that can't be known (joining, restoring, waiting)."""
        if self.phase != "running":
            return None
        lags = [at.lag for task in self.tasks for at in task.inputs.values()]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if len(known) == len(lags) else None

    @staticmethod
    def decode(document: Mapping[str, Any]) -> ProcessorStatus:
        """From the ``/status`` document."""
        tasks = tuple(
            TaskStatus(
                task=task["task"],
                subtopology=task["subtopology"],
                partition=task["partition"],
                phase=task["phase"],
                inputs={topic: InputPosition(**at) for topic, at in task["inputs"].items()},
                stores=task["stores"],
                restore=task["restore"],
            )
            for task in document["tasks"]
        )
        return ProcessorStatus(**{**document, "tasks": tasks})


def describe_worker(worker: Worker, processor: str, slot: str, error: Mapping[str, Any] | None) -> dict[str, Any]:
    """The ``/status`` document; called on the worker's own thread."""
    return {
        "processor": processor,
        "slot": slot,
        "pid": os.getpid(),
        "phase": "failed" if error is not None else worker.phase.value,
        "guarantee": "exactly-once" if worker.options.exactly_once else "at-least-once",
        "code_version": worker.topology.code_version,
        "started_at": worker.started_at,
        "heartbeat_at": worker.heartbeat_at,
        "error": error,
        "records": {
            "processed": worker.processed,
            "outputs": worker.committer.sent,
            "dead_lettered": worker.failures.dead_lettered,
            "skipped": worker.failures.skipped,
        },
        "commits": {
            "count": worker.committer.count,
            "last_at": worker.committer.last_at,
            "last_ms": None if worker.committer.last_s is None else round(worker.committer.last_s * 1000, 3),
        },
        "tasks": [_describe_task(worker, task) for task in worker.assignment.tasks],
    }


def _describe_task(worker: Worker, task: Task) -> dict[str, Any]:
    inputs = {}
    member = worker.member
    for topic in task.inputs:
        position = task.positions.get(topic)
        end = member.high_watermark(Partition(topic, task.partition)) if member is not None else None
        lag = None if end is None else max(0, end - (position or 0))
        inputs[topic] = {"committed": task.committed.get(topic), "position": position, "end": end, "lag": lag}
    restore = worker.assignment.restoring.get(task.name)
    return {
        "task": task.name,
        "subtopology": task.subtopology,
        "partition": task.partition,
        "phase": task.phase.value,
        "inputs": inputs,
        "stores": {name: {"changelog": at.topic, "offset": at.offset} for name, at in dict(task.meta.stores).items()},
        "restore": None if restore is None else restore.progress(worker.clock.monotonic()),
    }
