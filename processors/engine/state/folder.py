"""The state folder of one slot (a worker's place on a machine): its lock, its identity, and the databases of its tasks.

    <state_dir>/<group>/<slot>/lock            locked (flock) by the live process; contains the pid
    <state_dir>/<group>/<slot>/.holder         the identity (machine, boot, pid) of the process that last held it
    <state_dir>/<group>/<slot>/identity.json   the application that the folder belongs to
    <state_dir>/<group>/<slot>/id              the folder's id, a part of the worker's transactional id
    <state_dir>/<group>/<slot>/<task>/         one task's database

The id is random and created with the folder. Two workers therefore never share an id, even on hosts with equal names. A
folder that an older version of Holdfast created has no file ``id``. Its id is then the host's name, so that its worker
keeps its transactional id.

Invariants:
    - At most one process holds a slot. The kernel releases the lock when the process dies.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
from pathlib import Path

from holdfast.infra.system.process import fate_of, own_identity, read_identity, write_identity
from holdfast.processors.engine.changelog.names import file_name
from holdfast.processors.engine.state.errors import StateDiskFailed, StateFolderForeign, StateFolderTaken

IDENTITY_VERSION = 1
#: The file with the identity of the process that last locked the slot. Older versions of Holdfast read the pid in
#: ``lock`` instead. They ignore this file, because its name begins with a dot.
HOLDER = ".holder"
#: Maximum number of slots of a group on one machine, for processes that choose a free slot themselves.
SLOTS_MAX = 256
#: Maximum bytes of a task folder's name. File systems allow 255 bytes, and a renamed copy of the folder gets a suffix.
NAME_MAX = 160
#: The error numbers for a full disk and for an exhausted quota.
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class StateFolder:
    """The state folder of one slot (a worker's place on a machine), locked until ``release``.

    Args:
        slot: The slot's name; None takes the first free slot.

    Raises:
        StateFolderTaken: A live process holds the slot.
        StateFolderForeign: The folder belongs to another application.
        StateDiskFailed: The folder can't be created or written.
    """

    def __init__(self, state_dir: Path, group: str, slot: str | None) -> None:
        self.group = group
        wanted = [slot] if slot is not None else [str(number) for number in range(SLOTS_MAX)]
        for name in wanted:
            path = state_dir / group / name
            descriptor = self._lock(path)
            if descriptor is not None:
                self.path, self.slot, self._descriptor = path, name, descriptor
                #: The folder's id. It never changes, and no two folders have the same id.
                self.id = self._own_id(first_use=self._identify())
                return
        taken = state_dir / group / wanted[-1]
        holder = _read(taken / "lock").strip() or "unknown"
        raise StateFolderTaken(
            f"The state folder {taken} is held by the live process {holder}.",
            action="Stop that process, or set another `slot` or `state_dir`.",
            path=str(taken),
            pid=holder,
        )

    @staticmethod
    def slots(state_dir: Path, group: str) -> list[str]:
        """Returns the names of the slots that have a folder, sorted."""
        root = state_dir / group
        return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []

    def task(self, name: str) -> Path:
        """Returns the folder of one task's database."""
        return _task_folder(self.path, name)

    @staticmethod
    def path_of(state_dir: Path, group: str, slot: str, name: str) -> Path:
        """Returns the folder of one task's database, without locking the slot."""
        return _task_folder(state_dir / group / slot, name)

    @staticmethod
    def id_of(slot: Path) -> str:
        """Returns the id of a slot's folder, without locking the slot; empty if the slot was never used."""
        return _read(slot / "id").strip()

    @staticmethod
    def in_use(slot: Path) -> bool:
        """Whether a live process uses a slot. The check does not lock the slot.

        The folder records the identity of the process that locked it. The check tests whether this process runs. If the
        process may be in another container and is invisible here, the check tests whether the lock is held. If no
        identity is recorded, the slot is in use if any live process has the pid in ``lock``.
        """
        lock = _read(slot / "lock").strip()
        if not lock.isdecimal() or int(lock) <= 0:
            return False
        holder = read_identity(slot / HOLDER)
        # no file ``.holder`` with this pid: an older version of Holdfast locked the slot
        if holder is None or holder.pid != int(lock):
            try:
                os.kill(int(lock), 0)
            except OSError as gone:
                return isinstance(gone, PermissionError)
            return True
        fate = fate_of(holder)
        return _is_locked(slot / "lock") if fate == "unseen" else fate == "running"

    def check_held(self) -> None:
        """Raises StateDiskFailed if the folder was deleted or replaced since it was locked."""
        try:
            there = os.stat(self.path / "lock")
            ours = os.fstat(self._descriptor)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
            seen = "its lock file is another one"
        except OSError as failure:
            seen = f"its lock file can't be found: {failure.strerror}"
        raise StateDiskFailed(
            f"The state folder {self.path} was deleted or replaced while it was in use: {seen}.",
            action="Restart the processor: state is restored from the changelog. Find out what deletes state folders.",
            cause="state-missing",
            path=str(self.path),
        )

    def delete_state(self) -> None:
        """Deletes all databases of the slot, and their renamed copies. The slot keeps its lock, identity and id."""
        try:
            for entry in self.path.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
        except OSError as failure:
            raise _not_writable(self.path, failure) from failure

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
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
            write_identity(path / HOLDER, own_identity())
        except OSError as failure:
            os.close(descriptor)
            raise _not_writable(path, failure) from failure
        return descriptor

    def _own_id(self, *, first_use: bool) -> str:
        found = self.id_of(self.path)
        if found:
            return found
        made = secrets.token_hex(6) if first_use else socket.gethostname()
        self._write(self.path / "id", made)
        return made

    def _identify(self) -> bool:
        """Checks that the folder belongs to this group. Returns True for a folder that was never used before."""
        file = self.path / "identity.json"
        ours = {"version": IDENTITY_VERSION, "application": self.group}
        text = _read(file)
        if text:
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                found = {"version": None, "application": text[:40]}
            if found != ours:
                self.release()
                raise StateFolderForeign(
                    f"The state folder {self.path} belongs to {found.get('application')!r} "
                    f"(format {found.get('version')}), not to {self.group!r} (format {IDENTITY_VERSION}).",
                    action="Set another `state_dir` for this application, or move the folder away.",
                    path=str(self.path),
                )
            return False
        self._write(file, json.dumps(ours))
        return True

    def _write(self, file: Path, text: str) -> None:
        temporary = file.with_suffix(".tmp")
        try:
            temporary.write_text(text)
            temporary.replace(file)
        except OSError as failure:
            self.release()
            raise _not_writable(self.path, failure) from failure


def _task_folder(slot: Path, task: str) -> Path:
    """Returns a task's folder.

    The name of a task can be long, because it may contain the names of many topics. In this case, the folder has a
    shortened name with a hash of the full name.
    """
    former = file_name(task)
    if len(former) > NAME_MAX and (slot / former).is_dir():
        return slot / former
    return slot / file_name(task, NAME_MAX)


def _is_locked(file: Path) -> bool:
    try:
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _not_writable(path: Path, failure: OSError) -> StateDiskFailed:
    return StateDiskFailed(
        f"The state folder {path} can't be written: {failure.strerror}.",
        action="Set `state_dir` to a folder that the process may write to, on a disk with free space.",
        cause="disk-full" if failure.errno in DISK_FULL else "",
        path=str(path),
    )


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
