"""A Dagster run launcher for one machine, with runtime limits, a reliable health check, and a reliable end of runs.

Problems of Dagster's own launcher that this module solves:
    - Its health check asks the code server that started the run. If the code server was killed too, for example with
      the machine, the run stays STARTED forever. The run then blocks its pool and its processor, so no recovery and no
      deployment of the processor can start.
    - It ends a run by an interrupt, which has no effect on a process that is frozen or blocked in C code. Dagster then
      marks the run as ended and frees its pool, while the process still changes the same state.

Invariants:
    - This module imports no heavy library except Dagster, because every process of a Dagster instance imports it.
    - A run is marked as failed only if its process is known and has ended. No time is compared, so a change of the
      clock never fails a run. The daemon writes the identity of the run's process (``system.process``) to the run's
      log. A tag would not be reliable, because the starting process overwrites the tags of its run.
    - If a run has no such log entry, for example a run of an older version, its process is found by process id. The
      process must have the DAGSTER_HOME of this instance; then the entry is written.
    - A run is launched only once, even by two daemons (``launches``).
    - A process gets a signal only if it runs on this machine, for this instance, and is recorded for this run.
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

#: Name of the metadata entry in a run's log that has the identity of the run's process.
PROCESS_ENTRY = "holdfast/process"
#: Dagster's run tag with the address of the code server that started the run.
GRPC_INFO_TAG = ".dagster/grpc_info"
#: Part of gRPC's error message if it could not connect to a code server.
NEVER_REACHED = "failed to connect to all addresses"
#: Part of Dagster's error message if a code server did not answer within one minute.
ANSWERS_LATE = "timed out due to taking longer than"
#: Maximum seconds to wait until a launched run has logged its process id; nearly all runs log the id at once.
NAMED_WITHIN_S = 5.0
#: Maximum seconds that the process of an interrupted run may take to end before it is killed.
GRACE_S = 20.0


class LaunchUnclear(Exception):
    """A code server was requested to start a run, but no answer arrived, so the run may or may not have started."""


class LocalRunLauncher(DefaultRunLauncher):
    """A ``DefaultRunLauncher`` that limits the runtime of runs, and fails a run if its process has ended.

    ``grace_seconds`` in ``dagster.yaml``: maximum seconds between the interrupt of a run and the kill of its process.
    """

    def __init__(self, inst_data: Any = None, grace_seconds: float = GRACE_S) -> None:
        super().__init__(inst_data)
        self._grace_s = grace_seconds

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """The schema of this launcher in ``dagster.yaml``: one optional entry, ``grace_seconds``."""
        return {"grace_seconds": Field(Float, is_required=False, default_value=GRACE_S)}

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "LocalRunLauncher":
        """The launcher with the configuration of a Dagster instance; Dagster calls this method."""
        return cls(inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run, tagged with its kind and its runtime limit, and record its process when the run logs its id.

        If another daemon already launched the run, nothing is launched.
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
                raise  # The run's process was not started. With this error, Dagster queues the run again.
            if ANSWERS_LATE in str(lost):
                # On a busy machine, the run's process may start late. If the process never starts, Dagster's
                # `run_monitoring` fails the run.
                self._instance.report_engine_event(f"{lost} The run is waited for: it may start late.", run)
                return
            # The run's process may be running. With LaunchUnclear, Dagster fails the run and does not launch it twice.
            raise LaunchUnclear(f"The code server did not say whether it started run {run.run_id}: {lost}") from lost
        # Errors are ignored, because an error here would make Dagster fail a run whose process works. The health check
        # records the process later.
        with suppress(Exception):
            pid = wait_until(lambda: self._process_of(run.run_id), NAMED_WITHIN_S)
            if pid is not None:
                self._record(run.run_id, pid)

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run and wait until its process has ended; kill the process after the grace period.

        Returns True if the run's process is known to have ended, otherwise the result of Dagster's launcher.
        """
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        self._note_overdue(run)
        process = self._own_process(run)
        try:
            asked = bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        # The code server has ended or hangs. The next step ends the run's process.
        except Exception as unreachable:
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
        """True, so that Dagster's ``run_monitoring`` calls ``check_run_worker_health``."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """FAILED if the run's recorded process has ended; RUNNING otherwise, even if the process is unknown."""
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
        """If a run reached its runtime limit, tag it as overdue, and write the reason and an action to its log."""
        from holdfast.orchestration.host.run_time_limits import OVERDUE_TAG, overdue_s, overdue_words

        record = self._instance.get_run_record_by_id(run.run_id)
        age = None if record is None else overdue_s(run.tags, record.start_time, time.time())
        if age is None:
            return
        tags = {OVERDUE_TAG: f"{age:.0f}"}
        self._instance.add_run_tags(run.run_id, tags)
        self._instance.report_engine_event(overdue_words(run.run_id, run.job_name, {**run.tags, **tags}) or "", run)

    def _own_process(self, run: DagsterRun) -> ProcessIdentity | None:
        """The live process of a run; None if the process has ended, or is not certain to belong to the run."""
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
        """Write the identity of a run's process to the run's log. Returns this identity; None if the process ended."""
        identity = identity_of(pid)
        ours = _dagster_home("self")
        # If DAGSTER_HOME differs, the run's process has ended, and a process of another program has the same id now.
        if identity is None or (ours and _dagster_home(str(pid)) not in (ours, None)):
            return None
        run = self._instance.get_run_by_id(run_id)
        self._instance.report_engine_event(*_told(identity, run))
        return identity

    def recorded(self, run_id: str) -> ProcessIdentity | None:
        """The process identity that the run's log contains; None if it was not recorded."""
        text = self._last_told(run_id, PROCESS_ENTRY)
        return None if text is None else ProcessIdentity.parse(text)

    def _process_of(self, run_id: str) -> int | None:
        """The process id that the run logged last; None if the log has no process id."""
        pid = self._last_told(run_id, "pid")
        return None if pid is None else int(pid)

    def _last_told(self, run_id: str, entry: str) -> str | None:
        """The newest value of the metadata entry ``entry`` in the run's log; None if the log has no such entry."""
        for record in reversed(self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT)):
            event = record.dagster_event
            value = None if event is None else event.engine_event_data.metadata.get(entry)
            if value is not None:
                return str(value.value)
        return None


