"""The launcher of runs on one machine: Dagster's own, and it tells of a run whether its process lives.

Dagster's own launcher leaves that to the code server that started the process. Where that was killed too (with the
daemon's whole session, or as the machine went down), a run stays STARTED for ever, and holds its pool and its
processor: neither a recovery nor a deployment of that processor would start again.

Invariants:
    - Loading it imports Dagster alone: every process of an instance does.
    - A run is given up only when its own process is known, and known to be gone.
"""

from collections.abc import Sequence

from dagster import DagsterEventType, DagsterRun, EventLogEntry
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

from holdfast.infra.process import started_at

#: A process that began so much later than its run said its id is another one, seconds.
CLOCKS_DIFFER_S = 2.0


class LocalRunLauncher(DefaultRunLauncher):
    """Starts runs as ``DefaultRunLauncher`` does; ``run_monitoring`` ends those whose process is gone."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Yes."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """FAILED when the process that the run named as its own is gone; RUNNING otherwise."""
        named = self._process_of(run.run_id)
        if named is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "it has named no process yet")
        pid, at = named
        began = started_at(pid)
        if began is None or began > at + CLOCKS_DIFFER_S:
            return CheckRunHealthResult(WorkerStatus.FAILED, f"its process {pid} is gone", run_worker_id=str(pid))
        return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=str(pid))

    def _process_of(self, run_id: str) -> tuple[int, float] | None:
        """The id of the run's process, and when it said so (seconds since 1970)."""
        for record in reversed(self._engine_events(run_id)):
            event = record.dagster_event
            pid = None if event is None else event.engine_event_data.metadata.get("pid")
            if pid is not None:
                return int(str(pid.value)), record.timestamp
        return None

    def _engine_events(self, run_id: str) -> Sequence[EventLogEntry]:
        return self._instance.all_logs(run_id, of_type=DagsterEventType.ENGINE_EVENT)
