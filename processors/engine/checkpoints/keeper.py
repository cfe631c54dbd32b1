"""The checkpoints of one worker: taken on a timer, on demand and at its end, and looked for when a disk was lost.

On the worker's thread a checkpoint is hard links, and the flush of what RocksDB had in memory; all else is done beside
its turns. One upload runs at a time. A store that is away, full, slow or refuses costs nothing but the checkpoints.

Invariants:
    - Processing never waits for the store, and never ends because of it.
    - What is uploaded is committed state with its own offsets: both come from one checkpoint of the database.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from holdfast.infra.clock import Clock
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.checkpoints.decision import Wanted
from holdfast.processors.engine.checkpoints.fetch import Fetched, Fetcher
from holdfast.processors.engine.checkpoints.manifest import Place
from holdfast.processors.engine.checkpoints.ports import Job, Storage
from holdfast.processors.engine.checkpoints.upload import Taken, Uploaded, Uploader
from holdfast.processors.engine.state.database import DatabaseFiles
from holdfast.processors.engine.state.errors import StateCorrupt, StateDiskFailed
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.state.task_store import TaskMeta, TaskStore

_log = structlog.get_logger("checkpoints")

#: After a failed upload the next one waits this long, in seconds, then twice as long each time, up to the second.
RETRY_FIRST_S, RETRY_MAX_S = 5.0, 300.0
#: Checkpoints that are due and not stored for longer than the time between two, and for so many seconds at least, are
#: a reason to say so: nothing fails, and yet a lost disk would cost more and more.
SLOW_AFTER_S = 10.0
#: Folders in the state folder of a slot.
UPLOADS, DOWNLOADS = ".upload", ".download"


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """When checkpoints are taken: every so many seconds; at its end a worker waits so many seconds for them."""

    every_s: float = 600.0
    stop_wait_s: float = 5.0


class CheckpointedTask(Protocol):
    """A task, as far as its checkpoints need it; ``runtime.task.Task``."""

    name: str
    partition: int
    store: TaskStore | None

    @property
    def meta(self) -> TaskMeta:
        """Offsets and topics of the committed state."""
        ...

    @property
    def running(self) -> bool:
        """Whether the task is restored and processes input."""
        ...


class CheckpointKeeper:
    """Takes, uploads and fetches checkpoints for one worker; on its thread.

    Args:
        storage: Where they go, and what carries them there.
        files: The local files.
        folder: The worker's state folder.
        clock: The worker's time.
        options: When.
        code_version: Of the processor.
    """

    def __init__(  # tidy: allow-wide because each is a part of the world that only the caller can name.
        self,
        storage: Storage,
        files: DatabaseFiles,
        folder: StateFolder,
        clock: Clock,
        options: CheckpointOptions,
        code_version: str,
    ) -> None:
        self._storage = storage
        self._work = storage.work
        self._files = files
        self._folder = folder
        self._clock = clock
        self._options = options
        self._code_version = code_version
        self._suspect: set[str] = set()
        holder = hashlib.sha256(f"{socket.gethostname()} {folder.path}".encode()).hexdigest()[:12]
        self._uploader = Uploader(
            storage.objects, files, holder, storage.new_id, clock.time, known={}, suspect=self._suspect
        )
        self._fetcher = Fetcher(storage.objects, files, self._suspect)
        self._due: list[str] = []
        self._due_at = clock.monotonic() + options.every_s
        self._retry_at = clock.monotonic()
        self._retry_s = RETRY_FIRST_S
        self._taken: list[Taken] = []
        self._job: Job | None = None
        self._job_of = ""
        self._job_since = 0.0
        self._done: dict[str, TaskMeta] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._uploads = self._failures = self._bytes = 0
        self._error: str | None = None
        #: Since when there is something to store; None while there is nothing.
        self._busy_since: float | None = None
        self._slow_told = False
        for left in (UPLOADS, DOWNLOADS):  # by a former life that was killed
            files.clear(folder.path / left)

    # -- taking and uploading ----------------------------------------------------------------------------------------

    def tend(self, tasks: Sequence[CheckpointedTask]) -> None:
        """Called in each turn of the worker: take a checkpoint when it is time, and see what became of uploads.

        Raises:
            StateCorrupt: A store is damaged.
        """
        self._work.turn()
        idle, now = self._is_idle(), self._clock.monotonic()
        self._watch(now, idle=idle and not self._due)
        if not idle:
            return
        if now >= self._due_at:
            self._due_at = now + self._options.every_s
            self.ask(tasks)
        if self._due and now >= self._retry_at:
            name = self._due.pop(0)
            task = next((task for task in tasks if task.name == name), None)
            if task is not None and self._is_new(task):
                self._take(task)
                self._begin()

    def ask(self, tasks: Sequence[CheckpointedTask]) -> list[str]:
        """Take checkpoints of these tasks soon; returns the names of those that have something new."""
        asked = [task.name for task in tasks if self._is_new(task)]
        self._due += [name for name in asked if name not in self._due]
        return asked

    def ask_now(self, tasks: Sequence[CheckpointedTask]) -> list[str]:
        """The same on somebody's request: a store that failed just now is tried again at once."""
        self._retry_at = self._clock.monotonic()
        return self.ask(tasks)

    def take_all(self, tasks: Sequence[CheckpointedTask]) -> None:
        """The worker is about to close its stores: take a checkpoint of each now, to be uploaded by ``finish``."""
        for task in tasks:
            if self._is_new(task):
                try:
                    self._take(task)
                except StateCorrupt as damage:  # it is moved aside when it is closed; all of it is committed
                    _log.error("a store was found damaged by its last checkpoint", task=task.name, error=damage.message)

    def finish(self) -> None:
        """Wait for the uploads of what was taken, as long as the settings allow; what is not done then is given up."""
        until = self._clock.monotonic() + self._options.stop_wait_s
        while not self._is_idle() or self._taken:
            if self._job is None:
                self._begin()
            left = until - self._clock.monotonic()
            if left <= 0:
                _log.warning(
                    "the worker ends without its last checkpoint; an older one, or the changelog, restores its state",
                    task=self._job_of,
                    waited_s=self._options.stop_wait_s,
                )
                return
            self._work.turn()
            self._work.wait(min(left, 0.1))

    def close(self) -> None:
        """Give up what is under way."""
        if self._job is not None:
            self._job.cancel()
        self._work.close()

    # -- looking for one ---------------------------------------------------------------------------------------------

    def fetch(self, task: CheckpointedTask, wanted: Wanted) -> Job:
        """Look for a checkpoint beside the worker's turns; the job's result is what was found (``Fetched``)."""
        path = self._folder.path / DOWNLOADS / f"{self._folder.task(task.name).name}.{self._storage.new_id()}"
        _log.info("looking for a checkpoint", task=task.name, replay=wanted.replay, store=self._storage.objects.shown)
        place = self._place(task)
        return self._work.start(lambda job: self._fetcher.run(place, wanted, path, job))

    def wait(self, seconds: float) -> None:
        """Nothing else is to be done: let what is under way go on for so long."""
        self._work.turn()
        self._work.wait(seconds)

    def discard(self, fetched: Fetched) -> None:
        """What was fetched is not used."""
        if fetched.path is not None:
            self._files.clear(fetched.path)

    @property
    def database(self) -> str:
        """What can open the local files."""
        return self._files.kind

    # -- what is told ------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """For the status: how the store does, and the last checkpoint of each task."""
        now = self._clock.monotonic()
        error = self._error or self._slow(now)
        return {
            "store": self._storage.objects.shown,
            "ok": error is None,
            "error": error,
            "retry_in_s": None if self._error is None else round(max(0.0, self._retry_at - now), 1),
            "uploads": self._uploads,
            "failures": self._failures,
            "uploaded_bytes": self._bytes,
            "uploading": None
            if self._job is None
            else {"task": self._job_of, "seconds": round(now - self._job_since, 1), **self._job.progress},
            "tasks": dict(self._last),
        }

    # -- inside ------------------------------------------------------------------------------------------------------

    def _watch(self, now: float, *, idle: bool) -> None:
        """Note since when there is something to store, and warn once when the store takes it too slowly."""
        if idle:
            self._busy_since, self._slow_told = None, False
            return
        self._busy_since = now if self._busy_since is None else self._busy_since
        slow = self._slow(now)
        if slow is not None and self._error is None and not self._slow_told:
            self._slow_told = True
            _log.warning(
                "the checkpoint store is slow; processing goes on", why=slow, store=self._storage.objects.shown
            )

    def _slow(self, now: float) -> str | None:
        """Why the store counts as slow; None while it doesn't."""
        since = self._busy_since
        if since is None or now - since <= max(SLOW_AFTER_S, self._options.every_s):
            return None
        return f"it is slow: checkpoints that were due {now - since:.0f} s ago are not stored yet"

    def _is_new(self, task: CheckpointedTask) -> bool:
        """Whether there is something that the last checkpoint of this worker does not have."""
        meta = task.meta
        if not task.running or task.store is None or not meta.stores or meta.restoring:
            return False
        done = self._done.get(task.name)
        return done is None or done.stores != meta.stores

    def _take(self, task: CheckpointedTask) -> None:
        assert task.store is not None
        path = self._folder.path / UPLOADS / f"{task.store.path.name}.{self._storage.new_id()}"
        created_at = self._clock.time()
        try:
            task.store.checkpoint(path)
        except StateDiskFailed as failure:
            self._failed(task.name, failure.message)
            return
        self._taken.append(Taken(self._place(task), path, task.partition, self._code_version, created_at, task.meta))

    def _begin(self) -> None:
        if not self._taken:
            return
        taken = self._taken.pop(0)
        self._job_of, self._job_since = taken.place.task, self._clock.monotonic()
        self._job = self._work.start(partial(self._uploader.run, taken))

    def _is_idle(self) -> bool:
        job = self._job
        if job is None:
            return True
        if not job.done:
            return False
        self._job = None
        if job.failure is not None:
            why = job.failure.message if isinstance(job.failure, HoldfastError) else repr(job.failure)
            self._failed(self._job_of, why)
        elif isinstance(job.result, Uploaded):
            self._succeeded(job.result)
        return True

    def _failed(self, task: str, why: str) -> None:
        self._failures += 1
        self._error = why
        self._retry_at = self._clock.monotonic() + self._retry_s
        _log.warning(
            "a checkpoint could not be stored; processing goes on",
            task=task,
            error=why,
            store=self._storage.objects.shown,
            retry_in_s=self._retry_s,
        )
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
        if task not in self._due:
            self._due.append(task)

    def _succeeded(self, uploaded: Uploaded) -> None:
        if self._error is not None:
            _log.info("checkpoints are stored again", store=self._storage.objects.shown)
        self._error, self._retry_s = None, RETRY_FIRST_S
        manifest = uploaded.manifest
        self._done[manifest.task] = manifest.meta
        self._uploads += 1
        self._bytes += uploaded.bytes_new
        seconds = round(self._clock.monotonic() - self._job_since, 3)
        self._last[manifest.task] = {
            "checkpoint": manifest.checkpoint_id,
            "at": manifest.created_at,
            "bytes": manifest.size,
            "bytes_new": uploaded.bytes_new,
            "seconds": seconds,
        }
        _log.info(
            "checkpoint stored",
            task=manifest.task,
            checkpoint=manifest.checkpoint_id,
            bytes=manifest.size,
            bytes_new=uploaded.bytes_new,
            files_shared=uploaded.files_shared,
            seconds=seconds,
        )

    def _place(self, task: CheckpointedTask) -> Place:
        return Place(self._folder.group, task.name)
