"""The bench runs, and what the engine computes in it is what plain Python computes. No time is judged here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.kafka

PROJECT = Path(__file__).resolve().parent.parent.parent
SCRIPT = PROJECT / "tests" / "bench" / "engine.py"
MESSAGES, KEYS = 3_000, 100


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names in the script."""
    return runpy.run_path(str(SCRIPT))


def test_messages_are_json_of_119_bytes(script: dict[str, Any]) -> None:
    made = list(script["messages"](MESSAGES, KEYS))
    assert {len(value) for _, value in made} == {119}
    assert all(json.loads(value)["key"] == key.decode() for key, value in made)


def test_the_engine_computes_what_plain_python_does(
    script: dict[str, Any], broker_jars: tuple[Path, ...], tmp_path: Path
) -> None:
    values: dict[bytes, list[int]] = {}
    for key, body in script["messages"](MESSAGES, KEYS):
        values.setdefault(key, []).append(json.loads(body)["value"])
    lines = "".join(f"{key.decode()} {len(of)} {sum(of)} {min(of)} {max(of)}\n" for key, of in sorted(values.items()))
    wanted = hashlib.sha256(lines.encode()).hexdigest()

    command = [sys.executable, str(SCRIPT), "--messages", str(MESSAGES), "--keys", str(KEYS), "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as bench:
        try:
            told, _ = bench.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            bench.terminate()  # it takes its broker along
            told, _ = bench.communicate(timeout=60)
    print(told)

    assert bench.returncode == 0, told
    assert re.findall(r"^result +sha256 (.*)$", told, re.M) == [wanted]
    assert re.findall(r"^(floor|ours) +[\d,]+ +[\d,]+ +[\d.]+ +\d+ +[\d.]+$", told, re.M) == ["floor", "ours"]
    assert list(tmp_path.iterdir()) == []
