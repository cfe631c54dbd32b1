"""Processes known only by id: whether the same process still runs, and how to end it.

Invariants:
    - A process is identified by its id *and* its start mark, because systems reuse ids. Whatever outlives this process
      also records the boot and the namespaces in which both count (``ProcessIdentity``).
    - A zombie (ended, not collected by its parent) counts as ended.
    - No judgement reads a clock. The mark is the kernel's start tick, counted from boot. psutil's ``create_time`` is
      not used: it moves when the system clock is set, and marks are compared across processes and hours.
    - Without ``/proc`` (macOS) the mark is ``ps -o lstart``: that kernel stores the moment at the start of the process,
      and a later step of the clock does not change it. The boot is ``kern.bootsessionuuid``.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from holdfast.infra.system.files import replace_text
from holdfast.infra.system.privacy import process_umask
from holdfast.infra.waiting import wait_until

#: What this process can see of another process. ``unseen``: that process belongs to another boot, machine or container.
Fate = Literal["running", "ended", "unseen"]

#: Pause between two checks whether a process has ended, seconds.
CHECK_EVERY_S = 0.02
#: How long a killed process may take to disappear, seconds.
KILLED_WITHIN_S = 10.0
#: Maximum number of characters shown of another process's command line.
COMMAND_MAX = 80
#: How long ``ps`` may take, seconds.
PS_WITHIN_S = 10.0


def start_mark(pid: int) -> str | None:
    """The start mark of a process, unique among processes with the same id; None when no such process runs."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _mark_by_ps(pid)
    return None if fields[0] in {"Z", "X"} else fields[19]


def running_for_s(pid: int) -> float | None:
    """Seconds since the start of a process, by the kernel's clock since boot; None if it has ended or is unknown."""
    mark = start_mark(pid)
    if mark is None or not mark.isdecimal():
        return None
    try:
        booted_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, booted_s - int(mark) / os.sysconf("SC_CLK_TCK"))


def is_running(pid: int, mark: str) -> bool:
    """Whether the process with this id and this start mark still runs."""
    return start_mark(pid) == mark


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of a process, unique over reboots, machines and containers. ``parse`` reads its text."""

    pid: int
    #: Start mark (``start_mark``).
    mark: str
    #: The kernel's id of this boot; ``-`` where the system names none.
    boot: str
    #: Pid and time namespace of ``pid`` and ``mark``: containers of one machine have the same boot id and the same
    #: small pids. ``-`` if the system has no namespaces.
    namespace: str

    def __str__(self) -> str:
        return f"{self.boot}/{self.namespace}/{self.pid}/{self.mark}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """The identity with this text; None for any other text."""
        words = text.strip().split("/", 3)
        if len(words) < 4 or not all(words) or not words[2].isdecimal():
            return None
        return cls(int(words[2]), words[3], words[0], words[1])


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has this id now; None when none runs."""
    mark = start_mark(pid)
    return None if mark is None else ProcessIdentity(pid, mark, _boot(), _namespace())


def own_identity() -> ProcessIdentity:
    """The identity of this process, also after a fork."""
    identity = identity_of(os.getpid())
    assert identity is not None, "this process runs"
    return identity


def fate_of(identity: ProcessIdentity) -> Fate:
    """Whether a process still runs, as far as this process can see."""
    if (identity.boot, identity.namespace) != (_boot(), _namespace()):
        return "unseen"
    return "running" if is_running(identity.pid, identity.mark) else "ended"


def write_identity(file: Path, identity: ProcessIdentity) -> None:
    """Give a file the text of this identity; raises OSError when the file can't be written."""
    replace_text(file, f"{identity}\n")


def read_identity(file: Path) -> ProcessIdentity | None:
    """The identity in a file; None if the file is absent or has another text."""
    try:
        return ProcessIdentity.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def identity_beside(file: Path) -> Path:
    """The file with the identity of the process that a JSON file names by ``pid`` and ``mark``.

    The identity has a separate file, because older versions refuse a JSON file with unknown fields.
    """
    return file.with_suffix(".process")


def record_identity(file: Path, pid: int) -> None:
    """Write the identity of a process next to the JSON file that will name it; does nothing for an ended process."""
    identity = identity_of(pid)
    if identity is not None:
        write_identity(identity_beside(file), identity)


def recorded_runs(file: Path, pid: int, mark: str) -> bool:
    """Whether the process that a JSON file of this home names runs here.

    False for a process of another boot or container.
    """
    identity = read_identity(identity_beside(file))
    if identity is None or (identity.pid, identity.mark) != (pid, mark):
        return is_running(pid, mark)  # written by an older version
    return fate_of(identity) == "running"


def lock_holders(file: Path) -> tuple[str, ...]:
    """The other processes that hold a lock of a file, as ``process ID (command)``.

    Empty if the system can't report them.
    """
    try:
        found = file.stat()
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    pids = {int(row[4]) for row in rows if row[1] != "->" and row[5] == place} - {os.getpid()}
    return tuple(f"process {pid} ({_command(pid)})" for pid in sorted(pids) if pid > 0)


