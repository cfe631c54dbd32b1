"""Local checkpoints: copies of the RocksDB databases of a worker's running tasks.

The route ``/checkpoint`` makes them.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from holdfast.infra.system.json_file import read_json
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.serving.status import store_offsets

MANIFEST_VERSION = 1
#: How many checkpoints are kept for each task. Older checkpoints are deleted.
LOCAL_CHECKPOINTS_KEPT = 3


def take_checkpoint(tasks: list[Task], processor: str, folder: Path) -> dict[str, Any]:
    """Copies the databases of all running tasks into a new folder below ``folder``. Returns the manifest.

    Call it on the worker's main thread right after a commit, because then the databases match the committed offsets.
    The manifest lists the tasks. It is written last, as ``manifest.json``, so a folder without it is not a valid
    checkpoint.
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
                "stores": store_offsets(task),
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
    for old in superseded(folder, LOCAL_CHECKPOINTS_KEPT):
        shutil.rmtree(old, ignore_errors=True)
    return manifest


class _Named(msgspec.Struct):
    task: str


class _Tasks(msgspec.Struct):
    """The field of a checkpoint's manifest that lists the tasks in the checkpoint."""

    tasks: list[_Named]


def superseded(folder: Path, keep: int) -> list[Path]:
    """Returns the checkpoint folders to delete: each of their tasks is in at least ``keep`` newer folders.

    Several workers share ``folder``, and each checkpoint has the tasks of one worker only. So newer folders are counted
    for each task. A folder without tasks is deleted if ``keep`` folders are newer.
    """
    seen: Counter[str] = Counter()
    found = []
    for place, path in enumerate(sorted((path for path in folder.iterdir() if path.is_dir()), reverse=True)):
        manifest = read_json(path / "manifest.json", _Tasks)
        tasks = [] if manifest is None else [task.task for task in manifest.tasks]
        seen.update(tasks)
        if place >= keep and all(seen[task] > keep for task in tasks):
            found.append(path)
    return found
