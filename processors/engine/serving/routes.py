"""The HTTP routes of a worker: status, health, metrics, control, and owner commands.

An owner command is a request that only the worker which owns the task can carry out, for example to clear state. The
module ``guard`` decides which requests are allowed.

    GET    /health  /ready  /status  /metrics  /maintenance (the states of owner commands)
    POST   /checkpoint  /compact  /pause  /resume  /stop
    POST   /state/read (answered at once)
    POST   /state/count  /state/export  /state/clear  /state/adopt  /inputs/position  /inputs/until  (answer 202)

The server's threads never access the worker's state. They queue requests for the worker's main loop and wait. If the
loop does not answer in time, the HTTP answer is 503. ``/status`` then returns the last known status, whose heartbeat
shows its age.

Invariants:
    - The modification time of the endpoint file (the file with the server's URL) is the loop's last heartbeat. A
      process that can't reach the server can still see from the file how long the loop has been silent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import ADDRESS
from holdfast.infra.masking import masked
from holdfast.infra.settings import ServingSettings, Settings
from holdfast.infra.system.process import own_identity, start_mark
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.owner_commands.commands import (
    COMMAND_BYTES_MAX,
    COMMANDS,
    READ_PAGE,
    CommandRefused,
    CommandWrong,
    Read,
    decode,
    verb_of,
)
from holdfast.processors.engine.runtime.phases import Phase
from holdfast.processors.engine.runtime.requests import Request
from holdfast.processors.engine.serving.connections import RequestServer
from holdfast.processors.engine.serving.endpoint_file import Endpoint, read_endpoint, write_endpoint
from holdfast.processors.engine.serving.failure_file import write_failure
from holdfast.processors.engine.serving.guard import Guard, control_token
from holdfast.processors.engine.serving.local_checkpoints import take_checkpoint
from holdfast.processors.engine.serving.requests import Answer
from holdfast.processors.engine.serving.state.routes import StateRoutes
from holdfast.processors.engine.serving.state.worker_state import advertised, state_routes
from holdfast.processors.engine.serving.status import describe_worker

if TYPE_CHECKING:
    from holdfast.processors.engine.serving.metrics import WorkerMetrics

_log = structlog.get_logger("serving")

#: A function that makes the routes of queries with the guard of the server.
QueriesOf = Callable[[Guard], StateRoutes]

#: Maximum seconds that an HTTP request waits for the worker's main loop: a status request, and a control request.
STATUS_WAIT_S = 1.0
CONTROL_WAIT_S = 120.0
#: Seconds for which an answer of the worker's main loop, and a metrics page, are reused for later requests. A control
#: request ends the reuse early. Without the reuse, many requests could take all the time of the loop.
FRESH_S, PAGE_FRESH_S = 0.05, 0.25
#: Seconds between two writes of the heartbeat to the endpoint file.
HEARTBEAT_EVERY_S = 1.0

_NOT_READY = {
    Phase.STARTING: "it starts, and waits until Kafka initialises its producer",
    Phase.WARMING: "it fetches the state of its tasks to come, before it joins its group",
    Phase.JOINING: "it waits for partitions from its group",
    Phase.RESTORING: "it restores its state",
    Phase.WAITING: "no broker answers",
    Phase.STOPPING: "it stops",
    Phase.FAILED: "it failed",
}


def _refusal(code: int, failure: HoldfastError) -> Answer:
    return Answer(code, {"error": failure.message, "action": failure.action, "fields": failure.as_dict()["fields"]})


def _result(asked: Future[dict[str, Any]], wait_s: float) -> dict[str, Any] | None:
    """Waits for the worker's main loop to run the requested work. Returns the work's result, or raises its error.

    Returns None if the loop did not run the work within ``wait_s`` seconds.
    """
    wait([asked], wait_s)
    return asked.result() if asked.done() else None


class _Question:
    """A request to the worker's main loop whose answer many HTTP requests share.

    While the loop has not answered, no second request is queued.
    """

    def __init__(self, ask: Callable[[], Future[dict[str, Any]]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._asked: Future[dict[str, Any]] | None = None
        self._asked_at = 0.0

    def answer(self) -> dict[str, Any] | None:
        """Returns the loop's answer; None if the loop did not answer within ``STATUS_WAIT_S`` seconds."""
        with self._lock:
            now = time.monotonic()
            if self._asked is None or (self._asked.done() and now - self._asked_at > FRESH_S):
                self._asked, self._asked_at = self._ask(), now
            asked, until = self._asked, self._asked_at + STATUS_WAIT_S
        return _result(asked, max(0.0, until - now))

    def forget(self) -> None:
        """Drops the answer, because it may be out of date. The next call of ``answer`` asks the loop again."""
        with self._lock:
            if self._asked is not None and self._asked.done():
                self._asked = None


