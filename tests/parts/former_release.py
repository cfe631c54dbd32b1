"""Unpacks the former release from this repository's history, so that tests run it beside the present release.

``docs/decisions/versions-side-by-side.md`` has the rule that these tests check.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
#: The commit of the former release. When you make a release, set it to the commit of the release before.
COMMIT = "02864c07e8cbd4a4b4a439b897aa903f5b9759e1"
_PACKAGES = ("holdfast", "infra", "processors", "assets", "orchestration")


def unpack(folder: Path) -> Path:
    """Unpacks the former release's packages into a folder, which its processes put first on their import path.

    Skips the test if this clone of the repository lacks the commit, as a shallow clone does.
    """
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=PROJECT, capture_output=True, check=False
    )
    if known.returncode != 0:
        pytest.skip(f"commit {COMMIT} of the former release is not here: git fetch --unshallow")
    command = ["git", "archive", "--format=tar", COMMIT, *_PACKAGES]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run_former(folder: Path, program: str, given: Any) -> Any:
    """Runs a program under the former release; returns the JSON in the last line that it prints.

    The program's stdin is ``given`` as JSON.
    """
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
