"""The state folder of one worker slot: who holds it, and whose it is.

    <state_dir>/<group>/<slot>/lock            held (flock) by the live process; holds its pid
    <state_dir>/<group>/<slot>/identity.json   which application and slot the folder belongs to
    <state_dir>/<group>/<slot>/<task>/         one RocksDB

Invariants:
    - At most one process holds a slot; the kernel lets go of the lock when the process dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from pathlib import Path

from holdfast.processors.engine.state.errors import StateDiskFailed, StateFolderForeign, StateFolderTaken

IDENTITY_VERSION = 1
#: How many slots one machine offers to processes that were not given one.
SLOTS_MAX = 256
#: What the system says when there is no room: on the disk, or for this user.
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class StateFolder:
    """One slot's folder, held until ``release``.

    Args:
        state_dir: The root of all state.
        group: The application's consumer group.
        slot: The slot to take, or None for the first free one.

    Raises:
        StateFolderTaken: The slot is held by a live process.
        StateFolderForeign: The folder belongs to another application.
        StateDiskFailed: The folder can't be made or written.
    """

    def __init__(self, state_dir: Path, group: str, slot: str | None) -> None:
        self.group = group
        wanted = [slot] if slot is not None else [str(number) for number in range(SLOTS_MAX)]
        for name in wanted:
            path = state_dir / group / name
            descriptor = self._lock(path)
            if descriptor is not None:
                self.path, self.slot, self._descriptor = path, name, descriptor
                self._identify()
                return
        taken = state_dir / group / wanted[-1]
        holder = _read(taken / "lock").strip() or "unknown"
        raise StateFolderTaken(
            f"The state folder {taken} is held by the live process {holder}.",
            action="Stop that process, or give this one another slot or state_dir.",
            path=str(taken),
            pid=holder,
        )

    def task(self, name: str) -> Path:
        """The folder of one task's RocksDB."""
        return self.path / _folder_of(name)

    @staticmethod
    def path_of(state_dir: Path, group: str, slot: str, name: str) -> Path:
        """Where one task's database is, whoever holds the slot."""
        return state_dir / group / slot / _folder_of(name)

    def check_held(self) -> None:
        """Raise when the lock file is not ours any more: the folder was deleted or replaced under us.

        Raises:
            StateDiskFailed: It was.
        """
        try:
            there = os.stat(self.path / "lock")
            ours = os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
            seen = "another file has the place of its lock"
        except OSError as failure:
            seen = f"its lock can't be found: {failure.strerror}"
        raise StateDiskFailed(
            f"The state folder {self.path} was deleted or replaced while it was in use: {seen}.",
            action="Restart the processor: state is restored from the changelog. Find out who deletes state folders.",
            cause="state-missing",
            path=str(self.path),
        )

    def release(self) -> None:
        """Let go of the slot."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self, path: Path) -> int | None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            raise _not_writable(path, failure) from failure
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as failure:
            os.close(descriptor)
            raise _not_writable(path, failure) from failure
        return descriptor

    def _identify(self) -> None:
        file = self.path / "identity.json"
        ours = {"version": IDENTITY_VERSION, "application": self.group}
        text = _read(file)
        if text:
            try:
                found = json.loads(text)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                found = {"version": None, "application": text[:40]}
            if found != ours:
                self.release()
                raise StateFolderForeign(
                    f"The state folder {self.path} belongs to {found.get('application')!r} "
                    f"(format {found.get('version')}), not to {self.group!r} (format {IDENTITY_VERSION}).",
                    action="Give this application its own state_dir, or move the folder away.",
                    path=str(self.path),
                )
            return
        temporary = file.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(ours))
            temporary.replace(file)
        except OSError as failure:
            self.release()
            raise _not_writable(self.path, failure) from failure


def _folder_of(task: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", task)


def _not_writable(path: Path, failure: OSError) -> StateDiskFailed:
    return StateDiskFailed(
        f"The state folder {path} can't be written: {failure.strerror}.",
        action="Give the process a state_dir that it may write to, on a disk with room.",
        cause="disk-full" if failure.errno in DISK_FULL else "",
        path=str(path),
    )


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
