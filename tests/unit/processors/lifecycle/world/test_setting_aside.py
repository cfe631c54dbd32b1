"""How many of the damaged state folders that recovery sets aside are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.processors.lifecycle.world import setting_aside
from holdfast.processors.lifecycle.world.setting_aside import set_aside


def test_of_what_was_set_aside_the_newest_two_stay(tmp_path: Path) -> None:
    slot = tmp_path / "orders" / "0"
    theirs = [slot / "0_1.aside-20261128T010000Z", slot / "0_0.plan-1"]
    for each in theirs:
        each.mkdir(parents=True)
    said = []
    for hour in range(4):
        (slot / "0_0").mkdir()
        (slot / "0_0" / "CURRENT").write_text(str(hour))
        now = datetime(2026, 11, 28, hour, tzinfo=UTC)
        said.append(set_aside(tmp_path, "orders", "0", str(slot / "0_0"), now))
    kept = sorted(slot.glob("0_0.aside-*"))
    assert [(each / "CURRENT").read_text() for each in kept] == ["2", "3"]
    assert [words.count("deleted") for words in said] == [0, 0, 1, 1]
    assert all(each.is_dir() for each in theirs)


def test_an_older_one_that_can_not_be_deleted_keeps_no_worker_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(folder: Path, **how: Any) -> None:
        if not how.get("ignore_errors"):
            raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(setting_aside.shutil, "rmtree", refuses)
    task = tmp_path / "orders" / "0" / "0_0"
    for hour in range(3):
        task.mkdir(parents=True)
        said = set_aside(tmp_path, "orders", "0", str(task), datetime(2026, 11, 28, hour, tzinfo=UTC))
    assert "was set aside" in said
    assert "deleted" not in said
    assert len(list(task.parent.glob("0_0.aside-*"))) == 3
