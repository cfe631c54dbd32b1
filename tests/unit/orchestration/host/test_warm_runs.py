"""Processes of runs are forked from a process that has already imported what they need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.infra.waiting import wait_until
from holdfast.orchestration.host.warm_runs import is_code_server

#: Starts a process as Dagster's code server does: with a queue and an event of the context ``spawn``.
SERVER = """
import json, multiprocessing, os, sys
from pathlib import Path
from holdfast.orchestration.host.warm_runs import start_runs_by_fork

def run(queue, event, folder):
    queue.put({"pid": os.getpid(), "parent": os.getppid(), "warm": "colorsys" in sys.modules, "set": os.environ["NOW"]})
    event.wait(60)
    (Path(folder) / "ended").touch()

if __name__ == "__main__":
    start_runs_by_fork(["colorsys"])
    context = multiprocessing.get_context("spawn")
    queue, event = context.Queue(), context.Event()
    process = context.Process(target=run, args=[queue, event, sys.argv[1]])
    process.start()
    print(json.dumps({"server": os.getpid(), "process": process.pid, **queue.get(timeout=60)}), flush=True)
    if sys.stdin.readline().strip() == "end":
        event.set()
        process.join(60)
        print(process.exitcode, process.is_alive(), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> subprocess.Popen[str]:
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, script, tmp_path], env={**os.environ, "NOW": "1"}, **pipes)


def test_a_run_finds_its_imports_made_and_obeys_queue_and_event(server: subprocess.Popen[str], tmp_path: Path) -> None:
    assert server.stdout is not None
    told = json.loads(server.stdout.readline())
    assert told["pid"] == told["process"]
    assert told["parent"] not in (told["server"], 1), "its parent is the fork server"
    assert (told["warm"], told["set"]) == (True, "1")
    out, _ = server.communicate("end\n", timeout=60)
    assert out.split() == ["0", "False"]
    assert (tmp_path / "ended").exists()
    assert wait_until(lambda: not Path(f"/proc/{told['parent']}").exists(), 30), "the fork server ends with the server"


def test_a_run_goes_on_without_its_code_server(server: subprocess.Popen[str], tmp_path: Path) -> None:
    assert server.stdout is not None
    told = json.loads(server.stdout.readline())
    os.kill(server.pid, signal.SIGKILL)
    server.wait(30)
    os.kill(told["pid"], 0)
    os.kill(told["pid"], signal.SIGTERM)
    for pid in (told["pid"], told["parent"]):
        assert wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 30), (
            "the fork server ends with its last run"
        )


def test_only_a_code_server_of_dagster_does_so() -> None:
    assert not is_code_server()
    said = subprocess.run([sys.executable, "-m", "dagster", "--version"], capture_output=True, text=True, check=True)
    assert "dagster" in said.stdout
