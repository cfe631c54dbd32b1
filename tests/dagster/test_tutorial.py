"""The tutorial's commands, run exactly as written, in an empty folder, with a real broker, Dagster and Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.settings import PROJECT

PAGE = (PROJECT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.splitlines()
]
#: Allowed exit codes other than 0, by `docs/commands.md`: 2 for pending changes, 1 for an empty query result.
CODES = {"holdfast plan": (2,), "holdfast explain": (2,), "holdfast query": (0, 1)}
#: Maximum wait for steps that take seconds on a quiet machine.
PATIENCE_S = 300.0
#: It takes five minutes on a quiet machine; a busy one runs Spark several times slower.
GREEN_S = 1_500.0


class Shell:
    """The shell in which a reader of the tutorial types."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "DAGSTER_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }

    def type(self, command: str, *, check: bool = True) -> str:
        """Run a command and return its output; its exit code must be one that the docs list."""
        began = time.monotonic()
        if command.startswith("cd "):
            self.folder /= command.removeprefix("cd ")
            return ""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        said = done.stdout + done.stderr
        print(f"$ {command}   ({time.monotonic() - began:.1f} s, exit code {done.returncode})\n{said}")
        assert not check or done.returncode in CODES.get(" ".join(command.split()[:2]), (0,)), said
        return said

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until the condition is true."""
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
            time.sleep(1.0)

    def state(self, key: str) -> dict[str, object]:
        """The state entries of a message key, from `holdfast query`."""
        said = self.type(f"holdfast query my_project {key} --json", check=False)
        rows = json.loads(said[said.index("{") :])["rows"]
        return {row["state"]: row["value"] for row in rows}

    def status(self) -> dict[str, Any]:
        """The document of `holdfast status --json`."""
        said = self.type("holdfast status --json", check=False)
        document: dict[str, Any] = json.loads(said[said.index("{") :])
        return document

    def healthy(self) -> bool:
        """Whether the processor is healthy."""
        return [each["diagnosis"] for each in self.status()["processors"]] == ["healthy"]

    def green(self) -> bool:
        """Whether `holdfast status` reports all assets as green, including the project's own."""
        return bool(self.status()["colour"] == "green")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.type("holdfast down", check=False)


@pytest.mark.thorough
@pytest.mark.timeout(4000)
def test_each_command_of_the_tutorial_does_what_the_page_says(shell: Shell) -> None:
    assert len(COMMANDS) > 15
    orders = 0
    for command in COMMANDS:
        said = shell.type(command)
        match command.split()[:2]:
            case ["holdfast", "up"]:
                shell.until(shell.green, "all assets to be green without a click", GREEN_S)
            case ["holdfast", "produce"]:
                orders += 1
                expected = {"count": 2 * orders, "spent": 7 * orders}
                shell.until(lambda: shell.state("alice") == expected, f"alice to have {expected}")  # noqa: B023
            case ["kill", _]:
                shell.until(lambda: "my_project" in shell.type("holdfast incidents list"), "an incident")
                shell.until(shell.healthy, "the worker to be back")
            case ["python", "-c"]:
                assert "alice" in said
                assert "bob" in said
            case ["holdfast", "rollback"]:
                assert shell.state("alice") == {"count": 4, "spent": 14}
            case ["holdfast", "apply"]:
                assert shell.state("alice") == {}
                assert shell.state("bob") == {"count": 2, "spent": 20}
            case ["holdfast", "history"]:
                for word in ("deploy", "rollback", "clear", "scale"):
                    assert word in said