def completed(
    command: Sequence[str], within_s: float, *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without input in a new session; raises TimeoutExpired after ``within_s`` seconds."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        timeout=within_s,
        check=False,
    )


def start_detached(
    command: Sequence[str], folder: Path, output: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, in a new session; its output replaces the file ``output``.

    The process gets Holdfast's umask, regardless of this process's umask.
    """
    with output.open("wb") as out:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=process_umask(),
        )


def end_process(pid: int, mark: str, *, timeout_s: float) -> bool:
    """Send SIGTERM, wait up to ``timeout_s`` seconds, then send SIGKILL; False when the process was killed."""
    for sent, within_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, KILLED_WITHIN_S)):
        if is_running(pid, mark):
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        if wait_until(lambda: not is_running(pid, mark), within_s, every_s=CHECK_EVERY_S):
            return sent is signal.SIGTERM
    return False


def end_tree(pid: int, mark: str, *, timeout_s: float, asked: bool = False) -> bool:
    """End a process and its descendants in its process group; False when the process had to be killed.

    The process gets SIGTERM (unless it was ``asked`` to end already), and SIGKILL after ``timeout_s`` seconds. After
    its end, its descendants get SIGKILL. Descendants in another group were started to outlive it, so they stay.
    """
    started = {each: start_mark(each) for each in _below_in_group(pid)}
    if asked:
        wait_until(lambda: not is_running(pid, mark), timeout_s, every_s=CHECK_EVERY_S)
        started |= {each: start_mark(each) for each in _below_in_group(pid)}
        ended = not is_running(pid, mark)
        end_process(pid, mark, timeout_s=0.0)
    else:
        ended = end_process(pid, mark, timeout_s=timeout_s)
    for each, began in started.items():
        if began is not None and is_running(each, began):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    return ended


def group_members(group: int) -> tuple[int, ...]:
    """The processes of a process group that have not ended."""
    if Path("/proc/self/stat").exists():
        rows = (_group_and_state(path) for path in Path("/proc").glob("[0-9]*"))
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,state="], capture_output=True, text=True, check=False)
        rows = (tuple(line.split()) for line in listed.stdout.splitlines())
    return tuple(int(row[0]) for row in rows if row[1:2] == (str(group),) and row[2][0] not in "ZX")


def end_group(group: int, *, timeout_s: float) -> None:
    """Send SIGTERM to a process group, wait up to ``timeout_s`` seconds, then send SIGKILL.

    The id must belong to a process group that the caller started: other processes can reuse an id once its group has
    ended.
    """
    for sent, within_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, KILLED_WITHIN_S)):
        if group_members(group):
            with suppress(ProcessLookupError):
                os.killpg(group, sent)
        if wait_until(lambda: not group_members(group), within_s):
            return


def _below_in_group(pid: int) -> tuple[int, ...]:
    """The descendants of a process that are in its process group."""
    if Path("/proc/self/stat").exists():
        rows = [row for path in Path("/proc").glob("[0-9]*") if (row := _parent_and_group(path)) is not None]
    else:
        listed = completed(["ps", "-A", "-o", "pid=,ppid=,pgid="], PS_WITHIN_S)
        rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    group = next((row[2] for row in rows if row[0] == pid), None)
    found = [pid]
    for parent in found:  # grows meanwhile: the children of each child follow
        found += [row[0] for row in rows if row[1:] == (parent, group)]
    return tuple(found[1:])


def _parent_and_group(process: Path) -> tuple[int, ...] | None:
    """Process id, parent and group; None when the process has ended meanwhile."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(process.name), int(fields[1]), int(fields[2])


def _group_and_state(process: Path) -> tuple[str, ...]:
    """Process id, group and state; empty when the process has ended meanwhile."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return process.name, fields[2], fields[0]


@cache
def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or "-"
    with suppress(OSError, subprocess.TimeoutExpired):
        return completed(["sysctl", "-n", "kern.bootsessionuuid"], PS_WITHIN_S).stdout.strip() or "-"
    return "-"


def _namespace() -> str:
    numbers = []
    for kind in ("pid", "time"):
        with suppress(OSError):
            numbers += re.findall(r"\d+", str(Path(f"/proc/self/ns/{kind}").readlink()))
    return ".".join(numbers) or "-"


def _command(pid: int) -> str:
    """The beginning of a process's command line."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
        return " ".join(words)[:COMMAND_MAX] or "no command line"
    return "command unknown"


def _mark_by_ps(pid: int) -> str | None:
    answer = completed(["ps", "-o", "state=,lstart=", "-p", str(pid)], PS_WITHIN_S)
    state, _, started = answer.stdout.strip().partition(" ")
    return started.strip() or None if state and not state.startswith("Z") else None
