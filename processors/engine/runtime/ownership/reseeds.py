"""The tasks of a worker that wait for a re-seed. A re-seed writes changelogs again from local state.

Invariants:
    - The local state of a waiting task is at the group's committed offsets, and is never deleted.
    - Until the changelog is complete, the meta record of the local state has the mark ``RESEEDING`` instead of the
      changelog's topic id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from holdfast.processors.engine.runtime.ownership.changelog_replay import TaskRestore
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.task_meta import RESEEDING, StoreOffset, TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent

_log = structlog.get_logger("runtime.reseeds")


def stores_to_reseed(
    task: str,
    meta: TaskMeta | None,
    changelogs: Mapping[str, ChangelogFacts],
    committed: Mapping[str, int | None],
    holds_data: Callable[[str], bool],
) -> tuple[str, ...]:
    """Returns the requested stores whose changelog differs from the local state, and must therefore be rewritten.

    Args:
        task: The name of the task.
        meta: The offsets of the local state; None for a new store, which has no state to re-seed from.
        changelogs: Maps each requested store to the facts of its changelog.
        committed: Maps each input topic to the group's committed offset.
        holds_data: A function that returns whether a store has local data.

    Raises:
        StateIncoherent: The local state is not at the committed offsets, or the changelog can't be repaired.
    """
    if meta is None or meta == TaskMeta():
        return ()
    found = []
    for store, facts in changelogs.items():
        at = meta.stores.get(store)
        if at is not None and at.topic_id == facts.topic_id and at.offset <= facts.end:
            continue  # the changelog matches the local state: no re-seed
        if at is None and facts.end > 0 and not holds_data(store):
            continue  # The store has no local data, but its changelog has records. The store is then restored as usual.
        begun = at is not None and at.topic_id == RESEEDING
        if facts.start > 0:
            raise StateIncoherent(
                f"Task {task}: changelog {facts.topic} begins at offset {facts.start}; expected 0. A changelog without "
                "its first records can't be restored from.",
                action=f"Delete {facts.topic} and create it again, then re-seed it.",
                cause="changelog-truncated",
                task=task,
                store=store,
                seen=facts.start,
                expected=0,
            )
        if meta.restoring and not begun:
            raise StateIncoherent(
                f"Task {task}: a restore of store {store} was interrupted; the local state is incomplete.",
                action="Clear the store and reset the group's input offsets, to rebuild its state.",
                cause="state-missing",
                task=task,
                store=store,
            )
        if dict(meta.inputs) != dict(committed):
            raise StateIncoherent(
                f"Task {task}: the local state of store {store} holds the inputs up to {dict(meta.inputs)}, but the "
                f"group committed {dict(committed)}. It can't be re-seeded from.",
                action="Re-seed from the machine that ran the task last; else clear the store and reset the offsets.",
                cause="offsets-reset",
                task=task,
                store=store,
                seen=str(dict(meta.inputs)),
                expected=str(dict(committed)),
            )
        found.append(store)
    return tuple(found)


class Reseeds:
    """The tasks of one worker that wait for a re-seed (changelogs are rewritten from local state).

    ``asked`` has the names of the stores to re-seed, from the worker's start options.
    """

    def __init__(self, asked: frozenset[str]) -> None:
        self._asked = asked
        self._stores: dict[str, tuple[str, ...]] = {}
        self._ready: list[TaskRestore] = []
        #: Tasks that wait for their re-seed, each with its finished restore.
        self.waiting: dict[str, TaskRestore] = {}

    @property
    def busy(self) -> bool:
        """Whether a task waits for its re-seed, or waits to run after its re-seed."""
        return bool(self.waiting or self._ready)

    def stores_of(self, task: str) -> tuple[str, ...]:
        """Returns the stores of a task whose changelogs are being rewritten."""
        return self._stores.get(task, ())

    def decide(
        self,
        task: str,
        store: TaskStore | None,
        changelogs: Mapping[str, ChangelogFacts],
        committed: Mapping[str, int | None],
    ) -> dict[str, ChangelogFacts]:
        """Choose the stores to re-seed, and mark them on disk.

        Returns the facts of the other changelogs, which are replayed.
        """
        self.forget(task)
        asked = {name: facts for name, facts in changelogs.items() if name in self._asked}
        if store is None or not asked:
            return dict(changelogs)
        meta = store.meta()
        found = stores_to_reseed(task, meta, asked, committed, store.holds_data)
        if found and meta is not None:
            _log.warning("changelogs are rewritten from local state", task=task, stores=found, inputs=dict(meta.inputs))
            marks = {name: StoreOffset(changelogs[name].topic, RESEEDING, 0) for name in found}
            store.write([], replace(meta, stores={**meta.stores, **marks}))
            self._stores[task] = found
        return {name: facts for name, facts in changelogs.items() if name not in found}

    def hold(self, restore: TaskRestore) -> bool:
        """If the restored task needs a re-seed, keeps its restore in ``waiting`` and returns True."""
        if restore.task.name not in self._stores:
            return False
        self.waiting[restore.task.name] = restore
        return True

    def done(self, task: str) -> None:
        """Lets a task run after its re-seed, in a later turn of the loop.

        Must be called when all changelogs of the task are complete.
        """
        self._ready.append(self.waiting.pop(task))
        del self._stores[task]

    def take_ready(self) -> list[TaskRestore]:
        """Remove and return the restores whose re-seed is done."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, task: str) -> None:
        """Forget a revoked task. The records that its re-seed has written so far stay in the changelogs.

        If the task's next owner re-seeds, its re-seed continues after these records.
        """
        self._stores.pop(task, None)
        self.waiting.pop(task, None)
        self._ready = [restore for restore in self._ready if restore.task.name != task]
