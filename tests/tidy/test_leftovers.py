"""A process that a test leaves behind is found by the run's folder in its command or environment, and is killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.mechanics import leftovers


def test_what_knows_the_folder_of_the_run_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE_S", 0.0)
    environments = ({"HOLDFAST_HOME": f"{tmp_path}/home"}, {"HOLDFAST_HOME": f"{tmp_path}-of-another-run/home"})
    left, other = (subprocess.Popen(["sleep", "60"], env={**os.environ, **each}) for each in environments)
    try:
        assert leftovers.end_leftovers(tmp_path) == [f"process {left.pid}, sleep 60 "]
        assert left.wait(10) != 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