def record_own_process(instance: DagsterInstance, run_id: str, job_name: str) -> None:
    """Record this process as the process of a run, before this process executes the run itself.

    Without this entry, the health check would read the DAGSTER_HOME of this process. The system shows only the
    variables from the start of a process. So if this program set DAGSTER_HOME later, the health check would fail the
    run.
    """
    instance.report_engine_event(*_told(own_identity()), run_id=run_id, job_name=job_name)


def _told(process: ProcessIdentity, run: DagsterRun | None = None) -> tuple[str, DagsterRun | None, EngineEventData]:
    """The arguments of the Dagster engine event that records a run's process: text, run and metadata."""
    entry = EngineEventData(metadata={PROCESS_ENTRY: MetadataValue.text(str(process))})
    return f"Process {process.pid} works on this run.", run, entry


def _is_on_this_machine(run: DagsterRun) -> bool:
    """Whether the code server that started a run is on this machine: it uses a socket file or the loopback address."""
    server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
    return bool(server.get("socket")) or server.get("host") in (None, "localhost", "127.0.0.1")


def _dagster_home(process: str) -> str | None:
    """The variable DAGSTER_HOME of a process, given by its id or ``self``.

    Empty if the variable is not set; None if the environment can't be read.
    """
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith("DAGSTER_HOME=")), "")


def _ended(pid: int) -> CheckRunHealthResult:
    return CheckRunHealthResult(WorkerStatus.FAILED, f"its process {pid} has ended", run_worker_id=str(pid))
