"""A test that needs a real installation may be skipped. In a run without allowed skips, such a skip fails the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
SKIPPED = "import pytest\n\ndef test_it():\n    pytest.skip('no broker')\n"


@pytest.mark.parametrize(
    ("folder", "strict", "outcome"),
    [("kafka", "1", "1 failed"), ("kafka", "0", "1 skipped"), ("unit", "1", "1 skipped")],
)
@pytest.mark.slow
def test_a_skip_on_real_parts_fails_only_where_it_must(tmp_path: Path, folder: str, strict: str, outcome: str) -> None:
    tests = tmp_path / "tests"
    (tests / folder).mkdir(parents=True)
    shutil.copy(PROJECT / "tests" / "conftest.py", tests)
    for name in ("mechanics", "parts"):
        shutil.copytree(PROJECT / "tests" / name, tests / name)
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    (tests / folder / "test_skipped.py").write_text(SKIPPED)
    environment = {**os.environ, "HOLDFAST_TEST_NO_SKIPS": strict, "PYTHONPATH": str(PROJECT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome in run.stdout
