"""Compares one counting stream with results that are recomputed from its committed input."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

from holdfast.processors.engine.changelog.format import decode_value, split_key
from holdfast.processors.engine.state.databases.rocksdb import StateReader


def finish(stream, waiting, **options) -> None:
    """Run a worker without faults in this process until all input is committed."""
    total = sum(stream.topics.end_offsets(stream.source, committed=True).values())
    app = stream.application(**options)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        waiting(
            lambda: failures or sum(stream.topics.committed_offsets(stream.group).values()) == total,
            "all input to be committed",
        )
    finally:
        app.stop()
        thread.join(60)
    assert failures == []
    assert not thread.is_alive()


def verify(stream, state_root: Path | None = None) -> None:
    """Assert that changelog, outputs and local state equal what the input produces.

    Local state is the RocksDB of stopped workers, below ``state_root``. If several folders hold one task, the folder
    with the highest offsets counts: it belongs to the task's last owner.
    """
    expected = dict(Counter(record.key for record in stream.read(stream.source)))
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)
    if state_root is not None:
        assert stored_counts(state_root) == expected


def verify_at_least_once(stream, state_root: Path, repeated_max: int) -> None:
    """Assert that state is exact and that each message has an output.

    At most ``repeated_max`` outputs may be repeated.
    """
    fed, outputs = stream.read(stream.source), stream.read(stream.sink)
    expected = dict(Counter(record.key for record in fed))
    assert stream.counts() == expected
    assert stored_counts(state_root) == expected
    named = Counter((record.key, json.loads(record.value)["of"]) for record in outputs)
    assert named >= Counter((record.key, json.loads(record.value)) for record in fed), "never lost"
    assert len(outputs) <= len(fed) + repeated_max


def stored_counts(state_root: Path) -> dict[bytes, int]:
    """Return the counts in the databases of stopped workers. If a task has several copies, the newest copy counts."""
    furthest: dict[str, tuple[int, dict[bytes, int]]] = {}
    for folder in sorted(path for path in state_root.glob("*/*/*") if (path / "CURRENT").exists()):
        reader = StateReader(folder)
        try:
            meta = reader.meta()
            assert meta is not None
            held = {split_key(key)[0]: decode_value(value) for key, value in reader.items("counts")}
        finally:
            reader.close()
        at = sum(meta.inputs.values())
        if at >= furthest.get(folder.name, (-1, {}))[0]:
            furthest[folder.name] = (at, held)
    return {key: value for _, held in furthest.values() for key, value in held.items()}
