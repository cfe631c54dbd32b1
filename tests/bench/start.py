"""A processor with much state on its disk, stopped cleanly, is started again, on a real broker.

    python -m tests.bench.start                     1,000,000 keys, 3 rounds
    python -m tests.bench.start --size 100000 --rounds 1

Each round starts a process of its own on the same disk; messages wait for it. ``first output``: from the start of the
process to the moment when a reader of committed records has its first output in hand, which its first commit lets
through; the last message is sent after that, so that it is no commit of its end. ``replayed``: changelog records before
it ran. Outputs have to be those that plain Python computes from the state and all messages so far.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice

from confluent_kafka import Consumer, TopicPartition

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics import Topics
from tests.bench.contenders import Work
from tests.bench.held import check_state
from tests.bench.measured import RunWrong, Usage, run_measured
from tests.bench.outputs import read_outputs
from tests.bench.peers import OURS
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import fill, first_of_each_partition, seed
from tests.bench.stream import PARTITIONS, SeededState, bodies, expected, hash_of

#: Messages of each round.
MESSAGES = 200
LIMIT_S = 900.0
WAY = "warm disk"
#: Records that a start may replay: the tail that the last commit could not say anything about.
TAIL_MAX = 1_000


class FirstOutput:
    """Waits, in a thread of its own, for the first committed record behind those that are there; calls ``then``."""

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
        """Wait no longer."""
        self._ended.set()
        self._thread.join()


class StartBench:
    """One group with its state."""

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
        """Make the state: a first run restores it, and stops cleanly."""
        for topic in (self._work.source, self._work.output):
            self._topics.create(TopicSpec(topic, PARTITIONS, 1))
        fill(self._work.bootstrap, first_of_each_partition(self._work.source))
        seed("ours", self._work, self._topics, self._state)
        self._feed(MESSAGES)
        self._run()

    def again(self) -> Figures:
        """Start once more.

        Raises:
            RunWrong: It replayed more than a tail, or has other outputs or other state than it must have.
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
        """What is on the disk is what the changelog holds.

        Raises:
            RunWrong: It is not.
        """
        check_state(self._work, self._state.keys)


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Make the state once, then start again and again."""
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
