"""Dagster's run launcher for one machine: limits by kind, a health check of a run's process, and a sure end.

Dagster's launcher leaves the health check to the code server that started the process. When the code server was killed
too (with the daemon's session, or with the machine), a run stays STARTED forever. It keeps its pool and its
``processor`` tag, so no recovery and no deployment of that processor can start.

Dagster's launcher ends a run by an interrupt, which a process that is blocked in C or frozen never sees. Dagster then
marks the run as ended and frees its pool, while the process still works on the same state.

Invariants:
    - Loading this module imports Dagster alone, because every process of an instance loads it.
    - A run is failed only when its process is known and has ended. No clock is read: a clock that is set never ends a
      run. The process is known by its identity (``system.process``), which the daemon writes into the run's log. A tag
      would be lost: the run's process, which starts at that moment, writes its run back with the tags that it read.
    - A run without that entry, as one of a former version, has its process judged by id and by the home folder in that
      process's environment, and gets its entry then.
    - A run is launched once, also by two daemons (``launches``).
    - A process is signalled only when it is the run's: on this machine, of this instance, and recorded for this run.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DefaultRunLauncher,
    Field,
    Float,
    MetadataValue,
)
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import EngineEventData
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, WorkerStatus

from holdfast.infra.system.process import ProcessIdentity, end_tree, fate_of, identity_of, own_identity
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.host import launches

#: The metadata entry, in the run's log, with the identity of its process.
PROCESS_ENTRY = "holdfast/process"
#: Dagster's tag with the address of the code server that started a run.
GRPC_INFO_TAG = ".dagster/grpc_info"
#: What gRPC says of a server that it could not connect to.
NEVER_REACHED = "failed to connect to all addresses"
#: What Dagster says of a server that took longer than its limit for an answer, a minute.
ANSWERS_LATE = "timed out due to taking longer than"
#: How long a launched run may take to name its process, seconds; it has done so in nearly all cases.
NAMED_WITHIN_S = 5.0
#: How long the process of an interrupted run may take to end before it is killed, seconds.
GRACE_S = 20.0


class LaunchUnclear(Exception):
    """A code server was asked to start a run, and its answer was lost."""


class LocalRunLauncher(DefaultRunLauncher):
    """A ``DefaultRunLauncher`` whose runs have a limit, and end with their processes.

    ``grace_seconds`` in ``dagster.yaml`` is how long an interrupted run may take before its process is killed.
    """

    def __init__(self, inst_data: Any = None, grace_seconds: float = GRACE_S) -> None:
        super().__init__(inst_data)
        self._grace_s = grace_seconds

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """One optional entry, ``grace_seconds``."""
        return {"grace_seconds": Field(Float, is_required=False, default_value=GRACE_S)}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "LocalRunLauncher":
        """The launcher of an instance."""
        return cls(inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run with its kind and its limit as tags, and record its process as soon as the run names it.

        A run that another daemon launched is left to it.
        """
        from holdfast.infra.settings import load_settings
        from holdfast.orchestration.host.run_time_limits import new_tags

        run = context.dagster_run
        if not launches.is_first(self._instance, run.run_id):
            self._instance.report_engine_event("Another daemon launched this run; it is not launched again.", run)
            launches.restate(self._instance, run.run_id)
            return
        assets, checks = run.asset_selection or (), run.asset_check_selection or ()
        only_checks = bool(checks) and not assets
        tags = new_tags(run.job_name, run.tags, assets, load_settings().runs, only_checks=only_checks)
        self._instance.add_run_tags(run.run_id, tags)
        try:
            super().launch_run(context)
        except DagsterUserCodeUnreachableError as lost:
            if NEVER_REACHED in str(lost):
                raise  # nothing was started: Dagster puts the run into the queue again
            if ANSWERS_LATE in str(lost):
                # A busy machine: its process may start later. `run_monitoring` fails a run that does not start in time.
                self._instance.report_engine_event(f"{lost} The run is waited for: it may start late.", run)
                return
            # Its process may run. An error of another type makes Dagster fail the run in place of launching it twice.
            raise LaunchUnclear(f"The code server did not say whether it started run {run.run_id}: {lost}") from lost
        # The run runs: an error here would make Dagster fail it beside its process. The health check records later.
        with suppress(Exception):
            pid = wait_until(lambda: self._process_of(run.run_id), NAMED_WITHIN_S)
            if pid is not None:
                self._record(run.run_id, pid)

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run and wait until its process has ended, which is killed after the grace period.

        True when the run's process is known to have ended, else what Dagster's launcher answered.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._note_overdue(run)
        process = self._own_process(run)
        try:
            asked = bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        except Exception as unreachable:  # the code server is gone or hangs: the process is ended all the same
            if process is None:
                raise
            asked = False
            self._instance.report_engine_event(f"The code server took no interrupt: {unreachable}", run)
        if process is None:
            return asked
        if not end_tree(process.pid, process.mark, timeout_s=self._grace_s, asked=asked):
            late = f"Process {process.pid} of the run did not end within {self._grace_s:g} s of its interrupt"
            self._instance.report_engine_event(f"{late}, and was killed.", run)
        now = self._instance.get_run_by_id(run_id)
        if now is not None and not now.is_finished:
            self._instance.report_run_canceled(now, f"Process {process.pid} of the run has ended.")
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: Dagster's ``run_monitoring`` calls ``check_run_worker_health``."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """FAILED when the process that the run named has ended; RUNNING otherwise."""
        if not _is_on_this_machine(run):
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its code server may be on another machine")
        identity = self.recorded(run.run_id)
        if identity is None:
            pid = self._process_of(run.run_id)
            if pid is None:
                return CheckRunHealthResult(WorkerStatus.RUNNING, "the run has recorded no process yet")
            identity = self._record(run.run_id, pid)
            if identity is None:
                return _ended(pid)
        if fate_of(identity) != "running":
            return _ended(identity.pid)
        return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=str(identity.pid))

    def _note_overdue(self, run: DagsterRun) -> None:
        """Tag a run that is ended because of its limit, and write into its log what to do."""
        from holdfast.orchestration.host.run_time_limits import OVERDUE_TAG, overdue_s, overdue_words

        record = self._instance.get_run_record_by_id(run.run_id)
        age = None if record is None else overdue_s(run.tags, record.start_time, time.time())
        if age is None:
            return
        tags = {OVERDUE_TAG: f"{age:.0f}"}
        self._instance.add_run_tags(run.run_id, tags)
        self._instance.report_engine_event(overdue_words(run.run_id, run.job_name, {**run.tags, **tags}) or "", run)

    def _own_process(self, run: DagsterRun) -> ProcessIdentity | None:
        """The live process of a run; None when it is not known for sure."""
        if not _is_on_this_machine(run):
            return None
        identity = self.recorded(run.run_id)
        if identity is None:
            pid = self._process_of(run.run_id)
            identity = None if pid is None else self._record(run.run_id, pid)
        if identity is None or identity.pid == os.getpid() or fate_of(identity) != "running":
            return None
        return identity

    def _record(self, run_id: str, pid: int) -> ProcessIdentity | None:
        """The identity of a run's process, recorded; None when the process has ended."""
        identity = identity_of(pid)
        ours = _dagster_home("self")
        # a process of a stranger has the id that the run had
        if identity is None or (ours and _dagster_home(str(pid)) not in (ours, None)):
            return None
        run = self._instance.get_run_by_id(run_id)
        self._instance.report_engine_event(*_told(identity, run))
        return identity

    def recorded(self, run_id: str) -> ProcessIdentity | None:
        """The identity of a run's process, from its log; None when it was not recorded."""
        text = self._last_told(run_id, PROCESS_ENTRY)
        return None if text is None else ProcessIdentity.parse(text)

    def _process_of(self, run_id: str) -> int | None:
        """The id of the process that the run named last."""
        pid = self._last_told(run_id, "pid")
        return None if pid is None else int(pid)

    def _last_told(self, run_id: str, entry: str) -> str | None:
        """The newest value of a metadata entry in the run's log."""
        for record in reversed(self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT)):
            event = record.dagster_event
            value = None if event is None else event.engine_event_data.metadata.get(entry)
            if value is not None:
                return str(value.value)
        return None


