"""Runs of a test's own jobs, put into the queue of a home folder's Dagster by Dagster's own command."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster._cli import create_dagster_cli

from holdfast.infra.settings import Settings

#: The code location of the jobs.
LOCATION = "of_the_test"
#: How long a run may take to be dequeued, started and through, in seconds.
PATIENCE_S = 300.0


def location_of(jobs: Path) -> dict[str, object]:
    """An entry of a workspace's ``load_from``: the file of the jobs."""
    return {"python_file": {"relative_path": str(jobs), "location_name": LOCATION}}


def launch(settings: Settings, jobs: Path, job: str, processor: str) -> str:
    """Put a run of one processor into the queue; its id.

    The command runs in this process, because a process of its own takes seconds to import Dagster. It loads the jobs'
    location only, in a code server that it ends.
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


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
