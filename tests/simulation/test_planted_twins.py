"""Each planted bug that only a unit test can detect makes this test fail.

One separate process runs all bugs with their tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted_twins import TWINS, Twin

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[bool, bool]]:
    """By bug, whether its test passed without the bug, and with it."""
    command = [sys.executable, "-m", "tests.simulation.planted_twins"]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return dict(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.thorough
@pytest.mark.parametrize("twin", [pytest.param(each, id=each.name) for each in TWINS])
def test_the_bug_makes_its_test_fail(found: dict[str, tuple[bool, bool]], twin: Twin) -> None:
    assert found[twin.name] == [True, False]


def test_the_documentation_lists_every_twin() -> None:
    text = (PROJECT / "docs" / "simulation-operation.md").read_text(encoding="utf-8")
    assert [each.name for each in TWINS if f"| {each.name} |" not in text] == []
