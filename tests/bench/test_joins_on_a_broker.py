"""Joins and groups of Holdfast and Kafka Streams give the same results on the same topics of a real broker.

Each engine runs as a separate process until it has read all inputs and all its internal topics.
``test_joins_compared.py`` shows the differences without a broker; ``docs/joins-compared.md`` lists them.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.waiting import wait_until
from tests.bench.compared_joins import (
    BEGIN,
    FOREIGN,
    GROUPS,
    HOUR,
    SECOND,
    STREAMS,
    TABLES,
    VALUES,
    WITH_HISTORY,
    WITH_TABLE,
    Kind,
    Message,
    Rows,
    Side,
    are_equal_tables,
    counted,
    encoded,
    hours,
    in_windows,
    keys_of,
    last_rows,
    newest,
    raw,
    rows_of,
    sides,
    topic_of,
    windows_of,
)
from tests.bench.contenders import Work
from tests.bench.joins import RIGHT
from tests.bench.peers import OURS, Contender, module

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

#: Timeout of a run, in seconds. A longer run counts as stuck.
PATIENCE_S = 240.0
#: A message count that is never reached, so that both engines run until the test ends.
WITHOUT_END = 1 << 62
HOLDFAST = Contender("ours", "Holdfast", module("compared_joins"), OURS)


@dataclass
class Engine:
    """One engine on the topics of a test, as a process that can be killed and restarted."""

    contender: Contender
    work: Work
    kinds: Sequence[Kind]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def topics(self) -> Topics:
        return Topics(self.work.bootstrap)

    def start(self) -> None:
        environment = {**os.environ, **self.contender.environment, "HOLDFAST_HOME": self.work.state_dir}
        with self.log.open("ab") as log:
            self.process = self._popen(environment, log)

    def _popen(self, environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        command = self.contender.call(self.work)
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        def ended_or_true() -> Any:
            assert self.process is not None
            code = self.process.poll()
            assert code is None, f"{self.contender.title} ended with {code}: {self._tail()}"
            return condition()

        found = wait_until(ended_or_true, PATIENCE_S)
        assert found, f"{self.contender.title} waited {PATIENCE_S:g} s for {what}: {self._tail()}"
        return found

    def committed(self) -> dict[Partition, int]:
        """The offsets that the engine has committed in its inputs and in its internal topics."""
        return self.topics.committed_offsets(self.work.group)

    def read_of_source(self) -> int:
        """The sum of the committed offsets in the source topic."""
        return sum(offset for place, offset in self.committed().items() if place.topic == self.work.source)

    def left(self) -> list[Partition]:
        """The partitions with records that are not committed yet. Transaction markers at the end do not count."""
        topics, own = self.topics, f"{self.work.group}-"
        # Both engines use this suffix for repartition topics. Kafka Streams uses `-topic` for joins by a foreign key.
        read = [name for name in topics.names() if name.startswith(own) and name.endswith(("-repartition", "-topic"))]
        read += [self.work.source] if self._reads_one else [self.work.source, self.work.source + RIGHT]
        committed = self.committed()
        return [
            Partition(name, number)
            for name in read
            for number, end in topics.settled_end_offsets(name, PATIENCE_S).items()
            if self._has_records(Partition(name, number), committed.get(Partition(name, number), 0), end)
        ]

    def _has_records(self, place: Partition, first: int, end: int) -> bool:
        try:
            return first < end and any(True for _ in read_range(self.work.bootstrap, *place, first, end))
        except KafkaFailed:  # the engine deletes committed records in its internal topics
            return True

    @property
    def _reads_one(self) -> bool:
        return all(kind.name == "group" for kind in self.kinds)

    def wait_done(self) -> None:
        """Wait until nothing is left to read, checked twice in a row."""
        self.wait_for(lambda: not (self.left() or self.left()), "all input to be committed")

    def results(self) -> dict[str, Rows]:
        """The committed results of each kind."""
        found: dict[str, Rows] = {}
        for kind in self.kinds:
            topic = topic_of(self.work.output, kind, len(self.kinds))
            ends = sorted(self.topics.settled_end_offsets(topic, PATIENCE_S).items())
            made = (read_range(self.work.bootstrap, topic, number, 0, end) for number, end in ends)
            found[kind.label] = rows_of(record for of in made for record in of)
        return found

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-3_000:]


#: A function that makes both engines on new topics with this number of partitions. Returns Holdfast, then Kafka
#: Streams.
Engines = Callable[[int, Sequence[Kind]], list[Engine]]


@pytest.fixture
def engines(broker: str, unique: Callable[[str], str], tmp_path: Path, kafka_streams: Contender) -> Iterator[Engines]:
    made: list[Engine] = []

    def make(partitions: int, kinds: Sequence[Kind]) -> list[Engine]:
        source, topics = unique("compared"), Topics(broker)
        asked = ",".join(kind.told() for kind in kinds)
        for contender in (HOLDFAST, kafka_streams):
            group = f"{source}-{contender.name}"
            work = Work(
                bootstrap=broker,
                group=group,
                source=source,
                output=f"{group}-out",
                count=WITHOUT_END,
                guarantee="exactly-once",
                commit_s=0.2,
                state_dir=str(tmp_path / contender.name),
                joins=asked,
                session_ms=6_000,
            )
            made.append(Engine(contender, work, kinds, tmp_path / f"{contender.name}.log"))
            for kind in kinds:
                topics.create(TopicSpec(topic_of(work.output, kind, len(kinds)), partitions, 1, KEPT))
        for name in (source, source + RIGHT):
            topics.create(TopicSpec(name, partitions, 1, KEPT))
        return made

    yield make
    for engine in made:
        engine.kill()


#: Keep all records, because event times are in the past.
KEPT = {"retention.ms": "-1"}


def fill(broker: str, topic: str, side: Mapping[int, Sequence[Message]]) -> None:
    """Send the messages of each partition."""
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 20})
    for number, messages in side.items():
        for key, at, value in messages:
            producer.produce(topic, raw(value), encoded(key), number, timestamp=at)
    assert producer.flush(60) == 0


def numbered(side: Side) -> dict[int, Sequence[Message]]:
    return dict(enumerate(side))


#: Delays of messages: none, within the grace, or later than all that is kept. No delay is only slightly longer than the
#: grace.
LATES = [0, 0, 0, 0, 10, 5 * SECOND, 300 * SECOND]


def results(both: Sequence[Engine], left: Side, right: Side) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """The results of both engines for the same messages: Holdfast, then Kafka Streams."""
    work = both[0].work
    fill(work.bootstrap, work.source, numbered(left))
    fill(work.bootstrap, work.source + RIGHT, numbered(right))
    for engine in both:
        engine.start()
        engine.wait_done()
        engine.kill()
    ours, theirs = (engine.results() for engine in both)
    return ours, theirs


def test_joins_and_groups_have_equal_results_on_a_real_broker(engines: Engines) -> None:
    """All kinds run in one program, on three partitions with five keys each."""
    kinds = [*STREAMS, *WITH_TABLE, *WITH_HISTORY, *TABLES, *GROUPS]
    left, right = sides(3, 5, LATES, [*VALUES, None, None], [*VALUES, None, None])
    ours, theirs = results(engines(3, kinds), left, right)
    for kind in STREAMS:
        assert counted(ours[kind.label]) == counted(theirs[kind.label]), kind
    rows = {kind.how: counted(ours[kind.label]).total() for kind in STREAMS}
    assert 100 < rows["inner"] < rows["left"] < rows["outer"]
    for kind in (*WITH_TABLE, *WITH_HISTORY):
        assert ours[kind.label] == theirs[kind.label], kind
    assert ours["table-left"] != ours["history-left"]
    for kind in TABLES:
        assert are_equal_tables(ours[kind.label], theirs[kind.label]), kind
        assert last_rows(ours[kind.label]), kind
    there = sum(message.value is not None for of in left for message in of)
    assert newest(ours["group-count"], lambda made: made["count"]) == newest(theirs["group-count"])
    assert sum(newest(theirs["group-count"]).values()) == there
    made, others = in_windows(ours["group-windows"], theirs["group-windows"])
    assert made == others
    assert sum(made.values()) == there


def test_tables_joined_by_a_key_inside_the_row_are_equal_on_a_real_broker(engines: Engines) -> None:
    """Rows refer to keys of all three partitions, or to no existing key."""
    references = [key for number in range(3) for key in islice(keys_of(number, 3), 3)]
    left, right = sides(3, 5, LATES, [*references, *VALUES, None], [*VALUES, None])
    ours, theirs = results(engines(3, FOREIGN), left, right)
    for kind in FOREIGN:
        assert last_rows(ours[kind.label]) == last_rows(theirs[kind.label]), kind
    assert 0 < len(last_rows(ours["foreign-inner"])) < len(last_rows(ours["foreign-left"]))


def in_hours(engine: Engine) -> dict[int, int]:
    """Return the number of messages in the last counts, by the hour of their windows."""
    [rows] = engine.results().values()
    counts = windows_of(rows, lambda made: tuple(made) if isinstance(made, list) else (made["start"], made["count"]))
    found: Counter[int] = Counter()
    for (_, start), count in counts.items():
        found[(start - BEGIN) // HOUR] += count
    return dict(found)


def test_a_restart_with_one_partition_an_hour_behind(engines: Engines) -> None:
    """Both engines are killed and restarted while one of three partitions is one hour behind.

    First the messages of this partition wait in a backlog. Later they are sent late.
    """
    both = engines(2, [Kind("group", "windows", 60 * SECOND, 0, 10 * SECOND)])
    bootstrap, source = both[0].work.bootstrap, both[0].work.source

    def run(then: Callable[[Engine], None] = lambda engine: None) -> None:
        for engine in both:
            engine.start()
            then(engine)
            engine.wait_done()
            engine.kill()

    def killed(engine: Engine) -> None:
        """Kill and restart the engine while it reads the backlog."""
        before = engine.read_of_source()
        engine.wait_for(lambda: engine.read_of_source() > before, "some of the backlog to be committed")
        engine.kill()
        engine.start()

    fill(bootstrap, source, {0: hours(0)})
    run()
    fill(bootstrap, source, {0: hours(1), 1: hours(2)})
    run(killed)
    fill(bootstrap, source, {1: hours(4)})
    run()
    fill(bootstrap, source, {0: hours(3)})
    run()
    ours, theirs = map(in_hours, both)
    print(f"messages counted by hour: Holdfast {ours}, Kafka Streams {theirs}")
    # The messages of the partition wait in a backlog. Holdfast counts all of them. Kafka Streams drops the messages
    # that it reads too late.
    assert [ours[hour] for hour in (0, 1, 2, 4)] == [3_600] * 4
    assert [theirs[hour] for hour in (0, 2, 4)] == [3_600] * 3
    assert 3 not in ours