class ControlServer:
    """The HTTP server of one worker, with all its routes.

    Args:
        endpoint: The path of the worker's endpoint file.
        stuck_after_s: Seconds without a heartbeat after which the worker is reported as unhealthy.

    Raises:
        ServingImpossible: The server can't listen on its address or port.
    """

    def __init__(  # tidy: allow-wide because each argument is one fact about the worker or its place
        self,
        worker: Worker,
        processor: str,
        slot: str,
        endpoint: Path,
        checkpoints: Path,
        serving: ServingSettings | None = None,
        stuck_after_s: float = 30.0,
        queries: QueriesOf | None = None,
    ) -> None:
        self._worker = worker
        self._processor = processor
        self._slot = slot
        self._endpoint = endpoint
        self._checkpoints = checkpoints
        self._stuck_after_s = stuck_after_s
        self._error: Mapping[str, Any] | None = None
        self._lock = threading.Lock()
        self._beat = (worker.heartbeat_at, time.monotonic())
        self._closed = threading.Event()
        self._metrics: WorkerMetrics | None = None
        self._page, self._page_at = b"", 0.0
        self._page_of: Mapping[str, Any] = {}
        self._page_lock = threading.Lock()
        self._last: dict[str, Any] = describe_worker(worker, processor, slot, None)
        self._status = _Question(
            lambda: self._ask(lambda: describe_worker(worker, processor, slot, self._error), only_reads=True)
        )
        self._commands = _Question(
            lambda: self._ask(lambda: {"commands": worker.maintenance.all_told()}, only_reads=True)
        )
        serving = serving or ServingSettings()
        self._mark = start_mark(os.getpid()) or ""
        secret = serving.token
        own = None if secret is None else control_token(secret, processor, slot, os.getpid(), self._mark)
        self._guard = Guard(serving, own)
        self._pages: dict[str, Callable[[], Answer]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/status": lambda: Answer(200, self.status()),
            "/metrics": self._metrics_page,
            "/maintenance": self._maintenance,
        }
        self._verbs: dict[str, Callable[[], Answer]] = {
            "/checkpoint": lambda: self._control("checkpoint", self._checkpoint),
            "/compact": lambda: self._control("compact", self._compact),
            "/pause": lambda: self._control("pause", lambda: self._flow(worker.pause)),
            "/resume": lambda: self._control("resume", lambda: self._flow(worker.resume)),
            "/stop": self._stop,
        }
        bodies = dict.fromkeys((*COMMANDS, READ_PAGE), COMMAND_BYTES_MAX)
        pages = [*self._pages, *self._verbs, *bodies]
        made = None if queries is None else queries(self._guard)
        self._server = RequestServer(serving, self._guard, self._serve, pages, bodies, made)

    @property
    def port(self) -> int:
        """The port on which other machines reach the server."""
        return self._server.port

    def start(self) -> str:
        """Starts serving on background threads, writes the endpoint file, and returns the URL."""
        self._server.start()
        url = self._server.url
        needs = self._guard.reads_need_token
        endpoint = Endpoint(
            os.getpid(),
            url,
            self._guard.token,
            self._mark,
            needs,
            str(own_identity()),
            self._guard.state_token,
            self._worker.committer.transactional_id,
        )
        write_endpoint(self._endpoint, endpoint)
        threading.Thread(target=self._write_heartbeats, name="heartbeat", daemon=True).start()
        return url

    def failed(self, error: Mapping[str, Any]) -> None:
        """Writes the last status with the error to the failure file, which remains after this process has ended."""
        self._error = error
        self._last = {**describe_worker(self._worker, self._processor, self._slot, error), "tasks": []}
        write_failure(self._endpoint, self._last)

    def close(self) -> None:
        """Stops serving. Deletes the endpoint file, unless another process has replaced it."""
        self._closed.set()
        found = read_endpoint(self._endpoint)
        # The file is deleted before the port is closed. Otherwise, the file could point to a port that another program
        # has taken.
        if found is not None and found.pid == os.getpid():
            with suppress(OSError):
                self._endpoint.unlink()
        self._server.close()

    def status(self) -> dict[str, Any]:
        """Returns the current status; the last known status if the worker's main loop does not answer in time."""
        answer = self._status.answer()
        if answer is not None:
            self._last = answer
        silent_s = round(self.silent_s(), 3)
        return {
            **self._last,
            "heartbeat_at": self._worker.heartbeat_at,
            "silent_s": silent_s,
            "start_mark": self._mark,
            "queries": msgspec.to_builtins(self._server.query_figures),
        }

    def _ask(self, work: Callable[[], dict[str, Any]], *, only_reads: bool) -> Future[dict[str, Any]]:
        """Queues work for the worker's main loop, and returns a future of its result.

        If the future is cancelled before the work begins, the work is skipped.
        """
        asked: Future[dict[str, Any]] = Future()

        def run() -> None:
            if asked.set_running_or_notify_cancel():
                try:
                    asked.set_result(work())
                except Exception as failure:
                    asked.set_exception(failure)

        self._worker.requests.append(Request(run, only_reads))
        return asked

    def silent_s(self) -> float:
        """Returns the seconds since the main loop's last heartbeat, by the monotonic clock. Accuracy: about 1 s."""
        with self._lock:
            now = time.monotonic()
            if self._worker.heartbeat_at != self._beat[0]:
                self._beat = (self._worker.heartbeat_at, now)
            return now - self._beat[1]

    # -- routes that read ------------------------------------------------------------------------------------------

    def _serve(self, method: str, page: str, body: bytes) -> Answer:
        commands: dict[str, Callable[[], Answer]] = {name: partial(self._command, name, body) for name in COMMANDS}
        commands[READ_PAGE] = partial(self._read, body)
        posted = {**self._verbs, **commands}
        found = (posted if method == "POST" else self._pages).get(page)
        if found is not None:
            return found()
        if page in self._pages or page in posted:
            return Answer(405, {"error": f"{page} needs the method {'GET' if page in self._pages else 'POST'}"})
        known = ", ".join([*self._pages, *posted])
        return Answer(404, {"error": f"no such route; the routes are {known}"})

    def _health(self) -> Answer:
        silent_s = self.silent_s()
        healthy = silent_s <= self._stuck_after_s
        return Answer(200 if healthy else 503, {"status": "ok" if healthy else "stuck", "silent_s": round(silent_s, 3)})

    def _ready(self) -> Answer:
        silent_s, phase = self.silent_s(), self._worker.phase
        if silent_s > self._stuck_after_s:
            why = f"its loop has had no heartbeat for {silent_s:.0f} s"
        elif self._error is not None:
            why = _NOT_READY[Phase.FAILED]
        elif phase is Phase.RUNNING:
            return Answer(200, {"status": "ready", "phase": phase.value, "paused": self._worker.paused})
        else:
            why = _NOT_READY[phase]
        return Answer(503, {"status": "not ready", "phase": phase.value, "reason": why})

    def _metrics_page(self) -> Answer:
        # the metrics module is imported here, because the worker then starts faster
        from holdfast.processors.engine.serving.metrics import (
            CONTENT_TYPE,
            WorkerMetrics,
        )

        status = self.status()
        with self._page_lock:
            now = time.monotonic()
            metrics = self._metrics = self._metrics or WorkerMetrics()
            if self._page_of is not self._last or now - self._page_at > PAGE_FRESH_S:
                self._page_of, self._page_at = self._last, now
                self._page = metrics.page(status, self.silent_s())
            return Answer(200, self._page, CONTENT_TYPE)

    def _maintenance(self) -> Answer:
        answer = self._commands.answer()
        if answer is None:
            return Answer(503, {"error": f"the worker did not answer within {STATUS_WAIT_S:g} s"})
        return Answer(200, answer)

    # -- routes that change something ------------------------------------------------------------------------------

    def _command(self, page: str, body: bytes) -> Answer:
        """Starts an owner command (for example ``clear``) and answers at once. ``/maintenance`` shows its progress."""
        try:
            command = decode(page, body)
        except CommandWrong as wrong:
            return _refusal(400, wrong)
        assert not isinstance(command, Read)
        begun = self._control(verb_of(command), lambda: {"id": self._worker.maintenance.begin(command).id})
        return replace(begun, code=202) if begun.code == 200 else begun

    def _read(self, body: bytes) -> Answer:
        """Reads entries of the state and returns them in the HTTP answer.

        Unlike other commands, a read has no ticket (the record of a command, which programs without a token may read).
        A ticket must not contain values of the state.
        """
        try:
            asked = decode(READ_PAGE, body)
        except CommandWrong as wrong:
            return _refusal(400, wrong)
        assert isinstance(asked, Read)
        return self._control("read", lambda: self._worker.maintenance.read(asked))

    def _control(self, verb: str, work: Callable[[], dict[str, Any]]) -> Answer:
        """Runs the work on the worker's main loop, logs the request, and returns the work's result as the answer."""
        began = time.monotonic()
        asked = self._ask(work, only_reads=False)
        try:
            answer = _result(asked, CONTROL_WAIT_S)
            self._status.forget()
            self._commands.forget()
        except (CommandWrong, CommandRefused) as failure:
            _log.warning("control", verb=verb, error=failure.message)
            return _refusal(400 if isinstance(failure, CommandWrong) else 409, failure)
        except Exception as failure:
            _log.error("control", verb=verb, error=str(failure))
            return Answer(500, {"error": masked(str(failure))})
        if answer is None:
            asked.cancel()
            _log.error("control", verb=verb, error="the loop did not answer", waited_s=CONTROL_WAIT_S)
            return Answer(503, {"error": f"the worker did not answer within {CONTROL_WAIT_S:g} s"})
        _log.info("control", verb=verb, seconds=round(time.monotonic() - began, 3))
        return Answer(200, answer)

    def _checkpoint(self) -> dict[str, Any]:
        self._worker.commit_now()
        tasks, keeper = list(self._worker.assignment.tasks), self._worker.assignment.checkpoints
        storing = [] if keeper is None else keeper.ask_now(tasks)
        return {**take_checkpoint(tasks, self._processor, self._checkpoints), "storing": storing}

    def _compact(self) -> dict[str, Any]:
        began, before = time.monotonic(), self._store_bytes()
        self._worker.compact()
        return {"bytes_before": before, "bytes_after": self._store_bytes(), "seconds": time.monotonic() - began}

    def _store_bytes(self) -> int:
        return sum(task.store.size_bytes() for task in self._worker.assignment.tasks if task.store is not None)

    def _flow(self, change: Callable[[], None]) -> dict[str, Any]:
        change()
        return {"paused": self._worker.paused}

    def _stop(self) -> Answer:
        self._worker.stop()
        _log.info("control", verb="stop")
        return Answer(202, {"status": "stopping"})

    # -- heartbeats ------------------------------------------------------------------------------------------------

    def _write_heartbeats(self) -> None:
        told = False
        while not self._closed.wait(HEARTBEAT_EVERY_S):
            self.silent_s()
            try:
                at = self._worker.heartbeat_at
                os.utime(self._endpoint, (at, at))
            except OSError as failure:
                if not told:
                    told = True
                    _log.warning("heartbeats can't be written", path=str(self._endpoint), error=str(failure))


def serve_worker(worker: Worker, processor: str, slot: str, settings: Settings) -> ControlServer:
    """Returns the started server of a worker, with the address, limits and files from the settings.

    Raises:
        ServingImpossible: The server can't listen on its address or port.
    """
    endpoint, checkpoints = settings.paths.endpoint(processor, slot), settings.paths.checkpoints(processor)
    serving, stuck_after_s = settings.serving, settings.stuck_after_s
    queries = partial(state_routes, worker, slot, settings.paths.run, serving)
    server = ControlServer(worker, processor, slot, endpoint, checkpoints, serving, stuck_after_s, queries)
    url = server.start()
    if not serving.on_loopback:  # other machines can reach this worker
        worker.maintenance.cluster.be_reached_at(ADDRESS + advertised(serving, server.port))
    _log.info("status and control", url=url, port=server.port, tls=serving.tls_certificate is not None)
    return server