def record_own_process(instance: DagsterInstance, run_id: str, job_name: str) -> None:
    """Record this process as the one of a run that it is about to execute itself.

    The health check compares DAGSTER_HOME, and of another process it sees only the environment at its start. Without
    this entry it takes a program that sets the variable later for a stranger, and fails the run.
    """
    instance.report_engine_event(*_told(own_identity()), run_id=run_id, job_name=job_name)


def _told(process: ProcessIdentity, run: DagsterRun | None = None) -> tuple[str, DagsterRun | None, EngineEventData]:
    """The entry of a run's log that records its process: words, run and metadata."""
    entry = EngineEventData(metadata={PROCESS_ENTRY: MetadataValue.text(str(process))})
    return f"Process {process.pid} works on this run.", run, entry


def _is_on_this_machine(run: DagsterRun) -> bool:
    """Whether the code server that started a run listens on a socket file, or on this machine's loopback."""
    server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    return bool(server.get("socket")) or server.get("host") in (None, "localhost", "127.0.0.1")


def _dagster_home(process: str) -> str | None:
    """DAGSTER_HOME in the environment of a process, which a run inherits from the daemon; None when it is not known."""
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith("DAGSTER_HOME=")), "")


def _ended(pid: int) -> CheckRunHealthResult:
    return CheckRunHealthResult(WorkerStatus.FAILED, f"its process {pid} has ended", run_worker_id=str(pid))
