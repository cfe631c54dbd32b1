"""Failover: a worker is killed, another one takes over; with a standby, and without, on a real broker.

    python -m tests.bench.failover                     2,000,000 changelog records, 3 rounds of each
    python -m tests.bench.failover --records 200000 --rounds 1

Two workers share four partitions, while messages come; neither has a checkpoint store. The first is killed with
SIGKILL. ``notices``: until the group has given its partitions to the second worker (the session timeout). ``takes
over``: from then to the moment when the last of its tasks runs. ``replayed``: changelog records for that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import structlog

from infra.jars import JarSource, fetch_jars
from infra.java import find_java
from infra.kafka.broker import EmbeddedBroker
from infra.kafka.records import TopicSpec
from infra.kafka.topics import Topics
from infra.settings import load_settings
from tests.bench.measured import RunWrong
from tests.bench.ours import application_of
from tests.bench.seeding import fill, first_of_each_partition, seed
from tests.bench.stream import PARTITIONS, SeededState, bodies
from tests.bench.told import Work

PROJECT = Path(__file__).resolve().parent.parent.parent
EVENTS = ("partitions assigned", "task runs", "standby has the whole changelog")
LIMIT_S = 600.0
#: Messages that come at once, and seconds from one to the next.
PORTION, EVERY_S = 500, 0.25


@dataclass(frozen=True, slots=True)
class Failover:
    """One takeover."""

    notices_s: float
    takes_over_s: float
    replayed: int


class Worker:
    """A worker process, and what it has told so far."""

    def __init__(self, work: Work, home: Path, standbys: int) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_CHECKPOINTS__ENABLED": "false",
            "HOLDFAST_STANDBY_REPLICAS": str(standbys),
        }
        command = [sys.executable, "-m", "tests.bench.failover", "--worker", *work.arguments()]
        self.process = subprocess.Popen(command, env=environment, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        self.told: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    def events(self, name: str, since: float = 0.0) -> list[dict[str, Any]]:
        """What it told under a name."""
        return [told for told in list(self.told) if told["event"] == name and told["at"] > since]

    def kill(self) -> None:
        """SIGKILL; nothing happens when it is gone."""
        self.process.kill()
        self.process.wait(30)


def failover(work: Work, folder: Path, standbys: int) -> Failover:
    """Start two workers, kill the first, and measure the second.

    Raises:
        RunWrong: Something did not come about in time.
    """
    shutil.rmtree(work.state_dir, ignore_errors=True)
    stop, workers = threading.Event(), []
    loading = threading.Thread(target=_load, args=(work, stop))
    loading.start()
    try:
        workers.append(one := Worker(work, folder / "home", standbys))
        _wait(lambda: len(one.events("task runs")) >= PARTITIONS, "the first worker to run", workers)
        workers.append(two := Worker(work, folder / "home", standbys))
        _wait(lambda: len(two.events("task runs")) >= PARTITIONS // 2, "the second worker to run", workers)
        if standbys:
            half = PARTITIONS // 2
            _wait(lambda: len(two.events("standby has the whole changelog")) >= half, "its standbys", workers)
        killed_at = time.time()
        one.kill()
        _wait(lambda: len(two.events("task runs", killed_at)) >= PARTITIONS, "the takeover", [two])
        runs = two.events("task runs", killed_at)
        noticed_at = two.events("partitions assigned", killed_at)[-1]["at"]
        last_at = max(told["at"] for told in runs)
        return Failover(noticed_at - killed_at, last_at - noticed_at, sum(told["records"] for told in runs))
    finally:
        stop.set()
        loading.join()
        for worker in workers:
            worker.kill()


def _load(work: Work, stop: threading.Event) -> None:
    rows = list(bodies(PORTION, PORTION))
    while not stop.wait(EVERY_S):
        fill(work.bootstrap, ((work.source, *row, None) for row in rows))


def _wait(condition: Callable[[], bool], what: str, workers: list[Worker]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline or any(worker.process.poll() is not None for worker in workers):
            raise RunWrong(f"a worker ended, or {LIMIT_S:g} s were not enough for: {what}")
        time.sleep(0.02)


def measure(bootstrap: str, folder: Path, records: int, rounds: int) -> dict[int, list[Failover]]:
    """By number of standbys, the takeovers; they take turns.

    Raises:
        RunWrong: A takeover with a standby replayed more than a tenth of what there is, or one without less than a
            quarter.
    """
    found: dict[int, list[Failover]] = {1: [], 0: []}
    topics = Topics(bootstrap)
    for number in range(rounds):
        for standbys, takeovers in found.items():
            name = f"bench-failover-{records}-{number}-{standbys}"
            state_dir = str(folder / name)
            work = Work(
                bootstrap, name, f"{name}-in", f"{name}-out", 0, "exactly-once", 1.0, state_dir, restore=records
            )
            for topic in (work.source, work.output):
                topics.create(TopicSpec(topic, PARTITIONS, 1))
            fill(bootstrap, first_of_each_partition(work.source))
            seed("ours", work, topics, SeededState(records, max(1, records // 2)))
            takeovers.append(failover(work, folder, standbys))
            shutil.rmtree(state_dir, ignore_errors=True)
    if any(takeover.replayed > max(records // 10, 10_000) for takeover in found[1]):
        raise RunWrong(f"with a standby {[each.replayed for each in found[1]]} of {records} records were replayed")
    if any(takeover.replayed < records // 4 for takeover in found[0]):
        raise RunWrong(f"without a standby only {[each.replayed for each in found[0]]} of {records} were replayed")
    return found


def report(records: int, found: dict[int, list[Failover]]) -> str:
    """The table."""
    lines = [f"failover    kill -9 of one of two workers, {records:,} changelog records, medians of {len(found[1])}"]
    lines.append(f"{'':24}{'notices':>10}{'takes over':>14}{'replayed':>12}")
    for standbys, takeovers in found.items():
        notices = median(takeover.notices_s for takeover in takeovers)
        takes_over = median(takeover.takes_over_s for takeover in takeovers)
        replayed = int(median(takeover.replayed for takeover in takeovers))
        named = "with a standby" if standbys else "without"
        lines.append(f"{named:24}{notices:>8.1f} s{takes_over:>12.2f} s{replayed:>12,}")
    lines.append(
        "takes over, each: " + ", ".join(f"{each.takes_over_s:.2f} s" for each in found[1]) + " with a standby"
    )
    return "\n".join(lines)


def work_on(work: Work) -> None:
    """Be a worker that tells what happens, until killed."""

    def told(logger: Any, method: str, event: dict[str, Any]) -> Any:
        if event["event"] in EVENTS:
            facts = {"event": event["event"], "at": time.time(), "records": event.get("records", 0)}
            print(json.dumps(facts), flush=True)
        elif method in ("warning", "error"):
            print(event, file=sys.stderr)
        raise structlog.DropEvent

    structlog.configure(processors=[told])
    application_of(work).run()


def main(arguments: list[str]) -> int:
    """The command line; the exit code."""
    if arguments[:1] == ["--worker"]:
        work_on(Work.parse(arguments[1:]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.bench.failover", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--records", type=int, default=2_000_000, help="changelog records; half as many keys")
    parser.add_argument("--rounds", type=int, default=3, help="takeovers of each kind")
    given = parser.parse_args(arguments)
    settings, java = load_settings(), find_java()
    jars = fetch_jars("broker", settings.cache, JarSource(java, settings.ivy_settings))
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", heap_mb=1_024, java=java, jars=jars)
        try:
            print(report(given.records, measure(broker.start().bootstrap, Path(folder), given.records, given.rounds)))
        except RunWrong as wrong:
            print(f"WRONG      {wrong}", file=sys.stderr)
            return 1
        finally:
            broker.stop()
    print(f"load       {' '.join(f'{load:.1f}' for load in os.getloadavg())} after the bench")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
