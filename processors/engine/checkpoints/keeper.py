"""Makes and fetches the checkpoints of one worker.

Checkpoints are made at a fixed interval, on demand, and when the worker stops. They are fetched if local state is lost.

The worker's thread only flushes RocksDB and makes hard links for a checkpoint. Uploads and downloads run in parallel
to the worker's loop, one upload at a time.

Invariants:
    - Processing never waits for the object store, and never fails because of it. A slow object store delays only
      checkpoints.
    - A checkpoint has committed state and its offsets; state and offsets are from the same RocksDB checkpoint.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import structlog

from holdfast.infra.clock import Clock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import CheckpointSettings, Settings
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.engine.checkpoints.decision import Patience, Wanted
from holdfast.processors.engine.checkpoints.fetch import CheckpointSearch, Fetched, Fetcher
from holdfast.processors.engine.checkpoints.manifest import Place
from holdfast.processors.engine.checkpoints.ports import Job, Storage
from holdfast.processors.engine.checkpoints.threads import ThreadedWork, random_id
from holdfast.processors.engine.checkpoints.upload import Taken, Uploaded, Uploader
from holdfast.processors.engine.state.databases.database import DatabaseFiles, Databases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateCorrupt, StateDiskFailed
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("checkpoints")

#: Seconds before the retry of a failed upload: the first value, doubled after each failure, up to the second value.
RETRY_FIRST_S, RETRY_MAX_S = 5.0, 300.0
#: Seconds. The object store is reported as slow if a checkpoint is not stored within one checkpoint interval after it
#: was due. This limit is at least ``SLOW_AFTER_S``.
SLOW_AFTER_S = 10.0
#: Names of the scratch folders for uploads and downloads, inside the state folder of a slot (one worker process).
UPLOADS, DOWNLOADS = ".upload", ".download"


class CheckpointedTask(Protocol):
    """The members of a task that checkpoints need; ``runtime.task.task.Task`` implements them."""

    name: str
    partition: int

    @property
    def store(self) -> TaskStore | None:
        """The open RocksDB; None if the task has no stores, or is not open."""

    @property
    def meta(self) -> TaskMeta:
        """The meta record with the offsets of the committed state."""

    @property
    def running(self) -> bool:
        """Whether the task is restored and processes input."""


class CheckpointKeeper:
    """Makes, uploads and fetches the checkpoints of one worker. Call all methods on the worker's thread."""

    def __init__(  # tidy: allow-wide because each argument is a system or a setting that only the caller knows.
        self,
        storage: Storage,
        files: DatabaseFiles,
        folder: StateFolder,
        clock: Clock,
        settings: CheckpointSettings,
        code_version: str,
    ) -> None:
        self._storage = storage
        self._work = storage.work
        self._files = files
        self._folder = folder
        self._clock = clock
        self._settings = settings
        self._code_version = code_version
        self._suspect: set[str] = set()
        holder = hashlib.sha256(f"{socket.gethostname()} {folder.path}".encode()).hexdigest()[:12]
        self._uploader = Uploader(
            storage.objects, files, holder, storage.new_id, clock.time, known={}, suspect=self._suspect
        )
        self._fetcher = Fetcher(storage.objects, files, self._suspect)
        self._due: list[str] = []
        self._due_at = clock.monotonic() + settings.every_s
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
        #: Monotonic seconds since which there has always been a checkpoint that is due and not stored yet. None if all
        #: checkpoints that were due are stored.
        self._busy_since: float | None = None
        self._slow_logged = False
        for leftover in (UPLOADS, DOWNLOADS):  # a killed process may have left files of an interrupted transfer
            files.clear(folder.path / leftover)

    # -- taking and uploading ----------------------------------------------------------------------------------------

    def tend(self, tasks: Sequence[CheckpointedTask]) -> None:
        """Makes a checkpoint if one is due, and handles finished uploads.

        The worker's loop must call it in each turn.
        """
        self._work.turn()
        idle, now = self._is_idle(), self._clock.monotonic()
        self._watch(now, idle=idle and not self._due)
        if not idle:
            return
        if now >= self._due_at:
            self._due_at = now + self._settings.every_s
            self.ask(tasks)
        if self._due and now >= self._retry_at:
            name = self._due.pop(0)
            task = next((task for task in tasks if task.name == name), None)
            if task is not None and self._is_new(task):
                self._take(task)
                self._begin()

    def ask(self, tasks: Sequence[CheckpointedTask]) -> list[str]:
        """Schedules a checkpoint of each task that has changed since its last checkpoint.

        Returns the names of these tasks.
        """
        asked = [task.name for task in tasks if self._is_new(task)]
        self._due += [name for name in asked if name not in self._due]
        return asked

    def ask_now(self, tasks: Sequence[CheckpointedTask]) -> list[str]:
        """Schedules checkpoints like ``ask``, at the request of a user.

        The user does not have to wait for the next retry: a failed upload is retried at once.
        """
        self._retry_at = self._clock.monotonic()
        return self.ask(tasks)

    def take_all(self, tasks: Sequence[CheckpointedTask]) -> None:
        """Makes a local checkpoint of each task whose state has changed since its last checkpoint.

        Call it before RocksDB is closed. ``finish`` then uploads these checkpoints.
        """
        for task in tasks:
            if self._is_new(task):
                try:
                    self._take(task)
                except StateCorrupt as damage:  # the task is restored at its next start, so no state is lost
                    _log.error("a store was found damaged by its last checkpoint", task=task.name, error=damage.message)

    def finish(self) -> None:
        """Waits until the last checkpoints are uploaded, for at most ``stop_wait_s`` seconds."""
        until = self._clock.monotonic() + self._settings.stop_wait_s
        while not self._is_idle() or self._taken:
            if self._job is None:
                self._begin()
            left = until - self._clock.monotonic()
            if left <= 0:
                _log.warning(
                    "the worker ends without its last checkpoint; an older one, or the changelog, restores its state",
                    task=self._job_of,
                    waited_s=self._settings.stop_wait_s,
                )
                return
            self._work.turn()
            self._work.wait(min(left, 0.1))

    def close(self) -> None:
        """Cancels running uploads and downloads."""
        if self._job is not None:
            self._job.cancel()
        self._work.close()

    # -- fetching ----------------------------------------------------------------------------------------------------

    def fetch(self, wanted: Wanted) -> CheckpointSearch:
        """Starts to search and download a checkpoint in the background. The returned search gives the result later."""
        task = wanted.task
        path = self._folder.path / DOWNLOADS / f"{self._folder.task(task).name}.{self._storage.new_id()}"
        _log.info("looking for a checkpoint", task=task, replay=wanted.replay, store=self._storage.objects.shown)
        place = Place(self._folder.group, task)
        job = self._work.start(lambda job: self._fetcher.run(place, wanted, path, job))
        return CheckpointSearch(task, job, Patience(wanted.replay, self._clock.monotonic()))

    def wait(self, seconds: float) -> None:
        """Waits for the end of a running upload or download, for at most ``seconds``."""
        self._work.turn()
        self._work.wait(seconds)

    def discard(self, fetched: Fetched) -> None:
        """Deletes the files of a download that is not used."""
        if fetched.path is not None:
            self._files.clear(fetched.path)

    @property
    def database(self) -> str:
        """The name of the local databases' file format. A worker can't use a checkpoint with another file format."""
        return self._files.kind

    # -- status ------------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """Fields for the worker's status page: object store, counts, and the last checkpoint of each task."""
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

    # -- internal ----------------------------------------------------------------------------------------------------

    def _watch(self, now: float, *, idle: bool) -> None:
        """Remembers since when checkpoints are due. If the object store is slow, logs one warning."""
        if idle:
            self._busy_since, self._slow_logged = None, False
            return
        self._busy_since = now if self._busy_since is None else self._busy_since
        slow = self._slow(now)
        if slow is not None and self._error is None and not self._slow_logged:
            self._slow_logged = True
            _log.warning(
                "the checkpoint store is slow; processing continues", why=slow, store=self._storage.objects.shown
            )

    def _slow(self, now: float) -> str | None:
        """Returns an error text if checkpoints have been due for longer than the time limit; otherwise None."""
        since = self._busy_since
        if since is None or now - since <= max(SLOW_AFTER_S, self._settings.every_s):
            return None
        return f"it is slow: checkpoints that were due {now - since:.0f} s ago are not stored yet"

    def _is_new(self, task: CheckpointedTask) -> bool:
        """Whether the task has committed state that this worker's last checkpoint of the task does not contain."""
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
            "a checkpoint could not be stored; processing continues",
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
        stored = {
            "checkpoint": manifest.checkpoint_id,
            "bytes": manifest.size,
            "bytes_new": uploaded.bytes_new,
            "seconds": round(self._clock.monotonic() - self._job_since, 3),
        }
        self._last[manifest.task] = {**stored, "at": manifest.created_at}
        _log.info("checkpoint stored", task=manifest.task, files_shared=uploaded.files_shared, **stored)

    def _place(self, task: CheckpointedTask) -> Place:
        return Place(self._folder.group, task.name)


def open_keeper(
    databases: Databases,
    settings: Settings,
    storage: Storage | None,
    folder: StateFolder,
    clock: Clock,
    topology: Topology,
) -> CheckpointKeeper | None:
    """Creates the keeper of a worker's checkpoints.

    If ``storage`` is None, the checkpoints are in the object store of the settings. Returns None if checkpoints are
    disabled, if no state store has a changelog, or if state is kept in memory only.

    Raises:
        StorageUnusable: No driver is installed for the object store of the settings.
    """
    chosen = settings.checkpoints
    if not chosen.enabled or not topology.logged or not isinstance(databases, DatabaseFiles):
        return None
    if storage is None:
        objects = FsspecObjects(settings.checkpoint_store, chosen.options)
        storage = Storage(objects, ThreadedWork(), random_id)
    return CheckpointKeeper(storage, databases, folder, clock, chosen, topology.code_version)
