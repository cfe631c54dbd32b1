"""Measures many open windows on a real broker: they are restored from the changelog, and all close at once.

    python -m tests.bench.open_windows                    1,000,000 windows, 3 rounds
    python -m tests.bench.open_windows --size 100000 --rounds 1

Each key has one message in the same minute, so there is one window per key. A first process counts the messages and
stops. A second process has an empty disk: it restores the windows, and one message per partition closes them all.
``closing s`` is the time from the first result to the last one, by the broker's append times. Each window must be sent
once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from confluent_kafka import Consumer, TopicPartition

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench import windows
from tests.bench.contenders import Work
from tests.bench.measured import RunWrong, Usage, peak_of, run_measured
from tests.bench.outputs import read_into
from tests.bench.peers import OURS
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import Row, fill
from tests.bench.stream import FIRST_TIMESTAMP_MS, PARTITIONS, key_of
from tests.bench.workers import Worker, await_all

MILLION, MIB = 1_000_000, 1 << 20
LIMIT_S = 900.0
WAY = "empty disk, then all end"
_VALUE = b'{"amount":1}'


def messages(topic: str, size: int) -> Iterator[Row]:
    """One message of each key."""
    for user in range(size):
        yield topic, user % PARTITIONS, key_of(user), _VALUE, None


class OpenWindows:
    """One round of the measurement, with a consumer group of its own."""

    def __init__(self, place: Place, topics: Topics, number: int) -> None:
        self._place, self._topics, name = place, topics, f"bench-open-{place.size}-{number}"
        state_dir = str(place.folder / name)
        told = windows.told("final")
        source, output, bootstrap = f"{name}-in", f"{name}-out", place.broker.bootstrap
        self._work = Work(bootstrap, name, source, output, place.size, "exactly-once", 1.0, state_dir, windows=told)

    def open(self) -> Usage:
        """Count the messages. Afterwards all windows are open, and the disk is empty."""
        work, size = self._work, self._place.size
        self._topics.create(TopicSpec(work.source, PARTITIONS, 1, {"retention.ms": "-1"}))
        self._topics.create(TopicSpec(work.output, PARTITIONS, 1, {"message.timestamp.type": "LogAppendTime"}))
        # All messages have the same event time, because there are more messages than milliseconds in a minute.
        fill(work.bootstrap, messages(work.source, size), FIRST_TIMESTAMP_MS, step_ms=0)
        command = (sys.executable, "-m", "tests.bench.ours_builtin", *work.arguments())
        environment = {**OURS, "HOLDFAST_HOME": work.state_dir}
        usage = run_measured(command, environment, self._place.broker.pid, LIMIT_S)
        shutil.rmtree(work.state_dir)
        return usage

    def end(self) -> Figures:
        """Restore the windows, and then close them.

        Raises:
            RunWrong: A window is missing or was sent twice.
        """
        work, size = self._work, self._place.size
        worker = Worker(replace(work, count=0), self._place.folder / work.group, {})
        try:
            await_all(lambda: len(worker.events("task runs")) == PARTITIONS, "all tasks to run", [worker])
            [assigned, *_], runs = worker.events("partitions assigned"), worker.events("task runs")
            rows = [(work.source, number, key_of(number), _VALUE, None) for number in range(PARTITIONS)]
            fill(work.bootstrap, rows, FIRST_TIMESTAMP_MS + windows.WINDOW_MS, step_ms=0)
            with closing(self._reader()) as reader:
                seen = 0

                def all_sent() -> bool:
                    nonlocal seen
                    seen += sum(message.error() is None for message in reader.consume(10_000, 0.1))
                    return seen >= size

                await_all(all_sent, "all windows to be sent", [worker])
            peak = peak_of(worker.process.pid)
            cpu_s = worker.stop()
        finally:
            worker.kill()
        sent = windows.Sent()
        read_into(sent, work.bootstrap, self._topics, work.output)
        if sent.count != size or sent.counts != {(key_of(user), FIRST_TIMESTAMP_MS): 1 for user in range(size)}:
            raise RunWrong(f"{work.group} has sent {sent.count} results of {len(sent.counts)} windows, not {size}")
        restore_s, records = runs[-1]["at"] - assigned["at"], sum(each["records"] for each in runs)
        closing_s = (sent.last_ms[FIRST_TIMESTAMP_MS] - sent.first_ms) / 1000
        for topic in (work.source, work.output, f"{work.group}-windows-changelog"):
            self._topics.delete(topic)
        return {
            "restore s": restore_s,
            "records": records,
            "closing s": closing_s,
            "CPU s/M": cpu_s / size * MILLION,
            "RSS MiB": peak / MIB,
        }

    def _reader(self) -> Consumer:
        reader = Consumer(
            {
                "bootstrap.servers": self._work.bootstrap,
                "group.id": "bench-open-windows",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        reader.assign([TopicPartition(self._work.output, number, 0) for number in range(PARTITIONS)])
        return reader


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """In each round, one process opens the windows, and another process closes them."""
    topics = Topics(place.broker.bootstrap)
    for number in range(place.rounds):
        made = OpenWindows(place, topics, number)
        opened = made.open()
        opening = {"opening CPU s/M": opened.cpu_s / place.size * MILLION, "opening MiB": opened.peak_bytes / MIB}
        yield WAY, {**made.end(), **opening}


SCENARIO = Scenario(
    "windows",
    "{size:,} open windows, which a process with an empty disk restores and closes, exactly-once, commit every 1 s",
    size=1_000_000,
    small=2_000,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
