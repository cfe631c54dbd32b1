"""Joins behind ``group_by`` equal a plain Python model on all messages in the order of time.

Each partition of the topics is in order. Partitions are read in pieces, one far ahead of another, and workers are
killed. The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.topics.partitioners import murmur2
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.runtime import loop
from holdfast.processors.engine.runtime.reading import grouped_order, reading_order
from holdfast.processors.engine.runtime.reading import upstream_times as heard
from holdfast.processors.engine.runtime.task import inputs_in_order
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.window_lives import live, world

SEEDS = variants(range(600), tested=3)
VALUES: list[Any] = [0, "", False, {}, [], 1, "x", {"a": None}]
KEYS = ["a", "b", "", "a/b"]


class Sent(NamedTuple):
    """A message: its side, the key by which it is grouped, its event time in milliseconds, and its value."""

    left: bool
    key: str
    time_ms: int
    value: Any


@dataclass(frozen=True)
class Shape:
    """How the two sides reach the join: both through ``group_by``, only one of them, or both from one topic."""

    grouped: tuple[bool, bool]
    one_topic: bool
    twice: bool
    sources: int
    width: int
    guarantee: str

    @classmethod
    def draw(cls, random: Random) -> Shape:
        grouped = random.choice([(True, True), (True, False), (False, True)])
        return cls(
            grouped,
            one_topic=all(grouped) and random.random() < 0.3,
            twice=random.random() < 0.25,
            sources=random.randint(1, 4),
            width=random.randint(1, 3),
            guarantee=random.choice(["exactly-once", "exactly-once", "at-least-once"]),
        )

    def topic(self, *, left: bool) -> str:
        return "both" if self.one_topic else "l" if left else "r"

    def partition(self, key: str) -> int:
        """The number of the repartition topic's partition that has this key."""
        return int(murmur2(key.encode()) & 0x7FFFFFFF) % self.width


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def built(state_dir: Path, shape: Shape, join: Callable[[Any, Any], Any], *, left_first: bool) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
        processing_guarantee=shape.guarantee,  # type: ignore[arg-type]
    )
    sources, made = dict[str, Any](), dict[bool, Any]()
    for left in (True, False) if left_first else (False, True):
        name = shape.topic(left=left)
        if name not in sources:
            sources[name] = app.dataframe(app.topic(name))
        side = sources[name]
        if shape.one_topic:
            side = side.filter(_is_left if left else _is_right)
        if shape.grouped[0 if left else 1]:
            mark = "l" if left else "r"
            if shape.twice:
                side = side.group_by("v", f"{mark}-first", key_serializer=_text, partitions=2)
            side = side.group_by("k", f"{mark}-key", partitions=shape.width)
        made[left] = side.apply(_value)
    join(made[True], made[False]).to_topic(app.topic("out"))
    return app


def _is_left(value: Any) -> bool:
    return bool(value["left"])


def _is_right(value: Any) -> bool:
    return not value["left"]


def _value(value: Any) -> Any:
    return value["v"]


def _text(value: Any) -> bytes:
    return repr(value).encode()


def draw(random: Random) -> list[Sent]:
    """Messages of both sides in the order of time.

    Each time occurs once, because the order of equal times is undefined.
    """
    at, found = 1_000, []
    for _ in range(random.randint(0, 90)):
        at += random.choice([1, 2, 5, 20, 300])
        found.append(Sent(random.random() < 0.5, random.choice(KEYS), at, random.choice(VALUES)))
    return found


def produce(cluster: InMemoryCluster, shape: Shape, given: list[Sent], random: Random) -> None:
    for each in given:
        value = json.dumps({"k": each.key, "v": each.value, "left": each.left}).encode()
        if shape.grouped[0 if each.left else 1]:
            place, key = random.randrange(shape.sources), b"any"
        else:
            place, key = shape.partition(each.key), each.key.encode()
        topic = shape.topic(left=each.left)
        cluster.produce(topic, value, key, partition=place, timestamp_ms=each.time_ms)


