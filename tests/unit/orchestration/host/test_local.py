"""Dagster's processes end together with their child processes, even if a child ignores SIGTERM or lost its parent."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.process import group_members, start_mark
from holdfast.orchestration.host import local

#: A child process that ignores SIGTERM, like a code server whose database is unavailable.
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
DAEMON = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); time.sleep(60)"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_STOP_CHILDREN_S", 0.2)
    settings = load_settings(home=tmp_path / "home")
    local.prepare(settings)
    return settings


def started(settings: Settings, home: str) -> subprocess.Popen[bytes]:
    """Start a daemon with one child, and record it as the daemon of the settings' home."""
    environment = {**os.environ, "DAGSTER_HOME": home}
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=-1, start_new_session=True, env=environment)
    daemon.stdout.readline()
    file = settings.paths.dagster / f"{local.DAEMON}.json"
    file.write_text(json.dumps({"pid": daemon.pid, "mark": start_mark(daemon.pid)}))
    return daemon


def test_what_the_daemon_started_ends_with_it(settings):
    daemon = started(settings, str(settings.paths.dagster))
    assert local.stop(settings, local.DAEMON)
    assert not group_members(daemon.pid)
    assert not local.stop(settings, local.DAEMON)
    daemon.communicate()


@pytest.mark.parametrize("ours", [True, False])
def test_what_a_killed_daemon_left_ends_unless_another_home_has_its_number(settings, tmp_path, ours):
    daemon = started(settings, str(settings.paths.dagster if ours else tmp_path / "another"))
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    try:
        assert not local.stop(settings, local.DAEMON)
        assert bool(group_members(daemon.pid)) is not ours
    finally:
        if group_members(daemon.pid):
            os.killpg(daemon.pid, signal.SIGKILL)
    daemon.communicate()


def test_the_configuration_of_a_former_version_is_replaced_unless_it_was_edited(settings, monkeypatch):
    config = settings.paths.dagster / "dagster.yaml"
    ours = config.read_text()
    monkeypatch.setattr(local, "FORMER_DEFAULTS", {hashlib.sha256(b"former: 1\n").hexdigest()[:16]})
    config.write_text("former: 1\n")
    local.prepare(settings)
    assert config.read_text() == ours
    config.write_text("former: 2\n")
    local.prepare(settings)
    assert config.read_text() == "former: 2\n"


def test_the_configuration_of_this_version_is_none_of_a_former_one(settings):
    present = (settings.paths.dagster / "dagster.yaml").read_bytes()
    assert hashlib.sha256(present).hexdigest()[:16] not in local.FORMER_DEFAULTS
