"""A short endurance run: each disturbance happens at least once, and every published version is correct."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.infra.settings import PROJECT
from tests.spark.endurance.disturbances import WEIGHTS

SECONDS, VERSIONS = 60, 8
#: The time that a loaded machine may need to start, catch up and verify, in seconds.
PATIENCE_S = 1500


@pytest.mark.thorough
@pytest.mark.timeout(PATIENCE_S + 60)
def test_every_version_is_right_whatever_happens_meanwhile(broker: str, tmp_path: Path) -> None:
    load = ["--seconds", str(SECONDS), "--versions", str(VERSIONS)]
    command = [sys.executable, "-m", "tests.spark.endurance.endurance_run", *load, "--bootstrap", broker]
    with (tmp_path / "endurance.log").open("wb") as log:
        code = subprocess.run(
            [*command, "--folder", str(tmp_path)],
            cwd=PROJECT,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S,
            check=False,
        ).returncode
    said = (tmp_path / "endurance.log").read_text()
    assert code == 0, said[-6000:]
    for name in WEIGHTS:
        assert re.search(rf"'{name}': [1-9]", said), f"{name} did not happen: {said[-3000:]}"
    told = re.search(r"RESULT .* (\d+) equal the fold .* agrees with (\d+)", said)
    assert told is not None, said[-3000:]
    assert min(map(int, told.groups())) >= VERSIONS, told[0]
