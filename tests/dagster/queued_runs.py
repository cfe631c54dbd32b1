"""Helpers that queue runs of a test's own jobs in the Dagster of a home folder, by Dagster's own command."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster._cli import create_dagster_cli
from dagster._core.storage.dagster_run import RunOpConcurrency

from holdfast.infra.settings import Settings
from holdfast.orchestration.host.run_coordinator import KIND_TAG, RECOVERY, tags_of

#: The name of the code location with the test's jobs.
LOCATION = "of_the_test"
#: Maximum time for a run to be dequeued, started and finished, in seconds.
PATIENCE_S = 300.0


def location_of(jobs: Path) -> dict[str, object]:
    """An entry for a workspace's ``load_from`` that loads the file of the jobs."""
    return {"python_file": {"relative_path": str(jobs), "location_name": LOCATION}}


def launch(settings: Settings, jobs: Path, job: str, processor: str, config: Mapping[str, object] | None = None) -> str:
    """Put a run of a job into the queue and return its id. The job has one op, `act`, which gets ``config``.

    The command runs in this process, because a new process takes seconds to import Dagster. It loads only the jobs'
    location, in a code server that it ends.
    """
    workspace = jobs.with_suffix(".yaml")
    workspace.write_text(yaml.safe_dump({"load_from": [location_of(jobs)]}))
    words = [] if config is None else ["--config-json", json.dumps({"ops": {"act": {"config": config}}})]
    words += ["--tags", json.dumps({"processor": processor})] if processor else []
    return launch_at(LOCATION, workspace, settings, job, *words)


def launch_at(location: str, workspace: Path, settings: Settings, job: str, *words: str) -> str:
    """Put a run of a job of a code location into the queue. Returns the run id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(settings.paths.dagster))
        command = ["job", "launch", "-w", str(workspace), "-l", location, "-j", job, *words]
        told = CliRunner().invoke(create_dagster_cli(), command)
    assert told.exit_code == 0, told.output
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:
        return instance.get_runs(limit=1)[0].run_id


def fill_the_queue(instance: dg.DagsterInstance, pools: Sequence[str]) -> list[str]:
    """Add endless runs that fill the run queue, and one endless run in each of these pools. Returns the run ids.

    Only the lanes of recovery and of urgent runs (dry runs, stop, rollback) admit one more run each.
    """
    endless = [*_of_lanes(), *(_run("endless", needs=_pool(pool)) for pool in pools)]
    for run in endless:
        instance.add_run(run.with_tags({**run.tags, **tags_of(run)}))
    return [run.run_id for run in endless]


def _of_lanes() -> list[dg.DagsterRun]:
    """Return endless runs for each queue lane (runs that share a limit).

    Checks, short and long verbs (operator commands) get as many runs as their lanes admit. Recovery and urgent runs
    (dry runs, stop, rollback) get nine runs each, so that their lanes admit one more.
    """
    verbs = [("compact_stores", 4), ("backfill_store", 2)]
    return [
        *(_run("endless") for _ in range(4)),
        *(_run(job, of=f"{job}-{number}") for job, count in verbs for number in range(count)),
        *(_run(RECOVERY, of=f"recovered-{number}") for number in range(9)),
        *(_run("backfill_store", of=f"dry-{number}", dry_run=True) for number in range(9)),
    ]


def _pool(name: str) -> RunOpConcurrency:
    return RunOpConcurrency(all_pools={name}, root_key_counts={}, has_unconstrained_root_nodes=False)


def _run(job: str, *, of: str = "", dry_run: bool = False, needs: RunOpConcurrency | None = None) -> dg.DagsterRun:
    config = {"ops": {"one": {"config": {"processor": of, "dry_run": dry_run}}}} if of else {}
    tags = {KIND_TAG: "lifecycle"} if of else {}
    started = dg.DagsterRunStatus.STARTED
    return dg.DagsterRun(job_name=job, status=started, run_config=config, tags=tags, run_op_concurrency=needs)


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
