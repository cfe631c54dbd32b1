"""Helpers for tests of checkpoints: request checkpoints, read a worker's state, log and metrics, delete its disk."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from holdfast.processors.engine.changelog.format import decode_value, split_key
from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint

KEYS = 3_000
MANY = 8_000


def with_store(worker: Any, **settings: str) -> Any:
    for name, value in {"EVERY_S": "3600", "STOP_WAIT_S": "0", **settings}.items():
        worker.environment[f"HOLDFAST_CHECKPOINTS__{name}"] = value
    worker.environment["HOLDFAST_LOG_FORMAT"] = "json"
    return worker


def expected(count: int) -> dict[bytes, int]:
    return {b"k%d" % key: len(range(key, count, KEYS)) for key in range(min(KEYS, count))}


def feed(stream: Any, worker: Any, waiting: Any, first: int, last: int) -> None:
    stream.feed([(b"k%d" % (number % KEYS), b"%d" % number) for number in range(first, last)])
    committed = stream.topics.committed_offsets
    waiting(lambda: sum(committed(stream.group).values()) == last, f"{last} messages to be committed; {worker.tail()}")
    assert sum(stream.counts().values()) == last


def stored(worker: Any, waiting: Any) -> dict[str, Any]:
    """Request a checkpoint of every task, and wait until the worker has logged that all are stored."""
    before = len(told(worker, "checkpoint stored"))
    wanted = set(worker.client.checkpoint()["storing"])

    def done() -> Any:
        now = told(worker, "checkpoint stored")[before:]
        return worker.client.status().checkpoints if wanted <= {line["task"] for line in now} else None

    return waiting(done, f"checkpoints of {wanted} in the store; {worker.tail()}")


def lose_disk(worker: Any) -> None:
    shutil.rmtree(worker.paths.state)


def held(worker: Any) -> dict[bytes, int]:
    """Return the counts in the worker's RocksDB stores. They are read from fresh checkpoints."""
    found = {}
    for task in worker.client.checkpoint()["tasks"]:
        for key, value in iterate_checkpoint(Path(task["path"]), "counts"):
            found[split_key(key)[0]] = decode_value(value)
    return found


def told(worker: Any, event: str) -> list[dict[str, Any]]:
    """The lines of the worker's log with this event name."""
    lines = [line for line in worker.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in map(json.loads, lines) if line["event"] == event]


def restored(worker: Any) -> int:
    return sum(line["records"] for line in told(worker, "task runs"))


def metrics(worker: Any) -> dict[str, float]:
    page = worker.client.metrics() or ""
    return {name: float(value) for name, value in re.findall(r"^(\w+)\{[^}]*\} (\S+)$", page, re.M)}
