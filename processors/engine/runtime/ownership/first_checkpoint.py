"""Fetches a checkpoint as the initial state of a new standby (a copy of another worker's task).

    no local state ──seek──► fetching ──ended──► installed, marked as incomplete ──► replay the rest of the changelog
                                        └──refused, timed out or damaged──► replay the changelog from its beginning

Threads fetch the checkpoint while the worker's main loop continues.

Invariants:
    - Local state is never replaced: a checkpoint is fetched only for a standby without local state.
    - An installed checkpoint is marked ``restoring``. A task that later opens the folder therefore replays the rest of
      the changelog.
    - A failed fetch costs only time, because the state can be replayed from the changelog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import structlog

from holdfast.infra.clock import Clock
from holdfast.processors.engine.checkpoints.decision import Wanted, worth_looking
from holdfast.processors.engine.checkpoints.fetch import CheckpointSearch, Fetched
from holdfast.processors.engine.checkpoints.keeper import CheckpointKeeper
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.folder import StateFolder

_log = structlog.get_logger("runtime.standby")


@dataclass(slots=True)
class FirstCheckpoints:
    """The checkpoint fetches of one worker's standbys. Without an object store, nothing is fetched."""

    checkpoints: CheckpointKeeper | None
    folder: StateFolder
    databases: Databases
    clock: Clock
    _fetching: dict[str, CheckpointSearch] = field(default_factory=dict)
    #: Maps each task to the id of the checkpoint from which its standby started; None if no checkpoint was installed.
    _sought: dict[str, str | None] = field(default_factory=dict)

    def seek(self, task: str, facts: Mapping[str, ChangelogFacts], looked_at: float) -> bool:
        """Start to fetch a checkpoint for a task. Each task gets at most one fetch.

        Returns False if no fetch was started, so that the changelog must be replayed. ``looked_at`` is the wall-clock
        time at which ``facts`` were read.
        """
        replay = sum(known.end - known.start for known in facts.values())
        if self.checkpoints is None or task in self._sought or not worth_looking(replay):
            return False
        if self.databases.exists(self.folder.task(task)):
            return False
        self._sought[task] = None
        wanted = Wanted(task, self.checkpoints.database, facts, {}, {}, looked_at, replay)
        self._fetching[task] = self.checkpoints.fetch(wanted)
        return True

    def waits(self, task: str) -> bool:
        """Whether the fetch for this task is still running. If it has ended, this call installs the checkpoint."""
        if task not in self._fetching:
            return False
        assert self.checkpoints is not None
        self.checkpoints.wait(0.0)
        found = self._fetching[task].ended(self.clock.monotonic())
        if found is None:
            return True
        del self._fetching[task]
        self._install(task, found)
        self.checkpoints.discard(found)  # ``discard`` does not delete installed files
        return False

    def used(self, task: str) -> str | None:
        """Returns the id of the checkpoint from which a task's standby started; None without a checkpoint."""
        return self._sought.get(task)

    def forget(self, task: str) -> None:
        """Cancel the fetch for a task, because this worker no longer has a standby of the task."""
        self._sought.pop(task, None)
        if task in self._fetching:
            found = self._fetching.pop(task).give_up()
            if found is not None and self.checkpoints is not None:
                self.checkpoints.discard(found)

    def _install(self, task: str, found: Fetched) -> None:
        path, manifest = self.folder.task(task), found.manifest
        if manifest is None or found.path is None or self.databases.exists(path):
            return
        try:
            self.databases.move(found.path, path)
            store = TaskStore(self.databases, path)
            try:
                meta = store.meta()
                if meta == manifest.meta:
                    store.write([], replace(meta, restoring=True))
                else:
                    store.wipe()
            finally:
                store.close()
        except Exception as failure:
            _log.warning("a checkpoint is not used", task=task, checkpoint=manifest.checkpoint_id, why=repr(failure))
            return
        if meta != manifest.meta:
            why = "its database has other offsets than its manifest"
            _log.warning("a checkpoint is not used", task=task, checkpoint=manifest.checkpoint_id, why=why)
            return
        self._sought[task] = manifest.checkpoint_id
        _log.info("a standby begins with a checkpoint", task=task, checkpoint=manifest.checkpoint_id)
