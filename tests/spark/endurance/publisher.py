"""A thread that sends requests to a Spark driver in a loop, and restarts the driver if it was killed.

A request takes a snapshot, maintains the tables, or writes a version with the state of a past time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.spark.endurance.publishing_driver import PublishingDriver

#: The shares of requests that maintain tables and that write past versions. The other requests are snapshots.
MAINTENANCE_SHARE, PAST_SHARE = 0.06, 0.15
#: Errors with which a snapshot may end while the store's worker is killed, or the store is cleared, rebuilt or gets
#: another changelog. The snapshot was then refused, or its Spark executor was killed. A failed audit or an unclear
#: history is never allowed.
REFUSALS = frozenset(
    {
        "ProcessorSilent",
        "SnapshotImpossible",
        "ChangelogMoved",
        "TableMoved",
        "NotCovered",
        "SparkFailed",
        "SparkUnavailable",
        "TopicUnknown",
        "CommandRefused",
    }
)


class Publisher(threading.Thread):
    """Sends one request after the other to the driver until ``finish`` is called."""

    def __init__(self, start: Callable[[], PublishingDriver], rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._start, self._rng = start, rng
        self.driver: PublishingDriver | None = None
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        #: The number of published snapshots. It includes snapshots that a restarted driver found already published.
        self.published = 0
        #: A lock that is held while maintenance may expire versions, so that a reader of versions can wait.
        self.maintaining = threading.Lock()
        self._ended = threading.Event()
        self._began = time.time()
        self._pasts = 0

    def run(self) -> None:
        try:
            while not self._ended.is_set() and not self.failed:
                self._one()
        except BaseException as failure:
            self.failed.append(repr(failure))

    def abandon(self) -> None:
        """Kill the driver and its JVM in any state, even while a driver starts."""
        self._ended.set()
        drivers = [pid for pid, told in _children(os.getpid()) if PublishingDriver.module in told]
        for pid in [*(jvm for driver in drivers for jvm, _ in _children(driver)), *drivers]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """Return the process ids of the driver and its JVM. Empty without a driver."""
        driver = self.driver
        if driver is None or driver.process.poll() is not None:
            return []
        return [driver.pid, *(pid for pid, told in _children(driver.pid) if "org.apache.spark.deploy" in told)]

    def settled(self) -> str:
        """Take one snapshot with a new driver, without disturbances.

        Returns the snapshot id. Call it only after ``finish``.
        """
        self.abandon()
        if self.driver is not None:
            self.driver.process.wait(60)
        self.driver = self._start()
        said = self.driver.do("snapshot", wanted="auto")
        assert "answer" in said, said
        return str(said["answer"]["id"])

    def finish(self, patience_s: float) -> None:
        """Stop after the current request. The driver keeps running."""
        self._ended.set()
        self.join(patience_s)
        assert not self.is_alive(), "the publisher does not end"

    def _one(self) -> None:
        if self.driver is None:
            self.driver = self._start()
            self.counts["drivers started"] += 1
        kind, draw = "snapshot", self._rng.random()
        request: dict[str, Any] = {"wanted": self._rng.choice(["auto"] * 8 + ["checkpoint", "changelog"])}
        if draw < MAINTENANCE_SHARE:
            kind, request = "maintain", {}
        elif draw < MAINTENANCE_SHARE + PAST_SHARE:
            self._pasts += 1
            day, hour = divmod(self._pasts, 24)
            at = self._rng.uniform(self._began, time.time())
            kind, request = "past", {"key": f"2025-{day // 28 + 1:02}-{day % 28 + 1:02}-{hour:02}:00", "at": at}
        self._hear(kind, self._asked(kind, request))

    def _asked(self, kind: str, request: dict[str, Any]) -> Any:
        driver = self.driver
        assert driver is not None
        with self.maintaining if kind == "maintain" else threading.Lock(), suppress(BrokenPipeError):
            driver.ask(kind, **request)
            return driver.answered()
        return None

    def _hear(self, kind: str, said: Any) -> None:
        if said is None:
            self.counts["drivers dead"] += 1
            assert self.driver is not None
            self.driver.process.kill()
            self.driver.process.wait(60)
            self.driver = None
        elif "error" in said and len(self.pids()) < 2:  # the driver's JVM was killed
            self._hear(kind, None)
        elif "answer" in said:
            source = said["answer"].get("source")
            self.published += kind == "snapshot"
            self.counts[f"{kind} {source}" if source else kind] += 1
        elif said["error"]["type"] in REFUSALS:
            self.counts[f"{kind} refused: {said['error']['type']}"] += 1
        else:
            self.failed.append(f"{kind}: {said['error']}")


def _children(parent: int) -> list[tuple[int, str]]:
    """Process id and command line of the running child processes of a process."""
    command = ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(parent)]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    listed = [line.split(maxsplit=2) for line in told]
    return [(int(pid), told) for pid, state, told in listed if state[0] != "Z"]
