"""The tutorial, typed as it stands: each of its commands in an empty folder, on a real broker, Dagster and Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.infra.local_ports import free_port
from holdfast.infra.settings import PROJECT

PAGE = (PROJECT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.splitlines()
]
#: How long is waited for what takes seconds on a quiet machine.
PATIENCE_S = 300.0


class Shell:
    """A person's shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "DAGSTER_"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOLDFAST_WEBSERVER__PORT": str(free_port()),
            "COLUMNS": "200",
        }

    def type(self, command: str, *, check: bool = True) -> str:
        """What a command says; it has to succeed."""
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
        assert not check or done.returncode == 0, said
        return said

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
            time.sleep(1.0)

    def state(self, key: str) -> dict[str, object]:
        """The entries of a key."""
        said = self.type(f"holdfast query my_project {key} --json", check=False)
        entries = json.loads(said[said.index("{") :]).get("entries", ())
        return {entry["state"]: entry["value"] for entry in entries}

    def healthy(self) -> bool:
        said = self.type("holdfast status --json", check=False)
        states = [each["state"] for each in json.loads(said[said.index("{") :])["processors"]]
        return states == ["healthy"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.type("holdfast down", check=False)


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_each_command_of_the_tutorial_does_what_the_page_says(shell: Shell) -> None:
    assert len(COMMANDS) > 15
    orders = 0
    for command in COMMANDS:
        said = shell.type(command)
        match command.split()[:2]:
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
