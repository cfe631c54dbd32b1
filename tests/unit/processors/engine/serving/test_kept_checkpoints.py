"""Only checkpoints that no task needs are removed from a folder, even if several workers write to it."""

import json
from pathlib import Path

from holdfast.processors.engine.serving.local_checkpoints import superseded


def test_each_task_keeps_its_newest_whoever_writes_beside_it(tmp_path: Path) -> None:
    def checkpoint(number: int, *tasks: str) -> None:
        (tmp_path / f"{number:015d}").mkdir()
        manifest = {"tasks": [{"task": task} for task in tasks]}
        (tmp_path / f"{number:015d}" / "manifest.json").write_text(json.dumps(manifest))

    checkpoint(1, "a")
    checkpoint(2, "b")
    for number in range(3, 7):
        checkpoint(number, "a")
    (tmp_path / "000000000000000").mkdir()
    assert [path.name[-1] for path in superseded(tmp_path, 2)] == ["4", "3", "1", "0"]
    assert superseded(tmp_path, 20) == []
