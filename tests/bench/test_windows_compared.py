"""Windows of Holdfast and of Kafka Streams over the same topic on a real broker: the same results, kind by kind.

Messages are out of order and late by a seed. ``docs/windows-compared.md`` has the differences; the last two tests show
them, and the other tests show that there are no more.

The compiled program and its jars are those of ``make bench``; without a compiler or a registry the tests are skipped.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from holdfast import Application, Count, Sum
from holdfast.infra.jars import JarSource
from holdfast.infra.java import Java
from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.settings import load_settings
from tests.bench.measured import run_measured
from tests.bench.peers import Contender, Machine, NotHere, streams
from tests.bench.told import Work

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

SECOND = 1_000
#: The first event time, a whole number of windows since 1970, and long ago.
BEGIN = 1_735_689_600_000
#: A run that lasts longer is taken for stuck, in seconds.
PATIENCE_S = 240.0


class Message(NamedTuple):
    """A message of one partition."""

    key: str
    time: int
    amount: int


class Window(NamedTuple):
    """A result, without the key."""

    start: int
    end: int
    count: int
    total: float


@dataclass(frozen=True)
class Kind:
    """A window as both declare it; milliseconds."""

    name: str
    duration: int
    step: int
    grace: int

    def theirs(self, emit: str) -> str:
        # They close a sliding window at the time at which Holdfast still takes messages for it.
        grace = self.grace + (self.name == "sliding")
        return f"{self.name}:{self.duration}:{self.step}:{grace}:{emit}:totals"

    def ours(self, frame: Any, emit: str) -> Any:
        name = f"{self.name}-{emit}"
        made = {
            "tumbling": lambda: frame.tumbling_window(self.duration, self.grace, name),
            "hopping": lambda: frame.hopping_window(self.duration, self.step, self.grace, name),
            "session": lambda: frame.session_window(self.duration, self.grace, name),
            "sliding": lambda: frame.sliding_window(self.duration, self.grace, name),
        }[self.name]().agg(count=Count(), total=Sum("amount"))
        strategy = "key" if self.name == "sliding" else "partition"
        return made.final(strategy) if emit == "final" else made.current(strategy)


TUMBLING = Kind("tumbling", 60 * SECOND, 60 * SECOND, 10 * SECOND)
HOPPING = Kind("hopping", 60 * SECOND, 20 * SECOND, 10 * SECOND)
SESSION = Kind("session", 15 * SECOND, 15 * SECOND, 10 * SECOND)
SLIDING = Kind("sliding", 30 * SECOND, 30 * SECOND, 10 * SECOND)


@dataclass
class Results:
    """By kind and ``current`` or ``final``, the results of each key in their order."""

    made: dict[tuple[str, str], dict[str, list[Window]]] = field(default_factory=dict)

    def of(self, kind: Kind, emit: str) -> dict[str, list[Window]]:
        return self.made[kind.name, emit]

    def state(self, kind: Kind) -> dict[tuple[str, int, int], Window]:
        """The last result of each window."""
        return {(key, each.start, each.end): each for key, of in self.of(kind, "current").items() for each in of}

    def closed(self, kind: Kind) -> Counter[tuple[str, Window]]:
        return Counter((key, each) for key, of in self.of(kind, "final").items() for each in of)


@pytest.fixture(scope="module")
def kafka_streams(java: Java) -> Contender:
    settings = load_settings()
    try:
        return streams(Machine(settings.cache, java, JarSource(java, settings.ivy_settings)))
    except NotHere as reason:
        pytest.skip(f"Kafka Streams is not here: {reason}")


@pytest.fixture
def compare(
    broker: str, unique: Callable[[str], str], tmp_path: Path, kafka_streams: Contender
) -> Callable[..., tuple[Results, Results]]:
    """Runs both over the same messages; returns the results of Holdfast, then those of Kafka Streams."""

    def run(partitions: Sequence[Sequence[Message]], kinds: Sequence[Kind]) -> tuple[Results, Results]:
        source, topics = unique("compared"), Topics(broker)
        topics.create(TopicSpec(source, len(partitions), 1, {"retention.ms": "-1"}))
        fill(broker, source, partitions)
        asked = [(kind, emit) for kind in kinds for emit in ("current", "final")]
        found = []
        for who, runs in (("ours", run_ours), ("theirs", run_theirs)):
            output = f"{source}-{who}"
            for kind, emit in asked:
                topics.create(TopicSpec(f"{output}-{kind.name}-{emit}", len(partitions), 1, {"retention.ms": "-1"}))
            told = ",".join(kind.theirs(emit) for kind, emit in asked)
            count = sum(len(of) for of in partitions)
            work = Work(broker, output, source, output, count, "exactly-once", 0.5, str(tmp_path / who), windows=told)
            runs(work, asked)
            found.append(read(topics, broker, output, asked))
        return found[0], found[1]

    def run_ours(work: Work, asked: Sequence[tuple[Kind, str]]) -> None:
        app = Application(
            work.bootstrap,
            consumer_group=work.group,
            auto_offset_reset="earliest",
            commit_interval=work.commit_s,
            state_dir=work.state_dir,
            loglevel=None,
        )
        frame = app.dataframe(app.topic(work.source))
        for kind, emit in asked:
            kind.ours(frame, emit).to_topic(app.topic(f"{work.output}-{kind.name}-{emit}"))
        app.run(count=work.count, timeout=PATIENCE_S)

    def run_theirs(work: Work, asked: Sequence[tuple[Kind, str]]) -> None:
        run_measured(kafka_streams.call(work), kafka_streams.environment, os.getpid(), PATIENCE_S)

    return run


def fill(broker: str, topic: str, partitions: Sequence[Sequence[Message]]) -> None:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 20})
    for number, messages in enumerate(partitions):
        for key, time, amount in messages:
            producer.produce(topic, json.dumps({"amount": amount}).encode(), key.encode(), number, timestamp=time)
    assert producer.flush(60) == 0


def read(topics: Topics, broker: str, output: str, asked: Iterable[tuple[Kind, str]]) -> Results:
    found = Results()
    for kind, emit in asked:
        by_key = found.made[kind.name, emit] = {}
        topic = f"{output}-{kind.name}-{emit}"
        for number, end in sorted(topics.settled_end_offsets(topic, 60).items()):
            for record in read_range(broker, topic, number, 0, end):
                told = json.loads(record.value or b"")
                # The end of their sessions is the last message, ours is a millisecond later, as in other windows.
                last = told["end"] + (kind.name == "session" and "-theirs-" in topic)
                window = Window(told["start"], last, told["count"], told["total"])
                by_key.setdefault((record.key or b"").decode(), []).append(window)
    return found


def drawn(seed: int, partition: int, keys: int, count: int) -> list[Message]:
    """Messages of one partition: some out of order within the grace, some late, none that a closed session could take.

    What such a message does is a difference, which ``test_a_message_near_a_closed_session`` shows.
    """
    random_ = random.Random(seed * 100 + partition)
    made: list[Message] = []
    sessions: dict[str, list[list[int]]] = {}
    now = BEGIN + partition
    while len(made) < count:
        now += random_.choice([0, 1, 500, 2 * SECOND, 4 * SECOND, random_.randrange(30 * SECOND)])
        late = random_.choice([0, 0, 0, 0, 1, 5 * SECOND, 10 * SECOND, 20 * SECOND, 45 * SECOND, 300 * SECOND])
        time = max(BEGIN, now - random_.randint(late // 2, late))
        key = f"key-{partition}-{random_.randrange(keys)}"
        if takes_no_closed(sessions.setdefault(key, []), time, now):
            made.append(Message(key, time, random_.randint(1, 100)))
    return made


def takes_no_closed(sessions: list[list[int]], time: int, now: int) -> bool:
    """Whether no closed session is within a gap of a message that counts; keeps the sessions of its key then."""
    reached = [each for each in sessions if each[0] - SESSION.duration <= time <= each[1] + SESSION.duration]
    over = now - SESSION.duration - SESSION.grace
    if max([time, *(each[1] for each in reached)]) < over:
        return True  # late for all of them
    if any(last < over for _, last in reached):
        return False
    for each in reached:
        sessions.remove(each)
    sessions.append([min([time, *(each[0] for each in reached)]), max([time, *(each[1] for each in reached)])])
    return True


def in_order(results: dict[str, list[Window]]) -> dict[tuple[str, int], list[Window]]:
    """By key and start, the results in their order."""
    found: dict[tuple[str, int], list[Window]] = {}
    for key, of in results.items():
        for each in of:
            found.setdefault((key, each.start), []).append(each)
    return found


@pytest.mark.parametrize(("partitions", "keys", "seed"), [(1, 4, 1), (3, 5, 2), (3, 1, 3)])
def test_tumbling_hopping_and_session_windows_have_equal_results(
    compare: Callable[..., tuple[Results, Results]], partitions: int, keys: int, seed: int
) -> None:
    given = [drawn(seed, number, keys, 700) for number in range(partitions)]
    ours, theirs = compare(given, [TUMBLING, HOPPING, SESSION])
    for kind in (TUMBLING, HOPPING, SESSION):
        assert in_order(ours.of(kind, "current")) == in_order(theirs.of(kind, "current")), kind
        assert ours.state(kind) == theirs.state(kind), kind
        assert ours.closed(kind) == theirs.closed(kind), kind
        assert len(ours.closed(kind)) > 10 * partitions
    # The messages were late for windows of each kind, and connected sessions.
    counted = Counter(each.count for of in ours.of(TUMBLING, "current").values() for each in of)
    assert counted.total() < sum(map(len, given))
    merged = [of for of in in_order(ours.of(SESSION, "current")).values() if len(of) > 1]
    assert any(later.count > earlier.count + 1 for of in merged for earlier, later in zip(of, of[1:], strict=False))
