"""The everyday commands in a terminal show a plan, ask for confirmation, and apply the plan that they showed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from holdfast.infra.settings import PROJECT
from holdfast.orchestration.cli import main
from tests.kafka.deploying.project import COUNTS, HEAD, Project
from tests.mechanics.json_answers import compare


def answered(words: list[str], answer: str) -> tuple[int, bool]:
    """Run a command in a pseudo-terminal and answer its question. Returns the exit code and whether it asked."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast.orchestration.cli", *words]
    with subprocess.Popen(command, cwd=PROJECT, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        told = b""
        with suppress(OSError):  # reading fails when the command has closed the terminal
            while part := os.read(ours, 4096):
                told += part
                if b"[y/N]" in told and answer:
                    os.write(ours, f"{answer}\n".encode())
                    answer = ""
        os.close(ours)
        return running.wait(60), b"Apply plan " in told


def test_the_words_of_every_day_ask_first_and_then_deploy_roll_back_restart_and_stop(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    name = project.stream.group
    project.stream.feed_numbers(20, keys=2)
    assert main(["deploy", name, "--timeout", "90"]) == 3
    told = " ".join(capfd.readouterr())
    assert f"`holdfast deploy {name} --timeout 90.0 --yes`" in told
    assert "Undo: `holdfast apply stop" in told
    assert project.client.status() is None
    assert main(["deploy", name, "--yes"]) == 0
    first = project.running_version()
    assert main(["deploy", name]) == 0, "nothing to do needs no answer"
    project.write(HEAD, COUNTS.replace("frame.to_topic", "frame = frame.update(print)\nframe.to_topic"))
    assert main(["deploy", name, "--yes"]) == 0
    second = project.running_version()
    assert second != first

    project.path.write_text("raise ValueError('typing')")  # the user's present code can no longer be imported
    sys.modules.pop(project.module, None)
    assert answered(["rollback", name], "n") == (3, True)
    assert project.running_version() == second
    assert answered(["rollback", name], "y") == (0, True)
    assert project.running_version() == first
    assert answered(["rollback", name], "y") == (3, False), "a second one does not return to what the first one left"
    assert project.running_version() == first
    assert main(["deploy", name, "--yes"]) == 64
    project.stream.feed_numbers(20, keys=2)
    before = project.client.status()
    assert main(["restart", name, "--yes"]) == 0
    after = project.client.status()
    assert before is not None
    assert after is not None
    assert after.pid != before.pid
    assert project.running_version() == first, "a restart starts the deployed release, not the files"
    project.counted({b"k0": 20, b"k1": 20})
    project.write(HEAD, COUNTS)
    capfd.readouterr()
    for words, code in (
        (["status"], 0),
        (["top"], 0),
        (["audit", name], 0),
        (["plan", "stop", name], 2),
        (["explain", "stop", name], 2),
        (["stop", name, "--yes"], 0),
        (["apply", "list"], 0),
        (["rehearse", name], 64),  # `rehearse` needs a running worker; its error must also be JSON
    ):
        assert main([*words, "--json"]) == code
        compare(words, json.loads(capfd.readouterr().out))
    assert project.client.status() is None
