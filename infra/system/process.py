"""Tests whether a process that is known only by its id still runs, and ends processes.

Invariants:
    - A process is identified by its id *and* its start mark, because systems reuse ids. A record that outlives this
      process also has the boot id and the namespaces in which id and mark are valid (``ProcessIdentity``).
    - A zombie (ended, but not collected by its parent) counts as ended.
    - No test depends on the system clock. The start mark is the kernel's start tick, counted from boot. psutil's
      ``create_time`` is not used, because it changes if the system clock is set.
    - Without ``/proc`` (macOS), the mark is the output of ``ps -o lstart``. That kernel stores the start time, so a
      later change of the clock does not change the mark. The boot id is ``kern.bootsessionuuid``.
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

#: The state of another process. ``unseen``: the process belongs to another boot, machine or container, so that its
#: state is unknown here.
Fate = Literal["running", "ended", "unseen"]

#: Seconds between two checks of whether a process has ended.
CHECK_EVERY_S = 0.02
#: Maximum seconds until a killed process has disappeared.
KILLED_WITHIN_S = 10.0
#: Maximum number of characters of another process's command line that a text shows.
COMMAND_MAX = 80
#: Timeout of the commands ``ps`` and ``sysctl``, seconds.
PS_WITHIN_S = 10.0


def start_mark(pid: int) -> str | None:
    """The start mark of a process, which is unique among processes with the same id; None if no such process runs."""
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


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment variables that a process was started with; None if the system does not show them.

    Only Linux shows them, and only for processes of the same user.
    """
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The identity of a process, unique across reboots, machines and containers.

    ``str`` turns it into text, and ``parse`` reads that text.
    """

    pid: int
    #: Start mark of the process: a text that distinguishes it from other processes with the same id (``start_mark``).
    mark: str
    #: The kernel's id of the present boot; ``-`` if the system has no such id.
    boot: str
    #: Ids of the pid namespace and the time namespace; ``-`` if the system has no namespaces. They are needed because
    #: containers on one machine have the same boot id and often the same process ids.
    namespace: str

    def __str__(self) -> str:
        return f"{self.boot}/{self.namespace}/{self.pid}/{self.mark}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """The identity that ``str`` converted to this text; None if the text has another format."""
        words = text.strip().split("/", 3)
        if len(words) < 4 or not all(words) or not words[2].isdecimal():
            return None
        return cls(int(words[2]), words[3], words[0], words[1])


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has this id now; None if no process has the id."""
    mark = start_mark(pid)
    return None if mark is None else ProcessIdentity(pid, mark, _boot(), _namespace())


def own_identity() -> ProcessIdentity:
    """The identity of this process; also correct after a fork."""
    identity = identity_of(os.getpid())
    assert identity is not None, "this process runs"
    return identity


def fate_of(identity: ProcessIdentity) -> Fate:
    """Whether a process runs or has ended; ``unseen`` if this process can't see it."""
    if (identity.boot, identity.namespace) != (_boot(), _namespace()):
        return "unseen"
    return "running" if is_running(identity.pid, identity.mark) else "ended"


def write_identity(file: Path, identity: ProcessIdentity) -> None:
    """Write an identity to a file; raises OSError if the file can't be written."""
    replace_text(file, f"{identity}\n")


def read_identity(file: Path) -> ProcessIdentity | None:
    """The identity in a file; None if the file is absent or has other text."""
    try:
        return ProcessIdentity.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def identity_beside(file: Path) -> Path:
    """The path of the identity file that belongs to a JSON file with the fields ``pid`` and ``mark``.

    The identity is in a separate file, because older versions of Holdfast refuse JSON files with unknown fields.
    """
    return file.with_suffix(".process")


def record_identity(file: Path, pid: int) -> None:
    """Write the identity of a process to the identity file of the JSON file ``file``; ignores an ended process."""
    identity = identity_of(pid)
    if identity is not None:
        write_identity(identity_beside(file), identity)


