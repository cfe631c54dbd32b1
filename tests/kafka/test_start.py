"""A start imports only the libraries that the run needs, so that it is quick; the tests list the loaded modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]

#: Libraries that are slow to import, and the feature that needs each of them.
HEAVY = {
    "numpy": "built-in aggregations",
    "pyarrow": "snapshots",
    "pandas": "snapshots",
    "pyspark": "audits and snapshots",
    "pyiceberg": "the warehouse",
    "sqlalchemy": "the registry",
    "alembic": "the registry",
    "dagster": "the control plane",
    "fsspec": "checkpoints, when one is taken or fetched",
    "s3fs": "checkpoints in an object store",
    "botocore": "checkpoints in an object store",
    "aiohttp": "checkpoints in an object store",
    "httpx": "asking a processor from outside",
    "http.server": "status and control over HTTP",
    "prometheus_client": "metrics, when they are asked for",
}

#: A program that prints which modules are loaded when the first message is processed.
RUN = """
import json, sys
from holdfast import Application, Count

application = Application(
    sys.argv[1], consumer_group=sys.argv[2], auto_offset_reset="earliest", state_dir=sys.argv[3],
    commit_interval=0.1, loglevel=None,
)
loaded = []

def count(value, state):
    loaded.append(sorted(sys.modules))
    state.set("n", state.get("n", 0) + 1)
    return value

frame = application.dataframe(application.topic(sys.argv[4]))
if sys.argv[5] == "function":
    frame = frame.apply(count, stateful=True, store="counts")
else:
    frame = frame.aggregate(n=Count())
frame.to_topic(application.topic(sys.argv[2] + "-out"))
application.run(count=1, timeout=60)
print("loaded", json.dumps(loaded[0] if loaded else sorted(sys.modules)))
"""


def loaded_by(stream: Any, home: Path, kind: str) -> set[str]:
    arguments = [stream.bootstrap, stream.group, str(stream.state_dir), stream.source, kind]
    found = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "HOLDFAST_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    told = next(line for line in found.stdout.splitlines() if line.startswith("loaded "))
    return set(json.loads(told.removeprefix("loaded ")))


def test_a_plain_run_loads_nothing_that_only_others_need(stream, tmp_path: Path) -> None:
    stream.feed([(b"k", b"1")])
    loaded = loaded_by(stream, tmp_path / "home", "function")
    assert "rocksdict" in loaded
    assert {name: why for name, why in HEAVY.items() if name in loaded} == {}


@pytest.mark.thorough
def test_a_built_in_aggregation_loads_numpy(stream, tmp_path: Path) -> None:
    stream.feed([(b"k", b'{"amount": 1}')])
    assert "numpy" in loaded_by(stream, tmp_path / "home", "built-in")


@pytest.mark.parametrize("module", ["holdfast.processors.__main__", "holdfast.processors.application.application"])
def test_importing_the_engine_loads_no_library_of_its_neighbours(module: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.split()
    assert sorted(set(HEAVY).intersection(told)) == []
