"""Tests with a real supervisord that runs small programs."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from supervisor.xmlrpc import Faults as AllFaults

from holdfast.infra.deploy.program_files import (
    ProgramInvalid,
    ProgramSpec,
    ProgramStatus,
    ProgramUnknown,
    SupervisorSilent,
    SupervisorUnavailable,
    program_file,
)
from holdfast.infra.deploy.supervisord import Faults, Supervisord
from holdfast.infra.paths import Paths
from holdfast.infra.system.process import start_mark
from tests.parts.open_ports import listening

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[4]
WAIT_S = 30.0
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "home")


@pytest.fixture
def supervisor(paths: Paths) -> Iterator[Supervisord]:
    supervisor = Supervisord(paths)
    supervisor.start()
    yield supervisor
    supervisor.stop()
    assert not supervisor.running()


def program(paths: Paths, code: str, *, name: str = "fleet-0", **environment: str) -> ProgramSpec:
    return ProgramSpec(name, (sys.executable, "-c", code), environment, paths.home, paths.logs / f"{name}.log")


def in_state(supervisor: Supervisord, name: str, *states: str) -> ProgramStatus:
    eventually(lambda: supervisor.programs()[name].state in states, f"{name} is one of {states}")
    return supervisor.programs()[name]


def test_a_killed_program_is_seen_as_ended_and_stays_down_until_started(supervisor: Supervisord, paths: Paths) -> None:
    assert supervisor.apply(program(paths, SLEEP))
    known = supervisor.programs()["fleet-0"]
    assert (known.state, known.pid, known.since, known.exit_status) == ("STOPPED", None, None, None)

    supervisor.start_program("fleet-0")
    supervisor.start_program("fleet-0")
    running = in_state(supervisor, "fleet-0", "RUNNING")
    assert running.pid is not None
    assert running.alive
    os.kill(running.pid, signal.SIGKILL)

    ended = in_state(supervisor, "fleet-0", "EXITED")
    assert (ended.pid, ended.exit_status, ended.signal, ended.alive) == (None, None, "SIGKILL", False)
    assert ended.since is not None

    supervisor.start_program("fleet-0")
    again = in_state(supervisor, "fleet-0", "RUNNING")
    assert again.pid not in (None, running.pid)
    assert supervisor.log_tail("fleet-0") == ("up", "up")
    assert supervisor.log_tail("fleet-0", 1) == ("up",)

    supervisor.stop_program("fleet-0")
    supervisor.stop_program("fleet-0")
    assert supervisor.programs()["fleet-0"].state == "STOPPED"


def test_kill_also_ends_a_program_that_is_frozen(supervisor: Supervisord, paths: Paths) -> None:
    supervisor.apply(program(paths, SLEEP))
    supervisor.kill_program("fleet-0")
    supervisor.start_program("fleet-0")
    pid = in_state(supervisor, "fleet-0", "RUNNING").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    supervisor.kill_program("fleet-0")
    assert start_mark(pid) is None
    assert not supervisor.programs()["fleet-0"].alive


def test_a_program_killed_in_its_first_second_can_be_started_again(supervisor: Supervisord, paths: Paths) -> None:
    supervisor.apply(program(paths, SLEEP))
    for _ in range(3):
        supervisor.start_program("fleet-0")
        assert supervisor.programs()["fleet-0"].alive
        supervisor.kill_program("fleet-0")
        assert supervisor.programs()["fleet-0"].signal == "SIGKILL"


def test_a_program_that_ends_at_once_shows_its_exit_status(supervisor: Supervisord, paths: Paths) -> None:
    supervisor.apply(program(paths, "import sys; print('no setting'); sys.exit(64)"))
    supervisor.start_program("fleet-0")
    ended = in_state(supervisor, "fleet-0", "FATAL")
    assert ended.exit_status == 64
    assert supervisor.log_tail("fleet-0") == ("no setting",)


def test_the_same_spec_again_changes_nothing_and_another_replaces_it(supervisor: Supervisord, paths: Paths) -> None:
    supervisor.apply(program(paths, SLEEP, HOLDFAST_X="1"))
    supervisor.apply(program(paths, SLEEP, name="routes-0"))
    for name in ("fleet-0", "routes-0"):
        supervisor.start_program(name)
    pids = {name: in_state(supervisor, name, "RUNNING").pid for name in ("fleet-0", "routes-0")}

    assert not supervisor.apply(program(paths, SLEEP, HOLDFAST_X="1"))
    assert supervisor.programs()["fleet-0"].pid == pids["fleet-0"]

    assert supervisor.apply(program(paths, SLEEP, HOLDFAST_X="2"))
    assert supervisor.programs()["fleet-0"].state == "STOPPED"
    assert supervisor.programs()["routes-0"].pid == pids["routes-0"]

    supervisor.remove("routes-0")
    supervisor.remove("routes-0")
    assert set(supervisor.programs()) == {"fleet-0"}
    with pytest.raises(ProgramUnknown, match="routes-0"):
        supervisor.start_program("routes-0")


def test_any_environment_arrives_as_it_is_and_stays_private(supervisor: Supervisord, paths: Paths) -> None:
    environment = {
        "HOLDFAST_PROCESSORS": '["a.b:c", "d"]',
        "HOLDFAST_SECRET": "p%sw\"or'd ; # %(here)s\n$HOME \\ é",
        "HOLDFAST_EMPTY": "",
    }
    code = (
        "import json, os, time;"
        "print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('HOLDFAST')}), flush=True);"
        "time.sleep(600)"
    )
    supervisor.apply(program(paths, code, **environment))
    supervisor.start_program("fleet-0")
    in_state(supervisor, "fleet-0", "RUNNING")
    eventually(lambda: bool(supervisor.log_tail("fleet-0")), "the program printed")
    assert json.loads(supervisor.log_tail("fleet-0")[0]) == environment

    holders = [path for path in paths.supervisor.rglob("*") if path.is_file() and b"p%sw" in path.read_bytes()]
    assert [path.name for path in holders] == ["fleet-0.json"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.supervisor.stat().st_mode) == 0o700
    assert "p%sw" not in repr(program(paths, code, **environment))


START = """
import sys
from pathlib import Path
from holdfast.infra.deploy.supervisord import Faults, Supervisord
from holdfast.infra.paths import Paths
print(Supervisord(Paths(Path(sys.argv[1]))).start())
"""


def test_it_outlives_its_starter_and_a_second_start_finds_the_first(paths: Paths) -> None:
    environment = {**os.environ, "HOLDFAST_LEAK": "1"}
    command = [sys.executable, "-c", START, str(paths.home)]
    starters = [
        subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [starter.communicate(timeout=60)[0] for starter in starters]
    supervisor = Supervisord(paths)
    try:
        pid = supervisor.pid()
        assert pid is not None
        assert {int(output.splitlines()[-1]) for output in outputs} == {pid}
        assert supervisor.start() == pid
        leaked = "import os; print('HOLDFAST_LEAK' in os.environ, flush=True)\n" + SLEEP
        supervisor.apply(program(paths, leaked))
        supervisor.start_program("fleet-0")
        in_state(supervisor, "fleet-0", "RUNNING")
        assert supervisor.log_tail("fleet-0")[0] == "False"
    finally:
        supervisor.stop()
    assert start_mark(pid) is None
    supervisor.stop()


def test_no_program_outlives_the_supervisor(paths: Paths) -> None:
    supervisor = Supervisord(paths)
    pid = supervisor.start()
    supervisor.apply(program(paths, SLEEP))
    supervisor.start_program("fleet-0")
    child = in_state(supervisor, "fleet-0", "RUNNING").pid
    assert child is not None
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: start_mark(child) is None, "the program ended with its supervisor")

    with pytest.raises(SupervisorUnavailable, match="does not answer"):
        supervisor.programs()
    try:
        assert supervisor.start() != pid
        known = supervisor.programs()["fleet-0"]
        assert (known.state, known.since) == ("STOPPED", None)
        assert not supervisor.apply(program(paths, SLEEP))
    finally:
        supervisor.stop()


def test_a_frozen_supervisor_is_not_replaced(
    supervisor: Supervisord, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.infra.deploy.supervisord.ANSWER_TIMEOUT_S", 0.2)
    pid = supervisor.pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(SupervisorSilent, match=f"pid {pid}.*runs, but does not answer"):
            supervisor.start(timeout_s=1.0)
        for ask in calls_of(supervisor, paths):
            with pytest.raises(SupervisorSilent, match="`holdfast down`, then `holdfast up`"):
                ask()
        assert supervisor.pid() is None
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert supervisor.start() == pid
    # The calls above that failed had done a part of their work. Repeat them: they must now do the rest.
    spec = program(paths, SLEEP)
    assert not supervisor.differs(spec)
    supervisor.apply(spec)
    supervisor.start_program("fleet-0")
    in_state(supervisor, "fleet-0", "RUNNING")


def calls_of(supervisor: Supervisord, paths: Paths) -> list[Callable[[], object]]:
    """Return all methods that wait for an answer of the supervisor, as calls without arguments."""
    return [
        supervisor.running,
        supervisor.programs,
        lambda: supervisor.apply(program(paths, SLEEP)),
        lambda: supervisor.start_program("fleet-0"),
        lambda: supervisor.stop_program("fleet-0"),
        lambda: supervisor.kill_program("fleet-0"),
        lambda: supervisor.log_tail("fleet-0"),
        lambda: supervisor.remove("fleet-0"),
        lambda: supervisor.remove_all(["fleet-0", "routes-0"]),
    ]


def test_each_call_of_a_deployer_is_asked_of_a_frozen_supervisor(supervisor: Supervisord, paths: Paths) -> None:
    """Fails if `Supervisord` gets a method that `calls_of` does not test against a frozen supervisor.

    Four methods are left out: they wait for no answer, or have a test of their own.
    """
    names = {name for name in vars(Supervisord) if not name.startswith("_")}
    asked = {word for ask in calls_of(supervisor, paths) for word in [*ask.__code__.co_names, ask.__name__]}
    assert names - asked == {"start", "stop", "differs", "pid"}


def test_a_frozen_supervisor_is_ended_by_a_stop_and_another_one_starts(
    supervisor: Supervisord, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the action that the error ``SupervisorSilent`` recommends: stop, then start again."""
    supervisor.apply(program(paths, SLEEP))
    supervisor.start_program("fleet-0")
    in_state(supervisor, "fleet-0", "RUNNING")
    worker, pid = supervisor.programs()["fleet-0"].pid, supervisor.pid()
    assert worker is not None
    assert pid is not None
    monkeypatch.setattr("holdfast.infra.deploy.supervisord.ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr("holdfast.infra.deploy.supervisord.SILENT_STOP_S", 0.2)
    os.kill(pid, signal.SIGSTOP)
    assert supervisor.stop()
    monkeypatch.undo()
    assert start_mark(pid) is None
    assert start_mark(worker) is None
    assert not supervisor.running()
    assert not supervisor.stop()
    assert supervisor.start() != pid
    assert supervisor.programs()["fleet-0"].state == "STOPPED"


@pytest.mark.thorough
def test_a_home_with_a_long_and_odd_name_works(tmp_path: Path) -> None:
    paths = Paths(tmp_path / ("long" * 25) / 'it\'s no#1;"home"')
    supervisor = Supervisord(paths)
    supervisor.start()
    try:
        record = paths.supervisor / "socket.path"
        private = Path(record.read_text())
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        supervisor.apply(program(paths, SLEEP))
        supervisor.start_program("fleet-0")
        in_state(supervisor, "fleet-0", "RUNNING")
    finally:
        supervisor.stop()
    assert not private.exists()
    assert not record.exists()


def test_what_the_configuration_cannot_hold_is_refused(paths: Paths) -> None:
    for name in ("", "a b", "../x", "a\n"):
        with pytest.raises(ProgramInvalid):
            program_file(program(paths, SLEEP, name=name), sys.executable, paths.supervisor)
    for folder in ("a ;b", "a #b", "100%"):
        odd = Paths(paths.home / folder)
        with pytest.raises(ProgramInvalid, match="configuration can't hold"):
            program_file(program(odd, SLEEP), sys.executable, paths.supervisor)


def test_without_a_supervisor_the_error_says_what_to_do(paths: Paths) -> None:
    supervisor = Supervisord(paths)
    assert not supervisor.running()
    with pytest.raises(SupervisorUnavailable, match=r"What to do: Start it with `holdfast up`"):
        supervisor.programs()


def test_strangers_find_no_door_and_broken_requests_stop_nothing(supervisor: Supervisord, paths: Paths) -> None:
    """Only the user of the supervisor reaches its socket, and malformed requests do not stop the supervisor."""
    pid = supervisor.pid()
    assert pid is not None
    assert listening([pid]) == {}
    # the socket is beside the configuration, or in a separate folder if that path is too long
    path = supervisor._socket()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(paths.supervisor.stat().st_mode) == 0o700
    broken = [
        b"POST /RPC2 HTTP/1.1\r\nContent-Type: text/xml\r\nContent-Length: 5\r\n\r\n<xml>",
        b"POST /RPC2 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /RPC2 HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /logtail/..%2f..%2fetc HTTP/1.1\r\n\r\n",
        b"\x00\xff" * 1000,
    ]
    lines = []
    for request in broken * 5:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(WAIT_S)
        line.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):  # the server closes the connection of some requests early
            line.sendall(request)
        lines.append(line)
        assert supervisor.pid() == pid
    for line in lines:
        line.close()
    assert supervisor.pid() == pid
    assert supervisor.programs() == {}


def test_the_codes_of_refusals_are_those_of_supervisord() -> None:
    names = [each for each in vars(Faults) if each.isupper()]
    assert len(names) == 5
    assert {each: getattr(Faults, each) for each in names} == {each: getattr(AllFaults, each) for each in names}
