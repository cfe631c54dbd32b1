"""Fixture of a user's project. The tests change its code, and deploy each version of the code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.settings import load_settings
from tests.kafka.conftest import Stream
from tests.kafka.deploying.project import COUNTS, HEAD, Project


@pytest.fixture
def project(stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", stream.bootstrap)
    made = f"definition_{stream.group.replace('-', '_')}"
    monkeypatch.setenv("HOLDFAST_PROCESSORS", json.dumps([f"{made}:application"]))
    project = Project(stream, folder, load_settings())
    project.write(HEAD, COUNTS)
    yield project
    if project.settings.paths.supervisor.is_dir():
        Supervisord(project.settings.paths).stop()
    sys.modules.pop(project.module, None)
