"""Runs a worker: connects its loop with signal handlers, the HTTP server and the progress line."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from holdfast.infra.clock import SystemClock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.schemas.errors import SchemaRegistryAway
from holdfast.infra.schemas.registry import Patience, Registries
from holdfast.processors.application.describe import Declared
from holdfast.processors.engine.changelog.names import transactional_id
from holdfast.processors.engine.commands.table import COMMANDS
from holdfast.processors.engine.dataframe.sinks import close_sinks
from holdfast.processors.engine.formats.topic_format import connect_all
from holdfast.processors.engine.record_size import UNLIMITED
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.ownership.checks.same_changelogs import SameChangelogs
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.task.failure_policy import Callbacks, FailurePolicy
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("application.worker_start")

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings


@dataclass(frozen=True, slots=True)
class How:
    """Options for a worker's run: when the run ends, and how its progress is displayed.

    A run ends after ``count`` messages, or after ``timeout`` seconds without a message; 0 means no limit.
    """

    count: int
    timeout: float
    serve: bool
    foreground: bool


def make_worker(
    declared: Declared,
    callbacks: Callbacks,
    topology: Topology,
    cluster: Cluster,
    assignment: Assignment,
    folder: StateFolder,
    settings: Settings,
) -> Worker:
    """Returns a worker. The serializers of its topics are connected to their schema registries.

    Raises:
        SchemaRegistryFailed: A schema registry refuses the client, or does not answer.
        SchemaRegistryInvalid: The configuration of a schema registry can't be used.
    """
    options, rejects = assignment.options, declared.dead_letter_topic
    limit = options.record_bytes_max.get(rejects or "", UNLIMITED)
    moved = [name for name, frame in declared.frames.items() if frame.topic.between == "table groups"]
    failures = FailurePolicy(
        rejects, callbacks, declared.group, topology.code_version, limit, options.record_times, moved
    )
    name = transactional_id(declared.group, folder.id, folder.slot)
    worker = Worker(topology, declared.frames, cluster, options, failures, assignment, name, COMMANDS)
    worker.global_tables.declare(declared.global_tables)
    real = isinstance(cluster.clock, SystemClock)
    # With a virtual clock (in tests), nothing is retried: the start fails if a schema registry does not answer.
    patience = Patience(options.broker_timeout_s, worker.while_waiting, lambda: worker.stopping) if real else Patience()
    functions = [each for topic in declared.topics for each in topic.functions]
    connect_all(functions, Registries(settings.schema_registry, patience))
    if real:  # `SameChangelogs` checks topics on a background thread, which needs real time and not virtual time.
        worker.same_changelogs = SameChangelogs(topology, cluster)
    return worker


def run_worker(worker: Worker, group: str, slot: str, settings: Settings, how: How) -> None:
    """Runs a worker until it ends.

    Raises:
        HoldfastError: The error that stopped the worker.
    """
    restore_signals = stop_on_signals(worker.stop)
    server = None
    shown: AbstractContextManager[None] = nullcontext()
    try:
        if how.serve:
            from holdfast.processors.engine.serving.routes import serve_worker

            server = serve_worker(worker, group, slot, settings)
        if how.foreground:
            from holdfast.processors.engine.serving.live_line import live_line

            shown = live_line(worker, group, slot)
        if server is not None:
            # What the start has made lives as long as the worker. A search for garbage in it stops the loop and the
            # server's thread for milliseconds.
            gc.freeze()
        with shown, worker.global_tables.in_use():
            worker.run(count=how.count, timeout_s=how.timeout)
    except HoldfastError as error:
        if worker.stopping and error.cause == SchemaRegistryAway.cause:
            _log.warning("stopped while the schema registry did not answer", error=error.message)
            return
        if server is not None:
            server.failed(error.as_dict())
        raise
    finally:
        close_sinks(frame.source for frame in worker.frames.values())
        worker.global_tables.close()
        if server is not None:
            server.close()
        restore_signals()


def stop_on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Calls ``stop`` on SIGTERM and SIGINT. Returns a function that restores the previous signal handlers.

    Outside of the main thread nothing is changed, because Python allows no signal handlers there.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in former:
        signal.signal(number, lambda *_: stop())

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    return restore
