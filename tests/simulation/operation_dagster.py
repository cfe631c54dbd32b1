"""Dagster's part in a course (a simulated sequence of commands and faults): run queue and code locations.

Both are real. The queue is Dagster's own, in an instance with the ``dagster.yaml`` that ``holdfast up`` writes;
Dagster's daemon decides which run starts. The code locations have the recovery sensor. They come from the workspace
that ``holdfast up`` writes for a project, and are loaded as a code server loads them. A course without Dagster steps
creates neither of them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import yaml
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import RunOpConcurrency
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from holdfast.infra import log
from holdfast.infra.database.records import Incident
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system import privacy
from holdfast.orchestration import definitions
from holdfast.orchestration.host import local, run_coordinator
from holdfast.orchestration.jobs.lifecycle_verbs import VERB_JOBS
from holdfast.orchestration.jobs.recover_processor import recover_processor, tags_of_incident
from holdfast.orchestration.sensors.recovery import RECOVERY_SENSOR

#: The name of the project's own module of Dagster definitions, and its source when it is intact or broken.
MODULE = "course_assets"
WHOLE_MODULE, BROKEN_MODULE = "import holdfast\n\ndefs = holdfast.definitions()\n", "import nothing_of_this_name\n"
#: The number of endless runs of each kind. It is larger than the number of runs that may run at the same time.
CHECKS, VERBS, LONG, DRY = 6, 6, 4, 12
_QUEUED, _STARTED = dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTED
_ORIGIN = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1), "holdfast")


class Queue:
    """Dagster's run queue. Before ``occupy`` is called, it has only recovery runs, which start at once.

    Args:
        settings: The settings of the machine on which Dagster runs.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = ExitStack()
        self._instance: dg.DagsterInstance | None = None
        self._runs: dict[str, dg.DagsterRun] = {}

    def occupy(self, processor: str) -> None:
        """Fill the queue with runs of every other kind that never end. Some runs start, the others wait for them."""
        instance = self._instance
        if instance is None:
            home = local.prepare(self._settings)
            instance = self._instance = self._open.enter_context(dg.DagsterInstance.from_config(str(home)))
        for run in _of_other_kinds(processor):
            instance.add_run(_in_lane(run, _QUEUED))
        while started := self._next():
            for run_id in started:
                self._start(run_id)

    def put(self, name: str, incident: Incident) -> None:
        """Add a recovery run for an incident to the queue."""
        config = {"processor": incident.processor, "incident": incident.id}
        job, tags = recover_processor.name, {**recover_processor.tags, **tags_of_incident(incident)}
        self._runs[name] = _run(job, config, {**tags, run_coordinator.PROCESSOR_TAG: incident.processor})
        if self._instance is not None:
            self._instance.add_run(_in_lane(self._runs[name], _QUEUED))

    def starts(self, name: str) -> bool:
        """Whether a queued recovery run starts now. If not, it stays in the queue."""
        if self._instance is None:
            return True
        run_id = self._runs[name].run_id
        if run_id not in self._next():
            return False
        self._start(run_id)
        return True

    def leave(self, name: str) -> None:
        """Remove a recovery run that has ended."""
        run = self._runs.pop(name, None)
        if run is not None and self._instance is not None and self._instance.has_run(run.run_id):
            self._instance.run_storage.delete_run(run.run_id)

    def close(self) -> None:
        """Closes the Dagster instance, if there is one."""
        self._open.close()

    def _next(self) -> list[str]:
        """Return the ids of the runs that Dagster's daemon would start now."""
        instance = self._instance
        assert instance is not None
        daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)
        found = daemon._get_runs_to_dequeue(instance, instance.get_concurrency_config(), fixed_iteration_time=None)
        return [run.run_id for run in found]

    def _start(self, run_id: str) -> None:
        instance = self._instance
        assert instance is not None
        run = instance.get_run_by_id(run_id)
        assert run is not None
        instance.run_storage.delete_run(run_id)
        instance.add_run(run.with_status(_STARTED))


