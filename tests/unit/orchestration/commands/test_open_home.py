"""Each command makes a home folder private if other users could read it, and says so at every log level."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from holdfast.orchestration.commands.options import command_settings


@pytest.mark.parametrize("level", ["WARNING", "ERROR"])
def test_a_command_tells_what_it_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    for path, mode in ((tmp_path / "registry.db", 0o644), (tmp_path, 0o755)):
        path.touch()
        path.chmod(mode)
    command_settings(level)
    told = capsys.readouterr().err
    assert "other users could reach the home folder" in told
    assert str(tmp_path) in told
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, tmp_path / "registry.db")] == [0o700, 0o600]
