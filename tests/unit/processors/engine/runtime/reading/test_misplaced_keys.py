"""Messages whose key belongs to another partition are counted, despite restarts and aborted transactions."""

from __future__ import annotations

import json
from random import Random

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.kafka.topics import partitioners
from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2, murmur2, murmur2_of, partitions_of
from holdfast.processors.engine.runtime.reading.misplaced_keys import (
    PORTION,
    SHOWN_BY,
    KeyPlaces,
    counting_partitioner,
    key_places,
    partitioner_of,
)
from holdfast.processors.engine.runtime.task.arrivals import Arrivals, Counts
from holdfast.processors.engine.runtime.task.noted_time import noted
from holdfast.processors.lifecycle.health.arrivals import action_of

COUNT = 4


def keys_in(partition: int, by: str, many: int, *, prefix: str = "k") -> list[bytes]:
    """The first keys that this partitioner puts into a partition, of four partitions."""
    found = (f"{prefix}{number}".encode() for number in range(100 * many))
    return [key for key in found if partitions_of(by, [key], COUNT) == [partition]][:many]


def only_by(by: str, partition: int, many: int, *, prefix: str = "k") -> list[bytes]:
    """Keys that this partitioner puts into a partition, and the other partitioner does not."""
    other = CRC32 if by == MURMUR2 else MURMUR2
    found = keys_in(partition, by, 4 * many, prefix=prefix)
    return [key for key in found if partitions_of(other, [key], COUNT) != [partition]][:many]


