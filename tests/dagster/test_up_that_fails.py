"""`holdfast up` with a broker that can't start: it reports the error, and stops the webserver that it has started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import load_settings
from holdfast.infra.system.ports import free_port
from holdfast.orchestration.cli import main
from holdfast.orchestration.host import local


def test_without_a_broker_no_webserver_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__EMBEDDED_PORT", str(port))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert main(["up"]) == EXIT_BAD_CONFIGURATION
    assert f"Port {port} on 127.0.0.1 is in use" in capfd.readouterr().err
    settings = load_settings()
    assert (settings.paths.logs / "dagster-webserver.log").exists(), "it started beside the broker"
    assert local.running(settings, local.WEBSERVER) is None
