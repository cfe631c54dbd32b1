"""Dagster's run launcher for one machine, with a health check of the run's own process.

Dagster's launcher leaves that check to the code server that started the process. When the code server was killed too
(with the daemon's session, or with the machine), a run stays STARTED forever. It keeps its pool and its ``processor``
tag, so no recovery and no deployment of that processor can start.

Invariants:
    - Loading this module imports Dagster alone, because every process of an instance loads it.
    - A run is failed only when its process is known and has ended. No clock is read: a clock that is set never ends a
      run. The process is known by its identity (``infra.process``), which the daemon records as a tag of the run.
    - A run without the tag, as one of a former version, has its process judged by id and by the home folder in that
      process's environment, and is tagged then.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dagster import DagsterEventType, DagsterRun, EventLogEntry
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus

from holdfast.infra.process import ProcessIdentity, fate_of, identity_of
from holdfast.infra.waiting import wait_until

#: The tag with the run's id and the identity of its process. A run that repeats another one copies the tags of that
#: run; the id tells that the identity is not its own.
PROCESS_TAG = "holdfast/process"
#: How long a launched run may take to name its process, seconds; it has done so in nearly all cases.
NAMED_WITHIN_S = 5.0


class LocalRunLauncher(DefaultRunLauncher):
    """A ``DefaultRunLauncher`` whose health check lets ``run_monitoring`` fail runs without a process."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: Dagster's ``run_monitoring`` calls ``check_run_worker_health``."""
        return True

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run, and record its process as soon as the run names it."""
        super().launch_run(context)
        run_id = context.dagster_run.run_id
        # The run runs: an error here would make Dagster fail it beside its process. The health check records later.
        with suppress(Exception):
            pid = wait_until(lambda: self._process_of(run_id), NAMED_WITHIN_S)
            if pid is not None:
                self._record(run_id, pid)

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """FAILED when the process that the run named has ended; RUNNING otherwise."""
        identity = identity_in(run)
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

    def _record(self, run_id: str, pid: int) -> ProcessIdentity | None:
        """The identity of a run's process, recorded; None when the process has ended."""
        identity = identity_of(pid)
        ours = _dagster_home("self")
        # a process of a stranger has the id that the run had
        if identity is None or (ours and _dagster_home(str(pid)) not in (ours, None)):
            return None
        self._instance.add_run_tags(run_id, {PROCESS_TAG: f"{run_id} {identity}"})
        return identity

    def _process_of(self, run_id: str) -> int | None:
        """The id of the process that the run named last."""
        for record in reversed(self._engine_events(run_id)):
            event = record.dagster_event
            pid = None if event is None else event.engine_event_data.metadata.get("pid")
            if pid is not None:
                return int(str(pid.value))
        return None

    def _engine_events(self, run_id: str) -> Sequence[EventLogEntry]:
        return self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT)


def identity_in(run: DagsterRun) -> ProcessIdentity | None:
    """The identity of a run's process, from its tag; None when it was not recorded."""
    of_run, _, text = run.tags.get(PROCESS_TAG, "").partition(" ")
    return ProcessIdentity.parse(text) if of_run == run.run_id else None


def _dagster_home(process: str) -> str | None:
    """DAGSTER_HOME in the environment of a process, which a run inherits from the daemon; None when it is not known."""
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((word.partition("=")[2] for word in words if word.startswith("DAGSTER_HOME=")), "")


def _ended(pid: int) -> CheckRunHealthResult:
    return CheckRunHealthResult(WorkerStatus.FAILED, f"its process {pid} has ended", run_worker_id=str(pid))