@pytest.mark.parametrize("has_numpy", [True, False])
def test_many_keys_are_hashed_as_one_key_is(has_numpy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_numpy:
        monkeypatch.setattr(partitioners, "_numpy", lambda: None)
    random = Random(7)
    keys = [random.randbytes(random.randint(0, 40)) for _ in range(2_000)]
    assert murmur2_of(keys) == list(map(murmur2, keys))
    assert murmur2_of(keys[:10]) == list(map(murmur2, keys[:10]))


def test_the_partitioner_of_keys_is_the_one_that_explains_nearly_all() -> None:
    good, bad = keys_in(2, MURMUR2, 95), only_by(CRC32, 2, 5)
    assert partitioner_of([*good, *bad], 2, COUNT) == MURMUR2
    assert partitioner_of(keys_in(2, CRC32, 100), 2, COUNT) == CRC32
    assert partitioner_of([f"k{number}".encode() for number in range(100)], 2, COUNT) is None
    assert counting_partitioner([CRC32, None, MURMUR2]) == MURMUR2
    assert counting_partitioner([CRC32, None]) == CRC32
    assert counting_partitioner([None]) is None


def test_keys_wait_until_one_input_shows_its_partitioner() -> None:
    places = KeyPlaces(1, {"orders": COUNT, "customers": COUNT})
    wrong = only_by(CRC32, 1, 3)
    places.saw("customers", [*wrong, None])
    places.judge()
    assert places.count == 0
    places.saw("orders", list(keys_in(1, MURMUR2, SHOWN_BY, prefix="o")))
    places.judge()
    assert places.count == 3
    assert places.newest is not None
    assert (places.newest.topic, places.newest.key, places.newest.partitioner) == ("customers", wrong[-1], MURMUR2)
    places.judge()
    assert places.count == 3, "keys are judged once"


def test_keys_whose_partitions_a_program_chooses_are_not_counted() -> None:
    places = KeyPlaces(0, {"orders": COUNT, "customers": COUNT})
    for topic in ("orders", "customers"):
        places.saw(topic, [f"{topic}{number}".encode() for number in range(200)])
    places.judge()
    assert places.count == 0


def test_keys_that_can_not_be_judged_do_not_fill_the_memory() -> None:
    places = KeyPlaces(0, {"orders": COUNT})
    for _ in range(3):
        places.saw("orders", [b"k"] * PORTION)
    assert places._size <= PORTION


def facts_of(**partitions: int) -> dict[str, TopicFacts]:
    return {name: TopicFacts(name, f"id-of-{name}", count, 1, {}) for name, count in partitions.items()}


def app(*, two: bool = True, grouped: bool = False) -> Application:
    made = Application(consumer_group="shop", auto_offset_reset="earliest")
    customers = made.topic("customers")
    table = made.table(customers, name="customers")
    if not two:
        return made
    orders = made.dataframe(made.topic("orders"))
    if grouped:
        orders = orders.group_by("customer")
    orders.join_table(table, how="left", on_merge=lambda left, right: left).to_topic(made.topic("out"))
    return made


def test_only_inputs_that_share_a_store_are_judged() -> None:
    widths = facts_of(orders=COUNT, customers=COUNT)
    one, both, grouped = (app(**how).topology() for how in ({"two": False}, {}, {"grouped": True}))  # type: ignore[arg-type]
    assert key_places(one, ("customers",), 0, widths) is None
    assert key_places(both, ("orders", "customers"), 0, facts_of(orders=1, customers=1)) is None
    found = key_places(both, ("orders", "customers"), 0, widths)
    assert found is not None
    assert found._counts == {"orders": COUNT, "customers": COUNT}
    name = next(spec.topic for spec in grouped.repartitions)
    beside = key_places(grouped, (name, "customers"), 1, widths | facts_of(**{name: COUNT}))
    assert beside is not None
    assert beside._counts == {"customers": COUNT}
    beside.saw("customers", list(only_by(CRC32, 1, 2)))
    beside.judge()
    assert beside.count == 2, "Holdfast wrote the other input by murmur2, so no other keys are needed"


def feed(cluster: InMemoryCluster, topic: str, by: str, numbers: range) -> None:
    """Write records to the partitions that this partitioner (``by``) chooses for their keys."""
    cluster.create_topic(topic, COUNT)
    for number in numbers:
        key = f"c{number}".encode()
        cluster.produce(topic, json.dumps({"n": number}).encode(), key, partition=partitions_of(by, [key], COUNT)[0])


def counts_of(cluster: InMemoryCluster, number: int) -> Counts:
    committed = cluster._broker.group("shop").committed
    task = next(spec.name for spec in app().topology().subtopologies)
    offsets = [committed.get(Partition(topic, number)) for topic in ("orders", "customers")]
    return noted(f"{task}-{number}", offsets).arrivals


def test_orders_of_a_producer_with_another_partitioner_are_counted_and_named() -> None:
    cluster, first, wrong = InMemoryCluster(), range(400), range(400, 440)
    feed(cluster, "customers", MURMUR2, first)
    feed(cluster, "orders", MURMUR2, first)
    cluster.run(app())
    assert [counts_of(cluster, number).total for number in range(COUNT)] == [0] * COUNT
    feed(cluster, "customers", MURMUR2, wrong)
    feed(cluster, "orders", CRC32, wrong)
    # send correctly placed messages last, so that the next worker detects the topic's partitioner again
    feed(cluster, "orders", MURMUR2, first)
    keys = [f"c{number}".encode() for number in wrong]
    apart = zip(partitions_of(MURMUR2, keys, COUNT), partitions_of(CRC32, keys, COUNT), strict=True)
    expected = sum(one != other for one, other in apart)
    cluster.run(app())
    found = [counts_of(cluster, number) for number in range(COUNT)]
    assert sum(each.misplaced for each in found) == expected
    newest = next(each.newest for each in found if each.newest is not None)
    assert newest.kind == "misplaced"
    assert newest.topic == "orders"
    assert ", but murmur2 puts it into " in newest.reason
    assert "`holdfast consume orders`" in action_of("shop", newest)
    feed(cluster, "orders", MURMUR2, first)
    cluster.run(app())
    assert sum(counts_of(cluster, number).misplaced for number in range(COUNT)) == expected, "kept by the next owner"


def test_misplaced_messages_of_dropped_work_are_counted_once() -> None:
    arrivals = Arrivals()
    arrivals.recall(Counts(misplaced=5))
    arrivals.begin(None, lambda: 60_000)
    arrivals.judge_places(KeyPlaces(1, {"orders": COUNT}, is_grouped=True))
    keys: list[bytes | None] = [*only_by(CRC32, 1, 3), None]
    arrivals.saw("orders", keys, 0, 2)
    assert arrivals.counts().misplaced == 7
    arrivals.saw("orders", keys, 2, 4)  # count messages, then undo the counts before a commit stores them
    arrivals.restore()
    assert arrivals.counts().misplaced == 5
    arrivals.saw("orders", keys, 0, 4)
    arrivals.committed(kept := arrivals.counts())
    assert kept.misplaced == 8
    arrivals.restore()
    assert arrivals.counts().misplaced == 8
