"""Topics that share state must have each key in one partition.

Otherwise the processor is refused, or logs a warning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.topics.partitioners import BOTH, CRC32, MURMUR2, NEITHER, PARTITIONERS, UNKNOWN, placing_of
from holdfast.processors.engine.same_partitioner import judge, judged_topics
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Deploy, Provision
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import world_of

PARTITIONS = 3
KEYS = [f"key-{number}" for number in range(30)]
WAY_OUT = '`sdf.group_by("field")`'


def by_length(key: bytes, count: int) -> int:
    """A partitioner that a user wrote."""
    return (len(key) + key[-1] * 7) % count


PLACES = {**PARTITIONERS, "own": by_length}


def produce(cluster: InMemoryCluster, topic: str, how: str, keys: Iterable[str] = KEYS) -> None:
    for key in keys:
        value = json.dumps({"id": key, topic: key}).encode()
        cluster.produce(topic, value, key.encode(), partition=PLACES[how](key.encode(), PARTITIONS))


def world(left: str, right: str, keys: Iterable[str] = KEYS) -> InMemoryCluster:
    cluster = InMemoryCluster()
    for topic, how in (("r", right), ("l", left)):
        cluster.create_topic(topic, partitions=PARTITIONS)
        produce(cluster, topic, how, keys)
    return cluster


def application() -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None)


def merged(left: Any, right: Any) -> Any:
    return None if right is None else right["r"]


def with_table(app: Application) -> None:
    joined = app.dataframe(app.topic("l")).join_table(app.table(app.topic("r")), on_merge=merged)
    joined.to_topic(app.topic("out"))


def as_of(app: Application) -> None:
    joined = app.dataframe(app.topic("l")).join_asof(app.dataframe(app.topic("r")), on_merge=merged)
    joined.to_topic(app.topic("out"))


def in_interval(app: Application) -> None:
    joined = app.dataframe(app.topic("l")).join_interval(
        app.dataframe(app.topic("r")), on_merge=merged, backward_ms=3_600_000
    )
    joined.to_topic(app.topic("out"))


def of_two_tables(app: Application) -> None:
    joined = app.table(app.topic("l")).join(app.table(app.topic("r")), on_merge=merged, name="both")
    joined.to_stream().to_topic(app.topic("out"))


def concatenated(app: Application) -> None:
    both = app.dataframe(app.topic("l")).concat(app.dataframe(app.topic("r")))
    both.apply(lambda value, state: value, stateful=True, store="both").to_topic(app.topic("out"))


def grouped(app: Application) -> None:
    left = app.dataframe(app.topic("l")).group_by("id")
    left.join_asof(app.dataframe(app.topic("r")), on_merge=merged).to_topic(app.topic("out"))


@pytest.mark.parametrize("declare", [with_table, as_of, in_interval, of_two_tables, concatenated, grouped])
def test_topics_of_one_store_with_two_partitioners_are_refused(declare: Callable[[Application], None]) -> None:
    cluster, app = world(MURMUR2, CRC32), application()
    declare(app)
    with pytest.raises(TopicUnusable) as refused:
        cluster.run(app)
    assert "of r where crc32 puts them (confluent-kafka and librdkafka by default)" in refused.value.message
    assert WAY_OUT in refused.value.action
    assert "`murmur2_random` in all producers of r" in refused.value.action
    assert not cluster.committed_offsets("p"), "nothing was processed"


JOINS: list[Callable[[Application], None]] = [with_table, as_of, in_interval, of_two_tables, concatenated]


@pytest.mark.parametrize(("how", "declare"), [(how, each) for how in PLACES for each in JOINS] + [(MURMUR2, grouped)])
def test_topics_with_one_partitioner_are_no_fault(how: str, declare: Callable[[Application], None]) -> None:
    cluster, app = world(how, how), application()
    declare(app)
    with capture_logs() as logs:
        cluster.run(app)
    assert not [each for each in logs if "Key " in each["event"] or "keys" in each["event"]]
    assert len(cluster.read("out")) >= len(KEYS)


def test_the_way_out_finds_every_row() -> None:
    cluster, app = world(MURMUR2, CRC32), application()
    right = app.dataframe(app.topic("r")).group_by("id")
    app.dataframe(app.topic("l")).join_interval(
        right, on_merge=merged, backward_ms=3_600_000, forward_ms=3_600_000
    ).to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(json.loads(record.value or b"") for _, record in cluster.read("out")) == sorted(KEYS)


def test_the_way_out_of_a_table_finds_every_row() -> None:
    cluster, app = world(MURMUR2, CRC32), application()
    rows = app.dataframe(app.topic("r")).group_by("id").to_table("rows", history_retention=7_200_000)
    app.dataframe(app.topic("l")).join_table(rows, on_merge=merged).to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(json.loads(record.value or b"") for _, record in cluster.read("out")) == sorted(KEYS)


def test_after_the_producers_are_corrected_the_processor_starts_with_a_warning() -> None:
    cluster, app = world(MURMUR2, CRC32), application()
    produce(cluster, "r", MURMUR2)
    with_table(app)
    with capture_logs() as logs:
        cluster.run(app)
    (warned,) = [
        each["event"] for each in logs if each["log_level"] == "warning" and "of topic r lies" in each["event"]
    ]
    assert "its producers use different partitioners" in warned
    assert WAY_OUT in warned
    assert len(cluster.read("out")) == len(KEYS), "all rows are where the messages are"


def test_two_producers_of_one_topic_are_told_by_name() -> None:
    cluster, app = InMemoryCluster(), application()
    cluster.create_topic("in", partitions=PARTITIONS)
    produce(cluster, "in", MURMUR2, KEYS[:15])
    produce(cluster, "in", CRC32, KEYS[15:])
    app.dataframe(app.topic("in")).apply(lambda value, state: value, stateful=True)
    with capture_logs() as logs:
        cluster.run(app)
    (warned,) = [each["event"] for each in logs if each["log_level"] == "warning" and "topic in" in each["event"]]
    assert warned.startswith("Some keys of topic in lie where murmur2 puts them, all others where crc32 does")


def test_a_key_in_two_places_is_named_however_few_keys_there_are() -> None:
    key = next(each for each in KEYS if len({place(each.encode(), PARTITIONS) for place in PLACES.values()}) == 3)
    cluster, app = world("own", MURMUR2, [key]), application()
    as_of(app)
    lies = [PLACES[how](key.encode(), PARTITIONS) for how in ("own", MURMUR2)]
    with capture_logs() as logs:
        cluster.run(app)
    warned = [each["event"] for each in logs if f"Key '{key}' lies in partition {lies[0]} of l" in each["event"]]
    assert len(warned) == 1
    assert f"in partition {lies[1]} of r, which share store" in warned[0]


@pytest.mark.parametrize("request_", [Provision("p"), Deploy("p")])
@pytest.mark.parametrize(("right", "is_refused"), [(CRC32, True), ("own", False), (MURMUR2, None)])
def test_plans_say_it_first(request_: Any, right: str, is_refused: bool | None) -> None:
    app = application()
    as_of(app)
    topology = app.topology()
    keys = {topic: sample(how, 2) for topic, how in (("l", MURMUR2), ("r", right))}
    plan = decide(request_, world_of(topology, keys=keys), topology)
    if is_refused:
        assert isinstance(plan.verdict, Refused)
        assert "of r where crc32 puts them" in plan.verdict.sentence
        assert WAY_OUT in plan.verdict.action
        return
    assert not isinstance(plan.verdict, Refused)
    assert any("Key " in each and WAY_OUT in each for each in plan.findings) == (is_refused is False)


def test_topics_without_state_or_with_one_partition_are_not_looked_at() -> None:
    app = application()
    app.dataframe(app.topic("plain")).to_topic(app.topic("out"))
    as_of(app)
    facts = world_of(app.topology()).topics
    assert judged_topics(app.topology(), facts) == {"l": 2, "r": 2}
    grouping = application()
    grouped(grouping)
    assert judged_topics(grouping.topology(), world_of(grouping.topology()).topics) == {"r": 2}


def test_topics_of_unknown_keys_are_no_fault() -> None:
    app = application()
    as_of(app)
    facts = world_of(app.topology()).topics
    assert judge(app.topology(), facts, {"l": sample(MURMUR2, 2)}) == ()


def sample(how: str, count: int, keys: Iterable[str] = KEYS) -> dict[int, frozenset[bytes]]:
    found: dict[int, set[bytes]] = {}
    for key in keys:
        found.setdefault(PLACES[how](key.encode(), count), set()).add(key.encode())
    return {number: frozenset(those) for number, those in found.items()}


@pytest.mark.parametrize(
    ("keys", "by", "is_sure"),
    [
        (sample(MURMUR2, 7), MURMUR2, True),
        (sample(CRC32, 7), CRC32, True),
        (sample("own", 7), NEITHER, True),
        (sample(MURMUR2, 7, KEYS[:15]) | sample(CRC32, 7, KEYS[:0]), MURMUR2, True),
        ({}, UNKNOWN, False),
        (sample(CRC32, 7, ["key-1", "key-3"]), CRC32, False),
    ],
)
def test_what_keys_say_is_sure_only_where_chance_is_small(keys: Any, by: str, is_sure: bool) -> None:
    placed = placing_of(keys, 7)
    assert (placed.by, placed.is_sure) == (by, is_sure)


def test_keys_of_both_partitioners_are_told_apart_from_those_of_a_third() -> None:
    murmur, crc = sample(MURMUR2, 7, KEYS[:15]), sample(CRC32, 7, KEYS[15:])
    mixed = {number: murmur.get(number, frozenset()) | crc.get(number, frozenset()) for number in range(7)}
    assert (placing_of(mixed, 7).by, placing_of(mixed, 7).moved) == (BOTH, None)
    assert placing_of({0: frozenset([b"a"]), 1: frozenset([b"a"])}, 2).moved == b"a"
