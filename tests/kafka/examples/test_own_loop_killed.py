"""The loop of one's own is killed at each step of its commit, on a real broker, by the program that the page shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mechanics.tiers import variants

PROJECT = Path(__file__).resolve().parents[3]
PROGRAM = PROJECT / "docs" / "examples" / "own_loop_kills.py"
#: The hardest step first: Kafka has the commit, and RocksDB does not have it.
STEPS = ["committed", "restoring", "offsets-sent", "sent", "processed", "written"]


@pytest.mark.parametrize("step", variants(STEPS))
def test_a_kill_at_a_step_loses_and_doubles_nothing(broker: str, step: str) -> None:
    command = [sys.executable, str(PROGRAM), "--broker", broker, "--kill-at", step]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"kill -9 at: {step}" in ended.stdout
    assert ended.stdout.count("  killed\n") == (2 if step == "restoring" else 1)
    assert "exact: 250 outputs" in ended.stdout


@pytest.mark.thorough
def test_the_demonstration_finds_a_loop_that_writes_rocksdb_before_kafka_commits(broker: str, tmp_path: Path) -> None:
    """The check can fail: a loop with its two last steps in the wrong order is found."""
    for name in ("own_loop.py", "own_loop_kills.py"):
        (tmp_path / name).write_text((PROGRAM.parent / name).read_text(encoding="utf-8"), encoding="utf-8")
    loop = (tmp_path / "own_loop.py").read_text(encoding="utf-8")
    commit = "        self._producer.commit_transaction(PATIENCE_S)\n"
    write = "        for number in self._inputs:\n            self._partitions[number].write(self._delivered[number])\n"
    assert commit in loop
    assert write in loop
    step = '        self._step("offsets-sent")\n'
    swapped = loop.replace(write, "").replace(step, write + step)
    (tmp_path / "own_loop.py").write_text(swapped, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "own_loop_kills.py"), "--broker", broker, "--kill-at", "offsets-sent"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode != 0
    assert "the state is that of input offset" in ended.stderr
