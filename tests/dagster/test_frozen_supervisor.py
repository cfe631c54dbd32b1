"""The supervisor of a whole installation hangs. The commands that `holdfast status` names end and restart it.

The commands are `holdfast down` and then `holdfast up`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.deploy import supervisord
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.ports import free_port
from holdfast.infra.system.process import start_mark
from holdfast.orchestration.cli import main

pytestmark = pytest.mark.thorough


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    monkeypatch.setenv("HOLDFAST_KAFKA__EMBEDDED_PORT", str(free_port()))
    monkeypatch.setattr(supervisord, "ANSWER_TIMEOUT_S", 1.0)
    yield load_settings()
    main(["down"])


def test_the_printed_commands_end_a_supervisor_that_hangs(home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(free_port())
    assert main(["up", "--port", port]) == 0
    frozen = open_deployer(home.paths).pid()
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    capsys.readouterr()
    assert main(["status", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (reason,) = [each for each in document["reasons"] if each["subject"] == "service supervisor"]
    named = re.findall(r"`(holdfast [^`]*)`", reason["action"])
    assert named == ["holdfast down", "holdfast up"]
    for command in named:
        assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert start_mark(frozen) is None
    assert open_deployer(home.paths).pid() not in (None, frozen)
    capsys.readouterr()
    main(["status", "--json"])
    services = json.loads(capsys.readouterr().out)["services"]
    assert services["supervisor"] == f"process {open_deployer(home.paths).pid()}"
