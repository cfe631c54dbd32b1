"""Which tasks of a worker have changelogs to be made anew from local state, and wait for that.

Invariants:
    - The local state of such a task belongs to the group's committed offsets, and is never dropped.
    - Its offsets name no topic until its changelogs are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from holdfast.processors.engine.runtime.restore import TaskRestore
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.task_store import RESEEDING, StoreOffset, TaskMeta, TaskStore

_log = structlog.get_logger("runtime.reseeds")


def stores_to_reseed(
    task: str,
    meta: TaskMeta | None,
    changelogs: Mapping[str, ChangelogFacts],
    committed: Mapping[str, int | None],
    holds_data: Callable[[str], bool],
) -> tuple[str, ...]:
    """Which of the stores that were asked for have a changelog that does not belong to the local state.

    Args:
        task: The task's name, for messages.
        meta: The offsets in the local store; None when it is new: there is nothing to re-seed from.
        changelogs: Facts of the changelogs of the stores that were asked for, by store.
        committed: The group's committed offset of each input topic.
        holds_data: Whether there is local data of a store.

    Raises:
        StateIncoherent: The local state is not what the committed offsets say, or the changelog can't be mended.
    """
    if meta is None or meta == TaskMeta():
        return ()
    found = []
    for store, facts in changelogs.items():
        at = meta.stores.get(store)
        if at is not None and at.topic_id == facts.topic_id and at.offset <= facts.end:
            continue  # it is its own
        if at is None and facts.end > 0 and not holds_data(store):
            continue  # nothing is known of it here, and something there
        begun = at is not None and at.topic_id == RESEEDING
        if facts.start > 0:
            raise StateIncoherent(
                f"Task {task}: changelog {facts.topic} begins at offset {facts.start}: nobody could restore from it, "
                "whatever is written to its end.",
                action=f"Delete {facts.topic} and create it anew, then re-seed it.",
                cause="changelog-truncated",
                task=task,
                store=store,
                seen=facts.start,
                expected=0,
            )
        if meta.restoring and not begun:
            raise StateIncoherent(
                f"Task {task}: a restore of store {store} was under way: the local state is not whole.",
                action="Clear the store and reset the group's input offsets, to build its state anew.",
                cause="state-missing",
                task=task,
                store=store,
            )
        if dict(meta.inputs) != dict(committed):
            raise StateIncoherent(
                f"Task {task}: the local state of store {store} holds the inputs up to {dict(meta.inputs)}, the group "
                f"has committed {dict(committed)}: it is not the state to re-seed from.",
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
    """The tasks of one worker whose changelogs are being made anew.

    Args:
        asked: The stores that it was asked for.
    """

    def __init__(self, asked: frozenset[str]) -> None:
        self._asked = asked
        self._stores: dict[str, tuple[str, ...]] = {}
        self._ready: list[TaskRestore] = []
        #: By task, restores that are complete but for this.
        self.waiting: dict[str, TaskRestore] = {}

    @property
    def busy(self) -> bool:
        """Whether there are tasks that do not run yet."""
        return bool(self.waiting or self._ready)

    def stores_of(self, task: str) -> tuple[str, ...]:
        """The stores of a task that are re-seeded."""
        return self._stores.get(task, ())

    def decide(
        self,
        task: str,
        store: TaskStore | None,
        changelogs: Mapping[str, ChangelogFacts],
        committed: Mapping[str, int | None],
    ) -> dict[str, ChangelogFacts]:
        """Note which stores of a task are re-seeded, also on its disk; return the changelogs that are replayed.

        Raises:
            StateIncoherent: See ``stores_to_reseed``.
        """
        self.forget(task)
        asked = {name: facts for name, facts in changelogs.items() if name in self._asked}
        if store is None or not asked:
            return dict(changelogs)
        meta = store.meta()
        found = stores_to_reseed(task, meta, asked, committed, store.holds_data)
        if found and meta is not None:
            _log.warning("changelogs are made anew from local state", task=task, stores=found, inputs=dict(meta.inputs))
            marks = {name: StoreOffset(changelogs[name].topic, RESEEDING, 0) for name in found}
            store.write([], replace(meta, stores={**meta.stores, **marks}))
            self._stores[task] = found
        return {name: facts for name, facts in changelogs.items() if name not in found}

    def hold(self, restore: TaskRestore) -> bool:
        """Whether a restore that is complete has to wait."""
        if restore.task.name not in self._stores:
            return False
        self.waiting[restore.task.name] = restore
        return True

    def done(self, task: str) -> None:
        """The changelogs of a task are whole."""
        self._ready.append(self.waiting.pop(task))
        del self._stores[task]

    def take_ready(self) -> list[TaskRestore]:
        """The restores that wait no longer."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, task: str) -> None:
        """The task was taken away; what is done already is not done again the next time."""
        self._stores.pop(task, None)
        self.waiting.pop(task, None)
        self._ready = [restore for restore in self._ready if restore.task.name != task]
