"""Windows of Holdfast and Kafka Streams give the same results on the same topic of a real broker, for each kind.

Messages are out of order and late, drawn from a seed. ``docs/windows-compared.md`` lists the differences. The last
tests of this module show these differences. In all other tests, both engines have equal results.

The tests need the Kafka Streams program and the jars of ``make bench``. They are skipped if the Java
compiler is missing or the jars cannot be fetched.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from holdfast import Application, Count, Sum
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench.contenders import Work
from tests.bench.measured import run_measured
from tests.bench.peers import Contender

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

SECOND = 1_000
#: The first event time: in the past, and a multiple of the window size since the epoch.
BEGIN = 1_735_689_600_000
#: Timeout of a run, in seconds. A longer run counts as stuck.
PATIENCE_S = 240.0


class Message(NamedTuple):
    """A message of one partition."""

    key: str
    time: int
    amount: int


class Window(NamedTuple):
    """One window result without its key: start, end, count and total."""

    start: int
    end: int
    count: int
    total: float


@dataclass(frozen=True)
class Kind:
    """A window that both engines declare; times are in milliseconds."""

    name: str
    duration: int
    step: int
    grace: int
    #: The retention of the window store in Kafka Streams, in milliseconds; 0 keeps its default.
    retention: int = 0

    def theirs(self, emit: str) -> str:
        # Kafka Streams closes a sliding window one millisecond earlier.
        grace = self.grace + (self.name == "sliding")
        return f"{self.name}:{self.duration}:{self.step}:{grace}:{emit}:totals:{self.retention}"

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
    """The results of each key in order, by kind and ``current`` or ``final``."""

    made: dict[tuple[str, str], dict[str, list[Window]]] = field(default_factory=dict)

    def of(self, kind: Kind, emit: str) -> dict[str, list[Window]]:
        return self.made[kind.name, emit]

    def state(self, kind: Kind) -> dict[tuple[str, int, int], Window]:
        """The last result of each window."""
        return {(key, each.start, each.end): each for key, of in self.of(kind, "current").items() for each in of}

    def closed(self, kind: Kind) -> Counter[tuple[str, Window]]:
        return Counter((key, each) for key, of in self.of(kind, "final").items() for each in of)


@pytest.fixture
def compare(
    broker: str, unique: Callable[[str], str], tmp_path: Path, kafka_streams: Contender
) -> Callable[..., tuple[Results, Results]]:
    """Run both engines on the same messages. Returns the results of Holdfast, then those of Kafka Streams."""

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
                # Kafka Streams ends a session at its last message; Holdfast ends it one millisecond later, like other
                # windows.
                last = told["end"] + (kind.name == "session" and "-theirs-" in topic)
                window = Window(told["start"], last, told["count"], told["total"])
                by_key.setdefault((record.key or b"").decode(), []).append(window)
    return found


def drawn(partition: int, keys: int, lates: Sequence[int]) -> list[Message]:
    """Draw the messages of one partition; each is late by one of ``lates``, relative to the partition's time."""
    random_ = random.Random(keys * 100 + partition)
    made: list[Message] = []
    now = BEGIN + partition
    for _ in range(700):
        now += random_.choice([0, 1, 500, 2 * SECOND, 4 * SECOND, random_.randrange(30 * SECOND)])
        time = now - random_.choice(lates)
        made.append(Message(f"key-{partition}-{random_.randrange(keys)}", time, random_.randint(1, 100)))
    return made


#: Delays of messages: none, within the grace, and late.
MIXED = [0, 0, 0, 0, 1, 5 * SECOND, 10 * SECOND, 13 * SECOND, 20 * SECOND, 33 * SECOND, 45 * SECOND, 300 * SECOND]
#: Delays of messages. With each delay, a message is late for all of its sliding windows, or for none.
ALL_OR_NONE = [0, 0, 0, 0, 1, 5 * SECOND, 300 * SECOND]
NONE_LATE = [0, 0, 0, 1, 5 * SECOND, 10 * SECOND]


def in_order(results: dict[str, list[Window]]) -> dict[tuple[str, int], list[Window]]:
    """The results in order, by key and window start."""
    found: dict[tuple[str, int], list[Window]] = {}
    for key, of in results.items():
        for each in of:
            found.setdefault((key, each.start), []).append(each)
    return found


@pytest.mark.parametrize(("partitions", "keys"), [(3, 5), (1, 1)])
def test_tumbling_hopping_and_session_windows_have_equal_results(
    compare: Callable[..., tuple[Results, Results]], partitions: int, keys: int
) -> None:
    given = [drawn(number, keys, MIXED) for number in range(partitions)]
    ours, theirs = compare(given, [TUMBLING, HOPPING, SESSION])
    for kind in (TUMBLING, HOPPING, SESSION):
        # compare all current results, which include the last result of each window, and all closed windows
        assert in_order(ours.of(kind, "current")) == in_order(theirs.of(kind, "current")), kind
        assert ours.closed(kind) == theirs.closed(kind), kind
        assert len(ours.closed(kind)) > 10 * partitions
    # Check that the draw had late messages, and messages that merged sessions.
    assert sum(map(len, ours.of(TUMBLING, "current").values())) < sum(map(len, given))
    merged = [of for of in in_order(ours.of(SESSION, "current")).values() if len(of) > 1]
    assert any(later.count > earlier.count + 1 for of in merged for earlier, later in pairwise(of))


