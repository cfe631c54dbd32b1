"""The bench of checkpoints runs, and both ways of restoring give the changelog's state. No time is judged here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kafka

PROJECT = Path(__file__).resolve().parent.parent.parent


def test_a_small_bench_of_checkpoints_replays_the_tail_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.checkpoint", "--records", "20000", "--rounds", "1"]
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
    tail = re.search(r"checkpoint \+ 10 % tail\s+([\d,]+) records", done.stdout)
    whole = re.search(r"full replay\s+([\d,]+) records", done.stdout)
    assert tail is not None
    assert whole is not None
    assert int(whole[1].replace(",", "")) >= 20_000
    assert 2_000 <= int(tail[1].replace(",", "")) < 3_000
    assert "ratio" in done.stdout
    assert list(tmp_path.iterdir()) == []
