"""The JSON output of commands about a running processor fits its schema."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.orchestration.cli import main
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.recovery.incidents import notice
from holdfast.processors.lifecycle.recovery.limits import Limits
from tests.mechanics.json_answers import compare
from tests.parts.operated import Operated


class Json:
    """Runs commands in this process, and compares their JSON output with its schema."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, line: str, code: int = 0) -> Any:
        self._capfd.readouterr()
        words = line.split()
        ended = main([*words, "--json"])
        out, err = self._capfd.readouterr()
        assert ended == code, f"{line}: {out} {err}"
        document = json.loads(out)
        compare(words, document)
        return document


@pytest.mark.thorough
def test_what_is_printed_about_a_running_processor_fits_its_schema(
    operated: Operated, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said, name = Json(capfd), operated.group
    operated.bring_up()
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"id": "key-{number % 3}"}}\n' for number in range(9)))
    said(f"produce {name}-in -f {lines} --key id")
    operated.processed(9)
    assert len(said(f"query {name} --all")["rows"]) == 3
    said(f"query {name} nothing", code=1)
    assert said("status", code=0)["processors"][0]["diagnosis"] == "healthy"
    said("status --sizes")
    said("top")
    said("config")
    said(f"init {tmp_path / 'another'}")
    said(f"audit {name}")
    said(f"rehearse {name}")
    said("orphans")
    for group in ("plan", "explain"):
        assert said(f"{group} clear {name} --key key-1", code=2)["stages"]
    said(f"apply clear {name} --key key-1 --yes")
    said(f"restart {name} --yes")
    said(f"scale {name} 2 --yes")
    said(f"deploy {name} --yes")
    said(f"rollback {name} --yes", code=3)
    _kill_one(operated)
    (incident,) = said("incidents list")
    said(f"incidents show {incident['id']}")
    said(f"incidents acknowledge {incident['id']}")
    said(f"incidents retry {incident['id']}", code=64)  # refused: the incident is open, so recovery already works on it
    assert said("apply list")
    assert {each["kind"] for each in said(f"history {name}")} >= {"apply", "incident"}
    said(f"stop {name} --yes")
    said("warehouse register", code=0)


def _kill_one(operated: Operated) -> None:
    """Kill a worker, and open its incident as the recovery sensor does."""
    status: ProcessorStatus | None = operated.client.status()
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    limits = Limits()
    operated.wait_for(
        lambda: notice(operated.group, operated.verbs._world, limits, answered_at={}).incident, "the incident"
    )
