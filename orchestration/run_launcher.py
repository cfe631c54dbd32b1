"""Dagster's run launcher for one machine, with a health check of the run's own process.

Dagster's launcher leaves that check to the code server that started the process. When the code server was killed too
(with the daemon's session, or with the machine), a run stays STARTED forever. It keeps its pool and its ``processor``
tag, so no recovery and no deployment of that processor can start.

Invariants:
    - Loading this module imports Dagster alone, because every process of an instance loads it.
    - A run is failed only when its process is known and has ended.
"""

from collections.abc import Sequence

from dagster import DagsterEventType, DagsterRun, EventLogEntry
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

from holdfast.infra.process import started_at

#: A process with the run's id that started this many seconds after the run named it is another process.
CLOCKS_DIFFER_S = 2.0


class LocalRunLauncher(DefaultRunLauncher):
    """A ``DefaultRunLauncher`` whose health check lets ``run_monitoring`` fail runs without a process."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: Dagster's ``run_monitoring`` calls ``check_run_worker_health``."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """FAILED when the process that the run recorded has ended; RUNNING otherwise."""
        named = self._process_of(run.run_id)
        if named is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "the run has recorded no process yet")
        pid, at = named
        began = started_at(pid)
        if began is None or began > at + CLOCKS_DIFFER_S:
            return CheckRunHealthResult(WorkerStatus.FAILED, f"its process {pid} has ended", run_worker_id=str(pid))
        return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=str(pid))

    def _process_of(self, run_id: str) -> tuple[int, float] | None:
        """The id of the run's process, and when the run recorded it (seconds since 1970)."""
        for record in reversed(self._engine_events(run_id)):
            event = record.dagster_event
            pid = None if event is None else event.engine_event_data.metadata.get("pid")
            if pid is not None:
                return int(str(pid.value)), record.timestamp
        return None

    def _engine_events(self, run_id: str) -> Sequence[EventLogEntry]:
        return self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT)