def lived(seed: int, join: Callable[[Any, Any], Any], tmp_path: Path) -> tuple[InMemoryCluster, Shape, list[Sent]]:
    """Feed all messages in one to three parts, and process each part despite kills."""
    random, (cluster, _) = Random(seed), world()
    shape = Shape.draw(random)
    for left in (True, False):
        grouped = shape.grouped[0 if left else 1]
        cluster.create_topic(shape.topic(left=left), partitions=shape.sources if grouped else shape.width)
    app = built(tmp_path, shape, join, left_first=random.random() < 0.5)
    given, parts, disk = draw(random), random.randint(1, 3), SimulatedDisk()
    with pytest.MonkeyPatch.context() as patch:  # small limits, so that inputs arrive in pieces and are paused
        patch.setattr(loop, "RECORDS_PER_POLL", random.choice([1, 3, 2_000]))
        patch.setattr(reading_order, "BUFFERED_MAX", random.choice([4, 10_000]))
        for part in range(parts):
            produce(cluster, shape, given[len(given) * part // parts : len(given) * (part + 1) // parts], random)
            for _ in range(random.randint(0, 3)):
                live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
            live(cluster, app, disk, None, count=random.choice([0, 3]))
            live(cluster, app, SimulatedDisk(), None)
    return cluster, shape, given


def check(cluster: InMemoryCluster, shape: Shape, expected: list[tuple[int, str, Any, Any]]) -> None:
    found = Counter(
        repr((record.timestamp_ms, (record.key or b"").decode(), *json.loads(record.value or b"")))
        for _, record in cluster.read("out")
    )
    wanted = Counter(map(repr, expected))
    if shape.guarantee == "at-least-once":
        assert found.keys() == wanted.keys()
    else:
        assert found == wanted


def newest(given: list[Sent], left: Sent, tolerance: int | None = None) -> Sent | None:
    """The right message that an as-of join must find for a left message."""
    older = [each for each in given if not each.left and each.key == left.key and each.time_ms <= left.time_ms]
    found = max(older, key=lambda each: each.time_ms, default=None)
    if found is not None and tolerance is not None and left.time_ms - found.time_ms > tolerance:
        return None
    return found


def check_asof(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    how, tolerance = random.choice(["inner", "left"]), random.choice([None, 20, 2_000])
    grace, tables = random.choice([1, 100, 10_000]), random.random() < 0.5

    def join(left: Any, right: Any) -> Any:
        if tables:  # add a join of tables whose result no stream reads
            left.to_table("lefts").join(right.to_table("rights"), "outer", both, "tables")
        return left.join_asof(right, how, both, grace, tolerance_ms=tolerance)

    cluster, shape, given = lived(seed, join, tmp_path)
    pairs = [(left, newest(given, left, tolerance)) for left in given if left.left]
    rows = [
        (left.time_ms, left.key, left.value, right and right.value)
        for left, right in pairs
        if right is not None or how == "left"
    ]
    check(cluster, shape, rows)


def check_history(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    how, retention = random.choice(["inner", "left"]), random.choice([1, 100, 10_000])

    def join(left: Any, right: Any) -> Any:
        table = right.apply(lambda value: None if value == "x" else value).to_table("rows", history_retention=retention)
        return left.join_table(table, how, both)

    cluster, shape, given = lived(seed, join, tmp_path)
    rows = []
    for left in (each for each in given if each.left):
        right = newest(given, left)
        has_row = right is not None and right.value != "x"
        if has_row or how == "left":
            rows.append((left.time_ms, left.key, left.value, right.value if right is not None and has_row else None))
    check(cluster, shape, rows)


def check_interval(seed: int, tmp_path: Path) -> None:
    random = Random(-seed - 1)
    how = random.choice(["inner", "left", "right", "outer"])
    backward, forward, grace = random.choice([0, 5, 60]), random.choice([0, 10, 60]), random.choice([0, 20, 1_000])

    def join(left: Any, right: Any) -> Any:
        return left.join_interval(right, how, both, grace, "join", backward, forward)

    cluster, shape, given = lived(seed, join, tmp_path)
    rows, matched = list[tuple[int, str, Any, Any]](), set[Sent | int]()
    for one, left in enumerate(given):
        for other, right in enumerate(given):
            near = -backward <= right.time_ms - left.time_ms <= forward
            if left.left and not right.left and left.key == right.key and near:
                rows.append((max(left.time_ms, right.time_ms), left.key, left.value, right.value))
                matched |= {one, other}
    for place, each in enumerate(given):
        ends = each.time_ms + (forward if each.left else backward) + grace + 1
        if (
            place not in matched
            and how in ("left" if each.left else "right", "outer")
            and ends <= now(shape, given, each)
        ):
            pair = (each.value, None) if each.left else (None, each.value)
            rows.append((each.time_ms, each.key, *pair))
    check(cluster, shape, rows)


def now(shape: Shape, given: list[Sent], at: Sent) -> int:
    """The final stream time of the task that processes the message ``at``.

    If a side is grouped, the times of all its messages count, because a message may come from any partition. Otherwise
    only messages in the partition of ``at`` count.
    """
    return max(
        each.time_ms
        for each in given
        if shape.grouped[0 if each.left else 1] or shape.partition(each.key) == shape.partition(at.key)
    )


CHECKS = [check_asof, check_history, check_interval]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("check", CHECKS)
def test_joins_behind_groups_are_as_in_plain_python(
    check: Callable[[int, Path], None], seed: int, tmp_path: Path
) -> None:
    check(seed, tmp_path)


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("step", [0, 7])
def test_a_stream_on_the_left_of_one_join_and_the_right_of_another_finds_its_rows(grouped: bool, step: int) -> None:
    """Alerts are joined with flights, and flights with weather.

    With ``step`` 0, the three messages have equal times.
    """
    cluster, random = InMemoryCluster(), Random(3)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    made = {}
    for name in ("alerts", "flights", "weather"):
        cluster.create_topic(name, partitions=3 if grouped else 1)
        made[name] = app.dataframe(app.topic(name))
        made[name] = made[name].group_by("k", name) if grouped else made[name]
    found = made["flights"].join_asof(made["weather"], "left", both)
    made["alerts"].join_asof(made["flights"], "left", both).to_topic(app.topic("alerted"))
    found.to_topic(app.topic("out"))
    given = [(1_000 + step * number, random.choice(list(made)), number) for number in range(300)]
    for time_ms, name, number in given:
        value = json.dumps({"k": "a", "n": number}).encode()
        cluster.produce(name, value, b"a", partition=random.randrange(3) if grouped else 0, timestamp_ms=time_ms)
    cluster.run(app)
    for topic, name, other in (("out", "flights", "weather"), ("alerted", "alerts", "flights")):
        pairs = [json.loads(record.value or b"") for _, record in cluster.read(topic)]
        assert len(pairs) == sum(each == name for _, each, _ in given)
        for left, right in pairs:
            before = [n for time_ms, each, n in given if each == other and time_ms <= given[left["n"]][0]]
            assert (right is None) is not bool(before)
            assert right is None or not step or right["n"] == before[-1]


def _watermarks_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heard.WatermarksAhead, "reached", lambda self, position: heard.NEVER)


def _head_is_taken_for_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def low(self: Any) -> int:
        return int(self.piece.times[self.at]) if self.has_head else heard.NEVER

    patch.setattr(grouped_order._Cursor, "buffered_low", property(low))


def _first_task_tells_for_all(patch: pytest.MonkeyPatch) -> None:
    def reached(self: Any, position: int) -> int:
        return int(self._before.newest_ms)

    patch.setattr(heard.WatermarksAhead, "reached", reached)


def _nobody_is_joined_with_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inputs_in_order, "_rights", lambda frames: {})


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        (_watermarks_are_ignored, check_asof),
        (_head_is_taken_for_the_oldest, check_history),
        (_first_task_tells_for_all, check_asof),
        (_nobody_is_joined_with_another, check_asof),
    ],
)
def test_planted_bugs_are_found(
    bug: Callable[[pytest.MonkeyPatch], None], check: Callable[[int, Path], None], tmp_path: Path
) -> None:
    assert is_found(bug, check, tmp_path)