def _of_other_kinds(processor: str) -> Iterator[dg.DagsterRun]:
    """Return runs of each other kind: the project's runs, runs in a pool, short and long commands, and dry runs."""
    yield from (_run("observe", {}, {}) for _ in range(CHECKS))
    yield from (_run("of_a_pool", {}, {}, pool) for pool in ("spark", "deploys") for _ in range(2))
    yield from (_verb("compact_stores", processor if number == 0 else f"c{number}") for number in range(VERBS))
    yield from (_verb("backfill_store", f"b{number}") for number in range(LONG))
    yield from (_verb("clear_state", f"d{number}", dry_run=True) for number in range(DRY))


def _verb(job: str, processor: str, *, dry_run: bool = False) -> dg.DagsterRun:
    tags = next(each.tags for each in VERB_JOBS if each.name == job)
    return _run(job, {"processor": processor, "dry_run": dry_run}, tags)


def _run(job: str, config: Mapping[str, Any], tags: Mapping[str, str], pool: str = "") -> dg.DagsterRun:
    needs = RunOpConcurrency(all_pools={pool}, root_key_counts={pool: 1}, has_unconstrained_root_nodes=False)
    return dg.DagsterRun(
        job_name=job,
        run_config={"ops": {"one": {"config": dict(config)}}} if config else {},
        tags=dict(tags),
        remote_job_origin=RemoteJobOrigin(_ORIGIN, job),
        run_op_concurrency=needs if pool else None,
    )


def _in_lane(run: dg.DagsterRun, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    """Return the run with the status and tags that ``ProcessorRunCoordinator`` gives it in the queue."""
    return run.with_status(status).with_tags({**run.tags, **run_coordinator.tags_of(run)})


class Locations:
    """The code locations that ``holdfast up`` configures for a machine's project.

    Args:
        settings: The settings of the machine.
        project: The project's folder.
    """

    def __init__(self, settings: Settings, project: Path) -> None:
        self._settings, self._project = settings, project
        (project / "holdfast.toml").write_text(f'definitions = "{MODULE}"\nprocessors = []\n')

    def write(self, module: str) -> None:
        """Writes the project's own module of Dagster definitions."""
        (self._project / f"{MODULE}.py").write_text(module)

    def watching(self) -> tuple[str, ...]:
        """The names of the locations that can be loaded and contain the recovery sensor."""
        settings = load_settings(project=self._project, home=self._settings.home)
        settings.paths.dagster.mkdir(parents=True, exist_ok=True)
        workspace = yaml.safe_load(local.workspace_of(settings).read_text(encoding="utf-8"))
        entries = [each["python_module"] for each in workspace["load_from"]]
        return tuple(each["location_name"] for each in entries if RECOVERY_SENSOR in self._sensors_of(each))

    def _sensors_of(self, entry: Mapping[str, str]) -> frozenset[str]:
        """The names of a location's sensors. Empty if its module cannot be imported."""
        with _as_code_server(self._settings.home, self._project, entry.get("working_directory")):
            try:
                spec = importlib.util.find_spec(entry["module_name"])
                if spec is None or spec.loader is None:
                    return frozenset()
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except ImportError:
                return frozenset()
        return frozenset(sensor.name for sensor in module.defs.sensors or ())


@contextmanager
def _as_code_server(home: Path, project: Path, directory: str | None) -> Iterator[None]:
    """Sets the environment and import path of a code server. Logging and umask stay those of the simulation."""
    environment = {"HOLDFAST_PROJECT": str(project), "HOLDFAST_HOME": str(home)}
    with ExitStack() as parts:
        parts.enter_context(patch.dict(os.environ, environment))
        parts.enter_context(patch.object(sys, "path", [*([directory] if directory else []), *sys.path]))
        for module in (log, definitions):
            parts.enter_context(patch.object(module, "configure_logging", lambda *given: None))
        for module in (privacy, definitions):
            parts.enter_context(patch.object(module, "keep_private", lambda settings: None))
        importlib.invalidate_caches()
        yield
