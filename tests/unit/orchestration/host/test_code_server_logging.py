"""A process that loads the definitions logs with the level and format of the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = """
import structlog, holdfast.orchestration.code_location
log = structlog.get_logger()
log.info("too little")
log.warning("enough", token="hunter2")
"""


def test_a_code_server_logs_as_the_settings_say() -> None:
    chosen = {"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_LOG_LEVEL": "WARNING", "HOLDFAST_LOG_LEVL": "INFO"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=PROJECT,
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["unknown setting: it has no effect", "enough"]
    assert events[0]["nearest"] == "HOLDFAST_LOG_LEVEL"
    assert events[1]["token"] == "***"
    assert run.stdout == ""