def own_side(stream: Any, *, history: bool, twice: bool) -> Any:
    """A stream that is joined with itself: each message finds the newest message of its group."""
    left = stream.group_by("k")
    right = stream.group_by("k", "k-right") if twice else left
    if history:
        return left.join_table(right.to_table(history_retention=10**9), "left", on_merge=lambda mine, its: [mine, its])
    return left.join_asof(right, "left", on_merge=lambda mine, its: [mine, its])


@pytest.mark.parametrize("history", [False, True])
def test_two_branches_of_one_grouping_are_refused_and_two_groupings_are_exact(history: bool) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("t", partitions=3)
    now = int(cluster.clock.time() * 1000)
    app = Application("localhost:9092", consumer_group="g", auto_offset_reset="earliest")
    stream = app.dataframe(app.topic("t"))
    with pytest.raises(JoinInvalid, match="two branches of the grouping k: they are one topic") as refused:
        own_side(stream, history=history, twice=False)
    assert "name='k-right'" in refused.value.action
    app = Application("localhost:9092", consumer_group="g", auto_offset_reset="earliest")
    own_side(app.dataframe(app.topic("t")), history=history, twice=True).to_topic(app.topic("out"))
    for partition in (2, 1, 0):  # send the partitions in reverse, so that the youngest messages are grouped first
        for number in range(partition, 30, 3):
            value = json.dumps({"k": "a", "n": number}).encode()
            cluster.produce("t", value, b"x", partition=partition, timestamp_ms=now - 90_000 + number)
    cluster.run(app)
    joined = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert sorted((mine["n"], its["n"]) for mine, its in joined) == [(number, number) for number in range(30)]