@pytest.mark.parametrize(("keys", "lates"), [(1, ALL_OR_NONE), (5, NONE_LATE)])
def test_sliding_windows_have_equal_results_where_a_message_ends_one(
    compare: Callable[..., tuple[Results, Results]], keys: int, lates: Sequence[int]
) -> None:
    given = [drawn(number, keys, lates) for number in range(2)]
    ours, theirs = compare(given, [SLIDING])
    times = {(message.key, message.time) for of in given for message in of}
    state, theirs_state = ours.state(SLIDING), theirs.state(SLIDING)
    assert state.items() <= theirs_state.items()
    assert {(key, end) for key, _, end in state} <= times
    # Kafka Streams also has windows that start right after a message, and do not end at a message.
    others = theirs_state.keys() - state.keys()
    assert others
    assert {(key, start - 1) for key, start, _ in others} <= times
    ends = {(key, end) for key, _, end in state}
    assert not {(key, end) for key, _, end in others} & ends
    closed = Counter({each: n for each, n in theirs.closed(SLIDING).items() if (each[0], each[1].end) in ends})
    assert len(ours.closed(SLIDING)) > 100
    if keys == 1:
        # Some messages were late, so fewer windows end at a message than there are messages.
        assert len(ends) < len(times)
        assert ours.closed(SLIDING) == closed
    else:
        assert ours.closed(SLIDING) <= closed  # in Kafka Streams, messages of other keys close windows earlier


@pytest.mark.parametrize("retention", [0, 86_400 * SECOND])
def test_a_message_near_a_closed_session(compare: Callable[..., tuple[Results, Results]], retention: int) -> None:
    """The second message of alice is within the gap of her closed session. It is early enough to open a new session."""
    given = [
        Message("alice", BEGIN, 1),
        Message("bob", BEGIN + SESSION.duration + SESSION.grace + 5 * SECOND, 2),  # this message closes alice's session
        Message("alice", BEGIN + 10 * SECOND, 4),
        Message("bob", BEGIN + 100 * SECOND, 8),  # this message closes all sessions
    ]
    ours, theirs = compare([given], [replace(SESSION, retention=retention)])
    first, second = Window(BEGIN, BEGIN + 1, 1, 1.0), BEGIN + 10 * SECOND
    alone = [first, Window(second, second + 1, 1, 4.0)]
    assert ours.of(SESSION, "final")["alice"] == alone
    assert theirs.of(SESSION, "final")["alice"] == ([first, Window(BEGIN, second + 1, 2, 5.0)] if retention else alone)


def test_a_late_message_counts_in_later_sliding_windows(compare: Callable[..., tuple[Results, Results]]) -> None:
    """The third message is too late for its own window.

    Holdfast still counts it in the window of the fourth message.
    """
    given = [
        Message("alice", BEGIN, 1),
        Message("alice", BEGIN + 100 * SECOND, 2),
        Message("alice", BEGIN + 65 * SECOND, 4),
        Message("alice", BEGIN + 92 * SECOND, 8),
        Message("alice", BEGIN + 300 * SECOND, 16),
    ]
    ours, theirs = compare([given], [SLIDING])
    start, end = BEGIN + 62 * SECOND, BEGIN + 92 * SECOND
    assert ("alice", Window(start, end, 2, 12.0)) in ours.closed(SLIDING)
    assert ("alice", Window(start, end, 1, 8.0)) in theirs.closed(SLIDING)


def test_a_sliding_window_closes_with_a_message_of_its_key(compare: Callable[..., tuple[Results, Results]]) -> None:
    """In Kafka Streams, messages of another key make a message late and close its window."""
    given = [
        Message("alice", BEGIN, 1),
        Message("bob", BEGIN + 60 * SECOND, 2),
        Message("alice", BEGIN + 40 * SECOND, 4),
        Message("carol", BEGIN + 60 * SECOND, 8),
        Message("bob", BEGIN + 100 * SECOND, 16),
    ]
    ours, theirs = compare([given], [SLIDING])
    late, quiet = BEGIN + 40 * SECOND, BEGIN + 60 * SECOND
    assert ours.state(SLIDING)["alice", late - SLIDING.duration, late] == Window(late - SLIDING.duration, late, 1, 4.0)
    assert ("alice", late - SLIDING.duration, late) not in theirs.state(SLIDING)
    assert "carol" not in ours.of(SLIDING, "final")
    assert theirs.of(SLIDING, "final")["carol"] == [Window(quiet - SLIDING.duration, quiet, 1, 8.0)]
