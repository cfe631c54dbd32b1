"""A checkpoint of every running task: RocksDB's own consistent copy, with the offsets that it is at."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.processors.engine.runtime.task import Task, TaskPhase

MANIFEST_VERSION = 1


def take_checkpoint(tasks: list[Task], processor: str, folder: Path, *, keep: int = 3) -> dict[str, Any]:
    """Checkpoint all running tasks into a new folder below ``folder``, where each task's ``keep`` newest stay.

    Called on the worker's thread right after a commit. Returns the manifest, which is also written last, as
    ``manifest.json``: a folder without one is not a checkpoint.

    Raises:
        StateDiskFailed: The disk refused.
    """
    started = time.time()
    checkpoint_id = f"{int(started * 1000):015d}"
    target = folder / checkpoint_id
    parts = []
    for task in tasks:
        if task.phase is not TaskPhase.RUNNING or task.store is None:
            continue
        path = target / task.store.path.name
        task.store.checkpoint(path)
        parts.append(
            {
                "task": task.name,
                "subtopology": task.subtopology,
                "partition": task.partition,
                "path": str(path),
                "inputs": dict(task.committed),
                "sources": dict(task.meta.sources),
                "stores": {
                    name: {"changelog": at.topic, "topic_id": at.topic_id, "offset": at.offset}
                    for name, at in task.meta.stores.items()
                },
            }
        )
    manifest = {
        "version": MANIFEST_VERSION,
        "processor": processor,
        "checkpoint_id": checkpoint_id,
        "taken_at": started,
        "seconds": round(time.time() - started, 3),
        "tasks": parts,
    }
    target.mkdir(parents=True, exist_ok=True)
    temporary = target / "manifest.tmp"
    temporary.write_text(json.dumps(manifest, indent=1))
    temporary.replace(target / "manifest.json")
    for old in superseded(folder, keep):
        shutil.rmtree(old, ignore_errors=True)
    return manifest


def superseded(folder: Path, keep: int) -> list[Path]:
    """The checkpoints in which no task has one of its ``keep`` newest: several workers write to one folder."""
    seen: Counter[str] = Counter()
    found = []
    for place, path in enumerate(sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)):
        try:
            tasks = [task["task"] for task in json.loads((path / "manifest.json").read_text())["tasks"]]
        except (OSError, ValueError, KeyError, TypeError):
            tasks = []
        seen.update(tasks)
        if place >= keep and all(seen[task] > keep for task in tasks):
            found.append(path)
    return found
