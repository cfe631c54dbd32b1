"""The command ``read``: returns some of the selected entries in their state at the last commit.

Invariants:
    - The command changes and commits nothing. The entries and the offsets in the answer are those of the last commit.
    - Expired values are not returned, even if they are not deleted yet.
    - The number of entries and bytes of an answer is limited, because the worker's loop is blocked during the read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.commands import checks
from holdfast.processors.engine.commands.sweep import matching
from holdfast.processors.engine.runtime.owner_commands.commands import (
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    CommandWrong,
    Read,
    Selection,
)
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.exports import answer_of


def read(asked: Read, worker: Owner) -> dict[str, Any]:
    """Returns a dict with ``rows`` (the entries in the form of export files), ``more`` and ``positions``.

    ``more`` is true if a limit left out entries of the selection. ``positions`` maps each partition to the committed
    input offsets by topic.

    Raises:
        CommandWrong: The store or the limit is wrong.
        CommandRefused: The worker does not own the partitions.
    """
    if not 1 <= asked.limit <= READ_ENTRIES_MAX:
        raise CommandWrong(
            f"The limit of a read is {asked.limit}, expected 1 to {READ_ENTRIES_MAX}.",
            action="Give a limit in this range; for more entries, use an export.",
            seen=asked.limit,
            expected=READ_ENTRIES_MAX,
        )
    tasks, selection = checks.tasks_of(worker, asked.stores, asked.partitions), Selection(asked)
    rows: list[dict[str, Any]] = []
    size = 0
    more = False
    for task in tasks:
        assert task.store is not None
        for store in asked.stores:
            for key, stored in matching(partial(task.store.items, store), selection):
                if len(rows) == asked.limit or (rows and size + len(stored) > READ_BYTES_MAX):
                    more = True
                    break
                if _is_over(task, store, key, stored):
                    continue
                rows.append(answer_of(store, task.partition, key, stored))
                size += len(key) + len(stored)
    positions = {str(task.partition): dict(task.meta.inputs) for task in tasks}
    return {"rows": rows, "more": more, "positions": positions}


def _is_over(task: Task, store: str, key: bytes, stored: bytes) -> bool:
    """Whether an entry of a store had already expired at the stream time of the last commit."""
    time = None if task.time is None else task.time.stores.get(store)
    kept = task.store
    if time is None or kept is None:
        return False
    before = store_prefix(store)

    def look(message_key: bytes, name: str) -> bytes | None:
        return kept.get(before + key_prefix(message_key) + name.encode())

    return time.is_over(key, stored, look)
