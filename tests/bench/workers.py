"""Worker processes that run until they are stopped and report events; for scenarios with more than one process.

python -m tests.bench.workers group=… source=…       one worker, with the arguments of its work
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from tests.bench.contenders import Work
from tests.bench.measured import RunWrong
from tests.bench.ours import application_of
from tests.bench.peers import PROJECT

EVENTS = ("partitions assigned", "task runs", "standby has the whole changelog")
LIMIT_S = 600.0


class Worker:
    """A worker process, and the events that it has reported so far.

    Args:
        work: The work; its count is ignored.
        home: The worker's home folder.
        environment: Additional settings; checkpoints are off.
    """

    def __init__(self, work: Work, home: Path, environment: Mapping[str, str]) -> None:
        settings = {
            "PYTHONPATH": str(PROJECT),
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_CHECKPOINTS__ENABLED": "false",
            **environment,
        }
        command = [sys.executable, "-m", "tests.bench.workers", *work.arguments()]
        self.process = subprocess.Popen(
            command, env={**os.environ, **settings}, cwd=PROJECT, stdout=subprocess.PIPE, text=True
        )
        self._told: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.append(json.loads(line))

    def events(self, name: str, since: float = 0.0) -> list[dict[str, Any]]:
        """The reported events with this name, after ``since``."""
        return [told for told in list(self._told) if told["event"] == name and told["at"] > since]

    def kill(self) -> None:
        """Kill the process with SIGKILL; no error if it has already ended."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> float:
        """Send SIGTERM and wait. Returns the CPU seconds of the process's whole life.

        Raises:
            RunWrong: The exit code was not 0.
        """
        self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + LIMIT_S
        while True:
            pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                raise RunWrong(f"a worker did not stop within {LIMIT_S:g} s")
            time.sleep(0.02)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode:
            raise RunWrong(f"a worker ended with exit code {self.process.returncode}")
        return used.ru_utime + used.ru_stime


def await_all(condition: Callable[[], bool], what: str, workers: Sequence[Worker]) -> None:
    """Wait for a condition while all workers run.

    Raises:
        RunWrong: The condition did not hold in time, or a worker ended.
    """
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline or any(worker.process.poll() is not None for worker in workers):
            raise RunWrong(f"a worker ended, or {LIMIT_S:g} s were not enough for: {what}")
        time.sleep(0.02)


def work_on(work: Work) -> None:
    """Run a worker that reports events, until it is stopped."""

    def told(logger: Any, method: str, event: dict[str, Any]) -> Any:
        if event["event"] in EVENTS:
            facts = {"event": event["event"], "at": time.time(), "records": event.get("records", 0)}
            print(json.dumps(facts), flush=True)
        elif method in ("warning", "error"):
            print(event, file=sys.stderr)
        raise structlog.DropEvent

    structlog.configure(processors=[told])
    application_of(work).run()


if __name__ == "__main__":
    work_on(Work.parse(sys.argv[1:]))