def recorded_runs(file: Path, pid: int, mark: str) -> bool:
    """Whether the process that a JSON file names (``pid``, ``mark``) runs on this machine.

    False if the process belongs to another boot or another container.
    """
    identity = read_identity(identity_beside(file))
    if identity is None or (identity.pid, identity.mark) != (pid, mark):
        return is_running(pid, mark)  # The JSON file of an older version of Holdfast has no identity file.
    return fate_of(identity) == "running"


def lock_holders(file: Path) -> tuple[str, ...]:
    """The other processes that hold a lock on a file, each as text like ``process 4711 (python -m …)``.

    Empty if the system does not report locks.
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
    """Run a command, without input, in a new session; returns its result with the captured output.

    Raises ``subprocess.TimeoutExpired`` after ``within_s`` seconds.
    """
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
    """Start a process in a new session, so that it outlives this process; its output replaces the file ``output``.

    The new process gets Holdfast's umask, whatever the umask of this process is.
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
    """End a process: SIGTERM, then SIGKILL after ``timeout_s`` seconds. Returns False if SIGKILL was needed."""
    for sent, within_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, KILLED_WITHIN_S)):
        if is_running(pid, mark):
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        if wait_until(lambda: not is_running(pid, mark), within_s, every_s=CHECK_EVERY_S):
            return sent is signal.SIGTERM
    return False


def end_tree(pid: int, mark: str, *, timeout_s: float, asked: bool = False) -> bool:
    """End a process and its descendants in the same process group; returns False if the process had to be killed.

    The process gets SIGTERM, and SIGKILL after ``timeout_s`` seconds. With ``asked=True``, SIGTERM is left out, because
    the process was already asked to end. After its end, its descendants get SIGKILL. Descendants in other process
    groups keep running, because they were started to outlive the process.
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
    """The ids of all processes in a process group that have not ended."""
    if Path("/proc/self/stat").exists():
        rows = (_group_and_state(path) for path in Path("/proc").glob("[0-9]*"))
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,state="], capture_output=True, text=True, check=False)
        rows = (tuple(line.split()) for line in listed.stdout.splitlines())
    return tuple(int(row[0]) for row in rows if row[1:2] == (str(group),) and row[2][0] not in "ZX")


def end_group(group: int, *, timeout_s: float) -> None:
    """End a process group: SIGTERM, then SIGKILL after ``timeout_s`` seconds.

    The caller must have started the group, and the group must still exist. After its end, another group may get the
    same id.
    """
    for sent, within_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, KILLED_WITHIN_S)):
        if group_members(group):
            with suppress(ProcessLookupError):
                os.killpg(group, sent)
        if wait_until(lambda: not group_members(group), within_s):
            return


def _below_in_group(pid: int) -> tuple[int, ...]:
    """The ids of the descendants of a process that are in the same process group."""
    if Path("/proc/self/stat").exists():
        rows = [row for path in Path("/proc").glob("[0-9]*") if (row := _parent_and_group(path)) is not None]
    else:
        listed = completed(["ps", "-A", "-o", "pid=,ppid=,pgid="], PS_WITHIN_S)
        rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    group = next((row[2] for row in rows if row[0] == pid), None)
    found = [pid]
    # The loop also visits the ids that it appends, so it finds child processes of child processes, too.
    for parent in found:
        found += [row[0] for row in rows if row[1:] == (parent, group)]
    return tuple(found[1:])


def _parent_and_group(process: Path) -> tuple[int, ...] | None:
    """The ids of a process, its parent and its group; None if the process has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(process.name), int(fields[1]), int(fields[2])


def _group_and_state(process: Path) -> tuple[str, ...]:
    """Process id, group id and state letter of a process; empty if the process has ended."""
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
    """The beginning of a process's command line, for texts."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
        return " ".join(words)[:COMMAND_MAX] or "no command line"
    return "command unknown"


def _mark_by_ps(pid: int) -> str | None:
    answer = completed(["ps", "-o", "state=,lstart=", "-p", str(pid)], PS_WITHIN_S)
    state, _, started = answer.stdout.strip().partition(" ")
    return started.strip() or None if state and not state.startswith("Z") else None
