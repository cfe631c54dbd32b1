"""The route ``/status``: builds a worker's status as JSON data. Clients decode it to frozen dataclasses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.infra.system.memory import used_mib
from holdfast.processors.engine.connectors import SinkFigures, SourceFigures
from holdfast.processors.engine.queries.figures import QueryFigures
from holdfast.processors.engine.runtime.latency import COMMIT_BOUNDS_S
from holdfast.processors.engine.runtime.task.arrivals import Counts
from holdfast.processors.engine.state.time.stream_time import NO_TIME

if TYPE_CHECKING:
    from holdfast.processors.engine.runtime.loop import Worker
    from holdfast.processors.engine.runtime.task.task import Task
    from holdfast.processors.engine.runtime.task.task_time import TaskTime

#: Maximum number of timers that a status counts for each store and clock. The count takes time of the worker's main
#: loop.
TIMERS_COUNTED_MAX = 10_000

#: Seconds for which a status of a paused worker reuses the end offsets that it requested from Kafka.
ENDS_EVERY_S = 1.0

#: Seconds. A task that reads in time order holds back messages until another input has messages, too. A status lists
#: that input as ``awaited`` after this time.
AWAITED_FOR_S = 1.0


@dataclass(frozen=True, slots=True)
class InputPosition:
    """The status of one input partition.

    ``committed`` is the group's committed offset, and ``position`` the offset of the next message to process. ``end``
    and ``lag`` are None before the first fetch.
    """

    committed: int | None
    position: int | None
    end: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """The status of a schedule (a function that runs at set times, its slots).

    ``next`` is the time of the next slot, ``last`` of the last slot that ran, both in seconds since 1970. ``fired`` and
    ``missed`` are the numbers of slots that ran and that were missed.
    """

    next: float | None
    last: float | None = None
    fired: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class TimersStatus:
    """The timers of a store that have not fired yet. ``pending`` is their number.

    ``more`` is True if the count stopped at its limit. ``next_stream`` and ``next_processing`` are the times of the
    next timer of each clock (stream time, the worker's clock), in seconds since 1970; None without a timer. A store of
    schedules (functions that run at set times) has ``schedules``, and no timers.
    """

    pending: int
    more: bool = False
    next_stream: float | None = None
    next_processing: float | None = None
    schedules: Mapping[str, ScheduleStatus] = field(default_factory=dict)


class TaskArrivals(Counts, frozen=True):
    """Counts of a task's messages that were late, became dead letters, were skipped, or are in a wrong partition.

    ``per_minute`` is the recent rate of all these messages together.
    """

    per_minute: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of one task.

    ``store_bytes`` is the size of the task's database on disk, None without a store. ``keys`` and ``live_bytes`` are
    estimates for the database's live entries. ``state`` has for each store the number of reads, and the number of reads
    of values that were not in the cache (``misses``). ``checkpoint`` is the checkpoint that is being fetched or was
    used, or the reason why none was used. ``restored`` is the number of changelog records that were replayed before the
    task ran. The replay took ``restored_s`` seconds. ``stream_time`` is in seconds since 1970; None without windows or
    before the first message. ``late`` has for each store the number of windows for which messages were late, since the
    task started on this worker. ``timers`` has for each store the timers that have not fired. ``awaited`` are
    inputs without new messages. A task that reads in time order has waited at least a second for them, and holds back
    the messages of its other inputs. ``arrivals`` also counts messages that earlier owners have processed.
    """

    task: str
    subtopology: str
    partition: int
    phase: str
    inputs: Mapping[str, InputPosition]
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    restore: Mapping[str, Any] | None = None
    store_bytes: int | None = None
    state: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    checkpoint: Mapping[str, Any] | None = None
    restored: int = 0
    restored_s: float = 0.0
    keys: int | None = None
    live_bytes: int | None = None
    stream_time: float | None = None
    late: Mapping[str, int] = field(default_factory=dict)
    timers: Mapping[str, TimersStatus] = field(default_factory=dict)
    awaited: tuple[str, ...] = ()
    arrivals: TaskArrivals = field(default_factory=TaskArrivals)


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """The status of one standby: a copy of a task that another process runs.

    ``phase`` is ``behind`` (replaying old records), ``following``, or ``waiting`` (for a retry after ``error``).
    ``stores`` has for each store its changelog, and its position, end and lag in offsets. The standby contains all
    changes up to ``complete_at``, in seconds since 1970. ``checkpoint`` is the checkpoint from which the standby
    started; None without a checkpoint. ``records`` is the number of changelog records that were replayed after it.
    """

    task: str
    subtopology: str
    partition: int
    phase: str
    stores: Mapping[str, Mapping[str, Any]]
    lag: int | None
    complete_at: float | None
    records: int
    error: str | None = None
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorsStatus:
    """The figures of the sources of a worker's tasks, of the worker's sinks, and of queries about stores, by name."""

    sources: Mapping[str, SourceFigures] = field(default_factory=dict)
    sinks: Mapping[str, SinkFigures] = field(default_factory=dict)
    queries: Mapping[str, QueryFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessorStatus(ConnectorsStatus):
    """The status of one worker. Times are in seconds since 1970.

    ``silent_s`` is the time since the last heartbeat by the worker's monotonic clock, which ignores changes of the
    system clock; None from a worker of an older version. ``maintenance`` is the running owner command (a change of
    state that an operator requested): id, verb, and ``done`` of ``total`` (None if unknown). While the number of
    workers changes, ``prepared`` tells whether the worker has the state of all tasks that it will get; otherwise it is
    None. ``memory_mib`` is the worker's resident memory. ``global_tables`` has for each topic: the number of rows, the
    number of unreadable rows, the bytes of memory, whether rows are being loaded, and the remaining offsets.
    ``warnings`` has texts about tables that may lose rows, each with an action. ``lookups`` has for each
    ``join_lookup`` function the cache's hits, misses and entries.
    """

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
    silent_s: float | None = None
    paused: bool = False
    checkpoints: Mapping[str, Any] | None = None
    standbys: tuple[StandbyStatus, ...] = ()
    maintenance: Mapping[str, Any] | None = None
    prepared: bool | None = None
    memory_mib: float | None = None
    global_tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    lookups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """The lag of all tasks in input records; None while the worker joins, restores or waits."""
        lags = [at.lag for task in self.tasks for at in task.inputs.values()]
        return _lag_of(self.phase, lags)

    @property
    def stream_time(self) -> float | None:
        """The smallest stream time of the tasks, in seconds since 1970; None without windows."""
        return min((task.stream_time for task in self.tasks if task.stream_time is not None), default=None)

    @property
    def timers(self) -> TimersStatus | None:
        """The sum of the timers of all tasks; None for a processor without timers."""
        return together([each for task in self.tasks for each in task.timers.values()])

    @staticmethod
    def decode(document: Mapping[str, Any]) -> ProcessorStatus:
        """Decodes a ``/status`` document. Unknown fields, from a newer worker, are ignored.

        Raises ValueError if the document is not a status.
        """
        return msgspec.convert(document, ProcessorStatus)


def together(timers: Sequence[TimersStatus]) -> TimersStatus | None:
    """Adds up the timers of several stores, tasks or workers; None if ``timers`` is empty."""
    timers = [each for each in timers if not each.schedules]
    if not timers:
        return None
    return TimersStatus(
        sum(each.pending for each in timers),
        any(each.more for each in timers),
        min((each.next_stream for each in timers if each.next_stream is not None), default=None),
        min((each.next_processing for each in timers if each.next_processing is not None), default=None),
    )


def schedules_together(timers: Sequence[TimersStatus]) -> dict[str, ScheduleStatus]:
    """Combines the statuses of the same schedules from several tasks or workers, by name.

    The result has the earliest next slot, the latest last slot, and the sums of the fired and of the missed slots.
    """
    found: dict[str, list[ScheduleStatus]] = {}
    for name, each in (pair for of in timers for pair in of.schedules.items()):
        found.setdefault(name, []).append(each)
    return {
        name: ScheduleStatus(
            min((each.next for each in own if each.next is not None), default=None),
            max((each.last for each in own if each.last is not None), default=None),
            sum(each.fired for each in own),
            sum(each.missed for each in own),
        )
        for name, own in sorted(found.items())
    }


def describe_worker(worker: Worker, processor: str, slot: str, error: Mapping[str, Any] | None) -> dict[str, Any]:
    """Builds the ``/status`` document. It must be called on the worker's main thread."""
    # This module is imported here, because a client that only decodes a status does not need it. A worker has already
    # loaded it.
    from holdfast.processors.engine.dataframe.calls import lookup_figures
    from holdfast.processors.engine.dataframe.sinks import sink_figures

    committer = worker.committer
    phase = "failed" if error is not None else worker.phase.value
    if worker.paused:
        worker.maintenance.ends.begin(ENDS_EVERY_S)
    owned = worker.assignment.tasks
    tasks = [_describe_task(worker, task) for task in owned]
    boxes = [box for task in owned for box in task.outboxes.values()]
    streams = [frame.source for frame in worker.frames.values()]
    sources = {name: each for task in owned if task.sources for name, each in task.sources.figures(task.name).items()}
    return {
        "processor": processor,
        "slot": slot,
        "pid": os.getpid(),
        "phase": phase,
        "paused": worker.paused,
        "guarantee": "exactly-once" if worker.options.exactly_once else "at-least-once",
        "code_version": worker.topology.code_version,
        "started_at": worker.started_at,
        "heartbeat_at": worker.heartbeat_at,
        "error": error,
        "lag": _lag_of(phase, [at["lag"] for task in tasks for at in task["inputs"].values()]),
        "records": {
            "processed": worker.processed,
            "outputs": committer.sent,
            "dead_lettered": worker.failures.dead_lettered,
            "skipped": worker.failures.skipped,
        },
        "commits": {
            "count": committer.count,
            "aborted": committer.aborts,
            "last_at": committer.last_at,
            "last_ms": None if committer.last_s is None else round(committer.last_s * 1000, 3),
            "latency": {
                "bounds_s": list(COMMIT_BOUNDS_S),
                "counts": list(committer.latency.counts),
                "sum_s": round(committer.latency.sum_s, 6),
            },
        },
        "checkpoints": None if worker.assignment.checkpoints is None else worker.assignment.checkpoints.told(),
        "tasks": tasks,
        "standbys": worker.assignment.standbys.told(),
        "warnings": worker.warnings,
        "global_tables": worker.global_tables.told(),
        "lookups": lookup_figures(streams),
        "sources": msgspec.to_builtins(sources),
        "sinks": msgspec.to_builtins(sink_figures(streams, boxes)),
        "maintenance": worker.maintenance.told(),
        "memory_mib": used_mib(),
        "prepared": worker.assignment.standbys.prepared({task.name for task in worker.assignment.tasks}),
    }


def _describe_task(worker: Worker, task: Task) -> dict[str, Any]:
    inputs = {}
    member = worker.member
    for topic in task.inputs:
        position = task.positions.get(topic)
        place = Partition(topic, task.partition)
        fetched = None if member is None else member.high_watermark(place)
        end = fetched
        # A paused worker fetches nothing, so the end offset of its last fetch is out of date. The end offset is
        # requested from Kafka instead.
        if member is not None and worker.paused:
            end = worker.maintenance.ends.end_of(place, member)
        lag = None if end is None else max(0, end - (position or 0))
        ended = member is not None and member.is_ended(place) and end == fetched
        if lag and ended and not (task.order and task.order.buffered):
            lag = 0  # the lag is 0: only transaction markers, and no records, follow the position
        inputs[topic] = {"committed": task.committed.get(topic), "position": position, "end": end, "lag": lag}
    restore = worker.assignment.restoring.get(task.name)
    return {
        "task": task.name,
        "subtopology": task.subtopology,
        "partition": task.partition,
        "phase": task.phase.value,
        "inputs": inputs,
        "stores": store_offsets(task),
        "awaited": [] if task.order is None else task.order.awaited_for(worker.clock.monotonic(), AWAITED_FOR_S),
        "restore": None if restore is None else restore.progress(worker.clock.monotonic()),
        "checkpoint": worker.assignment.checkpoint_of(task.name),
        "restored": task.restored,
        "restored_s": round(task.restored_s, 3),
        **_sizes_of(task),
        **_time_of(task),
        "arrivals": _arrivals_of(task),
        "state": {name: {"reads": state.reads, "misses": state.misses} for name, state in task.states.items()},
    }


def store_offsets(task: Task) -> dict[str, dict[str, Any]]:
    """Returns for each store its changelog's name, the topic id of the changelog, and the next offset to replay."""
    stores = dict(task.meta.stores)
    return {name: {"changelog": at.topic, "topic_id": at.topic_id, "offset": at.offset} for name, at in stores.items()}


def _time_of(task: Task) -> dict[str, Any]:
    schedules = {} if task.schedules is None else task.schedules.described()
    if task.time is None:
        return {"stream_time": None, "late": {}, "timers": schedules}
    time_ms = task.time.stream.time_ms
    return {
        "stream_time": None if time_ms == NO_TIME else time_ms / 1000,
        "late": task.time.late,
        "timers": {**_timers_of(task.time), **schedules},
    }


def _arrivals_of(task: Task) -> dict[str, Any]:
    return {**msgspec.to_builtins(task.arrivals.counts()), "per_minute": round(task.arrivals.per_minute, 3)}


def _timers_of(time: TaskTime) -> dict[str, Any]:
    if time.timers is None:
        return {}
    told = {}
    try:
        for store, found in time.timers.pending(TIMERS_COUNTED_MAX).items():
            nexts = {f"next_{clock}": None if at is None else at / 1000 for clock, at in found.next.items()}
            told[store] = {"pending": found.pending, "more": found.more, **nexts}
    except HoldfastError:
        return {}  # the worker's main loop raises this error itself, so the status only leaves out the timers
    return told


def _sizes_of(task: Task) -> dict[str, int | None]:
    try:
        keys, live_bytes = (None, None) if task.store is None else task.store.estimates()
        return {
            "store_bytes": None if task.store is None else task.store.size_bytes(),
            "keys": keys,
            "live_bytes": live_bytes,
        }
    except Exception:
        # The worker's main loop raises an error of the database itself. The status must be available in spite of this
        # error.
        return {"store_bytes": None, "keys": None, "live_bytes": None}


def _lag_of(phase: str, lags: list[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if phase == "running" and len(known) == len(lags) else None
