"""Workers that run until they are ended, and tell what happens in them: for scenarios with more than one process.

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
    """A worker process, and what it has told so far.

    Args:
        work: What it does; the count does not matter.
        home: Its home folder.
        environment: Settings beyond; checkpoints are off.
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
        """What it told under a name."""
        return [told for told in list(self._told) if told["event"] == name and told["at"] > since]

    def kill(self) -> None:
        """SIGKILL; nothing happens when it is gone."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> float:
        """SIGTERM, and wait; gives the CPU seconds of its whole life.

        Raises:
            RunWrong: It ended with another exit code than 0.
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
    """Wait for something while all workers live.

    Raises:
        RunWrong: It did not come about in time, or a worker ended.
    """
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline or any(worker.process.poll() is not None for worker in workers):
            raise RunWrong(f"a worker ended, or {LIMIT_S:g} s were not enough for: {what}")
        time.sleep(0.02)


def work_on(work: Work) -> None:
    """Be a worker that tells what happens, until ended."""

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
