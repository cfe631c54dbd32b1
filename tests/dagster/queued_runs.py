"""Helpers that queue runs of a test's own jobs in the Dagster of a home folder, by Dagster's own command."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster._cli import create_dagster_cli
from dagster._core.storage.dagster_run import RunOpConcurrency

from holdfast.infra.settings import Settings
from holdfast.orchestration.host.run_coordinator import KIND_TAG, tags_of

#: The name of the code location with the test's jobs.
LOCATION = "of_the_test"
#: Maximum time for a run to be dequeued, started and finished, in seconds.
PATIENCE_S = 300.0


def location_of(jobs: Path) -> dict[str, object]:
    """An entry for a workspace's ``load_from`` that loads the file of the jobs."""
    return {"python_file": {"relative_path": str(jobs), "location_name": LOCATION}}


def launch(settings: Settings, jobs: Path, job: str, processor: str) -> str:
    """Queue a run of one processor. Returns the run id.

    The command runs in this process, because a new process takes seconds to import Dagster. It loads only the jobs'
    location, in a code server that it ends.
    """
    workspace = jobs.with_suffix(".yaml")
    workspace.write_text(yaml.safe_dump({"load_from": [location_of(jobs)]}))
    words = ["job", "launch", "-w", str(workspace), "-l", LOCATION, "-j", job]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(settings.paths.dagster))
        told = CliRunner().invoke(create_dagster_cli(), [*words, "--tags", json.dumps({"processor": processor})])
    assert told.exit_code == 0, told.output
    with dg.DagsterInstance.from_config(str(settings.paths.dagster)) as instance:
        return instance.get_runs(limit=1)[0].run_id


def fill_the_queue(instance: dg.DagsterInstance, pools: Sequence[str]) -> list[str]:
    """Add endless runs that use up every concurrency limit, and one in each of these pools.

    Each limit gets as many runs as it admits. Returns the run ids.
    """
    endless = [*_of_lanes(), *(_run("endless", needs=_pool(pool)) for pool in pools)]
    for run in endless:
        instance.add_run(run.with_tags({**run.tags, **tags_of(run)}))
    return [run.run_id for run in endless]


def _of_lanes() -> list[dg.DagsterRun]:
    """Runs that fill the limits by tag: four checks, four short verbs of different processors, and two long verbs."""
    verbs = [("compact_stores", 4), ("backfill_store", 2)]
    return [
        *(_run("endless") for _ in range(4)),
        *(_run(job, of=f"{job}-{number}") for job, count in verbs for number in range(count)),
    ]


def _pool(name: str) -> RunOpConcurrency:
    return RunOpConcurrency(all_pools={name}, root_key_counts={}, has_unconstrained_root_nodes=False)


def _run(job: str, *, of: str = "", needs: RunOpConcurrency | None = None) -> dg.DagsterRun:
    config = {"ops": {"one": {"config": {"processor": of, "dry_run": False}}}} if of else {}
    tags = {KIND_TAG: "lifecycle"} if of else {}
    started = dg.DagsterRunStatus.STARTED
    return dg.DagsterRun(job_name=job, status=started, run_config=config, tags=tags, run_op_concurrency=needs)


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
