"""Files that several processes share are replaced atomically. Private files are readable by their owner only."""

from __future__ import annotations

import stat

from holdfast.infra.system.files import replace_text, write_private


def test_a_private_file_is_its_owners_alone_and_stays_when_nothing_changes(tmp_path):
    path = tmp_path / "secret.json"
    assert write_private(path, "one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.stat().st_ino
    assert not write_private(path, "one")
    assert path.stat().st_ino == before
    assert write_private(path, "two")
    assert path.read_text() == "two"
    assert [each.name for each in tmp_path.iterdir()] == ["secret.json"]


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: 77)
    (tmp_path / ".settings.77").write_text("half")
    assert replace_text(tmp_path / "settings", "whole")
    assert (tmp_path / "settings").read_text() == "whole"


def test_a_file_that_holds_no_text_is_replaced(tmp_path):
    path = tmp_path / "settings"
    path.write_bytes(b"\xff\xfe")
    assert replace_text(path, "text")
