"""Measures the start of a processor with much state on its disk, after a clean stop, on a real broker.

    python -m tests.bench.start                     1,000,000 keys, 3 rounds
    python -m tests.bench.start --size 100000 --rounds 1

Each round starts a new process on the same disk; messages wait for it. ``first output`` is the time from the start of
the process until a read_committed reader receives its first output. The process makes this output visible with its
first commit. The last message is sent after that, so the first commit is not the commit at the stop. ``replayed``
counts the changelog records that the process reads before its tasks run. Outputs must equal those that plain Python
computes from the state and all messages so far.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice

from confluent_kafka import Consumer, TopicPartition

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench.contenders import Work
from tests.bench.held import check_state
from tests.bench.measured import RunWrong, Usage, run_measured
from tests.bench.outputs import read_outputs
from tests.bench.peers import OURS
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import fill, first_of_each_partition, seed
from tests.bench.stream import PARTITIONS, SeededState, bodies, expected, hash_of

#: The number of messages in each round.
MESSAGES = 200
LIMIT_S = 900.0
WAY = "warm disk"
#: The maximum number of records that a start may replay. They are the records after the last commit that the local
#: state recorded.
TAIL_MAX = 1_000


class FirstOutput:
    """Waits on a thread for the first committed record after the existing ones, and then calls ``then``."""

    def __init__(self, topics: Topics, work: Work, then: Callable[[], None]) -> None:
        ends = topics.settled_end_offsets(work.output, LIMIT_S)
        self._consumer = Consumer(
            {
                "bootstrap.servers": work.bootstrap,
                "group.id": "bench-first-output",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(work.output, number, end) for number, end in ends.items()])
        self._ended, self._then = threading.Event(), then
        self.at = 0.0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.at = time.time()
                self._then()
                break
        self._consumer.close()

    def close(self) -> None:
        """Stop waiting for the first output, and join the thread."""
        self._ended.set()
        self._thread.join()


class StartBench:
    """The bench of starts: one consumer group with its state on disk."""

    def __init__(self, place: Place) -> None:
        self._broker, self._state = place.broker, SeededState(place.size, place.size)
        self._topics, self._sent = Topics(place.broker.bootstrap), 0
        name = f"bench-start-{place.size}"
        self._work = Work(
            bootstrap=place.broker.bootstrap,
            group=name,
            source=f"{name}-in",
            output=f"{name}-out",
            count=MESSAGES,
            guarantee="exactly-once",
            commit_s=1.0,
            state_dir=str(place.folder / "state"),
            restore=place.size,
        )

    def prepare(self) -> None:
        """Create the state: a first run restores it, and stops cleanly."""
        for topic in (self._work.source, self._work.output):
            self._topics.create(TopicSpec(topic, PARTITIONS, 1))
        fill(self._work.bootstrap, first_of_each_partition(self._work.source))
        seed("ours", self._work, self._topics, self._state)
        self._feed(MESSAGES)
        self._run()

    def again(self) -> Figures:
        """Start the processor once more on the same disk.

        Raises:
            RunWrong: The start replayed too many records, or outputs or state are wrong.
        """
        self._feed(MESSAGES - 1)
        first = FirstOutput(self._topics, self._work, lambda: self._feed(1))
        try:
            began = time.time()
            usage = self._run()
        finally:
            first.close()
        replayed = usage.told["restored"]
        if replayed > TAIL_MAX or not first.at:
            raise RunWrong(f"a start with a warm disk replayed {replayed} records; first output at {first.at}")
        self._check()
        return {"first output s": first.at - began, "replayed": replayed, "CPU s": usage.cpu_s}

    def _feed(self, count: int) -> None:
        rows = islice(bodies(self._sent + count, self._state.keys), self._sent, None)
        fill(self._work.bootstrap, ((self._work.source, *row, None) for row in rows))
        self._sent += count

    def _run(self) -> Usage:
        command = (sys.executable, "-m", "tests.bench.ours", *self._work.arguments())
        environment = {**OURS, "HOLDFAST_HOME": self._work.state_dir}
        return run_measured(command, environment, self._broker.pid, LIMIT_S)

    def _check(self) -> None:
        outputs = read_outputs(self._work.bootstrap, self._topics, self._work.output)
        wanted = hash_of(expected(self._sent, self._state.keys, self._state).items())
        if outputs.count != self._sent or hash_of(outputs.final().items()) != wanted:
            raise RunWrong(f"{outputs.count} outputs for {self._sent} messages, or other ones than plain Python's")

    def check_state(self) -> None:
        """Check that the state on disk equals the changelog.

        Raises:
            RunWrong: They differ.
        """
        check_state(self._work, self._state.keys)


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Create the state once, and then start repeatedly."""
    bench = StartBench(place)
    bench.prepare()
    for _ in range(place.rounds):
        yield WAY, bench.again()
    bench.check_state()


SCENARIO = Scenario(
    "start",
    "start of a processor with {size:,} keys on its disk, stopped cleanly before",
    size=1_000_000,
    small=2_000,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
