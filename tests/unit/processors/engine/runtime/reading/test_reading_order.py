"""A task with several inputs processes the message with the smallest event time next, however the inputs arrive."""

import json
import random
from collections.abc import Sequence

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.runtime.reading import reading_order
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.reading.read_bounds import ReadBounds
from holdfast.processors.engine.runtime.reading.reading_order import ReadingOrder

Messages = dict[str, list[int]]


def batch(topic: str, first: int, times: Sequence[int]) -> Batch:
    count = len(times)
    offsets = list(range(first, first + count))
    return Batch(Partition(topic, 0), [b"k"] * count, [b"v"] * count, list(times), offsets, [None] * count)


def merged(inputs: Messages) -> list[tuple[str, int]]:
    """The expected order, computed from all messages: topic and offset of each message."""
    at = dict.fromkeys(inputs, 0)
    ranks = {topic: rank for rank, topic in enumerate(inputs)}
    found = []
    while left := [topic for topic in inputs if at[topic] < len(inputs[topic])]:
        topic = min(left, key=lambda name: (inputs[name][at[name]], ranks[name]))
        found.append((topic, at[topic]))
        at[topic] += 1
    return found


class Reading:
    """An order of reading with its inputs. It records the processed messages."""

    def __init__(self, inputs: Messages, wait_s: float | None = None, *, weaves: bool = False) -> None:
        self.inputs = inputs
        times_of = {topic: lambda batch: batch.timestamps for topic in inputs}
        self.order = ReadingOrder(times_of, wait_s, weaves=weaves)
        self.positions = dict.fromkeys(inputs, 0)
        self.arrived = dict.fromkeys(inputs, 0)
        self.done: list[tuple[str, int]] = []

    def arrive(self, topic: str, count: int) -> None:
        first = self.arrived[topic]
        times = self.inputs[topic][first : first + count]
        self.order.add(batch(topic, first, times), len(times))
        self.arrived[topic] += len(times)

    def is_ended(self, topic: str) -> bool:
        return self.arrived[topic] == len(self.inputs[topic])

    def step(self, most: int = 500, now: float = 0.0) -> Sequence[Run | InterleavedRun]:
        runs = self.order.runs(self.positions, most, now, self.is_ended)
        assert sum(run.size for run in runs) <= most
        for run in runs:
            for place in range(run.size):
                batch, index = run.place(place)
                topic = batch.partition.topic
                self.done.append((topic, batch.offsets[index]))
                self.positions[topic] = batch.offsets[index] + 1
            assert run.behind(run.size).items() <= self.positions.items()
        return runs


@pytest.mark.parametrize("weaves", [False, True], ids=["in runs", "woven"])
@pytest.mark.parametrize("seed", range(300))
def test_messages_are_processed_in_the_order_of_their_times_however_they_arrive(seed: int, weaves: bool) -> None:
    chance = random.Random(seed)
    names = ["planes", "flights", "weather"][: chance.randint(2, 3)]
    inputs: Messages = {}
    for name in names:
        times = [chance.randrange(40) for _ in range(chance.randrange(60))]
        inputs[name] = times if chance.random() < 0.3 else sorted(times)
    reading = Reading(inputs, weaves=weaves)
    while any(reading.arrived[name] < len(inputs[name]) for name in names):
        reading.arrive(chance.choice(names), chance.randint(1, 20))
        for _ in range(chance.randrange(3)):
            reading.step(chance.randint(1, 30))
        if chance.random() < 0.1:  # simulate an abort: everything since the last commit is read again
            reading.order.clear()
            reading.arrived = dict(reading.positions)
    while reading.step(chance.randint(1, 30)):
        pass
    assert reading.done == merged(inputs)


def test_an_input_that_is_not_read_to_its_end_is_waited_for() -> None:
    reading = Reading({"left": [10, 20], "right": [15]})
    reading.arrive("left", 2)
    assert reading.step() == []
    assert reading.order.awaited_for(now=60.0, seconds=10.0) == ["right"]
    reading.arrive("right", 1)
    reading.step()
    reading.step()
    assert reading.done == [("left", 0), ("right", 0), ("left", 1)]
    assert reading.order.awaited_for(now=60.0, seconds=0.0) == []


def test_an_empty_input_is_waited_for_until_the_wait_is_over() -> None:
    reading = Reading({"left": [10, 20, 30], "right": [15]}, wait_s=2.0)
    reading.arrive("left", 2)
    assert reading.step(now=100.0) == []
    assert reading.step(now=101.9) == []
    assert reading.step(now=102.0)
    reading.arrive("left", 1)
    assert reading.step(now=102.1)  # the wait for the other input ended at 102.0
    assert reading.done == [("left", 0), ("left", 1), ("left", 2)]


def test_a_record_that_is_given_again_is_given_from_where_it_stopped() -> None:
    reading = Reading({"left": [10, 20], "right": []})
    reading.arrive("left", 2)
    first = reading.order.runs(reading.positions, 500, 0.0, reading.is_ended)
    reading.positions["left"] = 1  # the task processed only the first record
    again = reading.order.runs(reading.positions, 500, 0.0, reading.is_ended)
    assert [run[1:] for run in (*first, *again) if isinstance(run, Run)] == [(0, 2), (1, 2)]


def test_an_input_that_is_far_ahead_is_paused_until_its_buffer_is_nearly_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading_order, "BUFFERED_MAX", 8)
    reading = Reading({"left": list(range(20)), "right": [100]})
    reading.arrive("left", 7)
    assert reading.order.change_of_pauses() == ([], [])
    reading.arrive("left", 3)
    assert reading.order.change_of_pauses() == (["left"], [])
    assert reading.order.change_of_pauses() == ([], [])
    reading.arrive("right", 1)
    reading.step(most=7)
    reading.step(most=1)  # the reading order drops the seven processed messages from its buffer
    assert reading.order.change_of_pauses() == ([], [])
    reading.step(most=1)
    assert reading.order.change_of_pauses() == ([], ["left"])


def test_an_input_whose_records_are_large_is_paused_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_order, "BUFFERED_BYTES_MAX", 8)
    reading = Reading({"left": [1, 2, 3, 4], "right": []})
    reading.arrive("left", 4)
    assert reading.order.change_of_pauses() == (["left"], [])
    reading.step()
    assert reading.order.runs(reading.positions, 1, 0.0, reading.is_ended) == []
    assert reading.order.change_of_pauses() == ([], ["left"])


def test_the_inputs_of_many_tasks_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_order, "TOGETHER_MAX", 60)
    monkeypatch.setattr(reading_order, "TOGETHER_BYTES_MAX", 200)
    reading = Reading({"left": list(range(20)), "right": [100]})
    reading.arrive("left", 10)
    assert reading.order.change_of_pauses(sharing=2) == ([], [])
    assert reading.order.change_of_pauses(sharing=6) == (["left"], [])  # each input may buffer ten messages
    other = Reading({"left": list(range(20)), "right": [100]})
    other.arrive("left", 9)
    assert other.order.change_of_pauses(sharing=5) == ([], [])
    assert other.order.change_of_pauses(sharing=12) == (["left"], [])  # each input may buffer 16 bytes


def test_an_input_ends_at_the_bound_of_a_rebuild() -> None:
    reach, place = ReadBounds(bounded=True), Partition("left", 0)
    assert reach.is_ended(place, 0)  # until the partition gets an end offset, none of its messages may be processed
    reach.extend({place: 5})
    assert not reach.is_ended(place, 4)
    assert reach.within(batch("left", 3, [1])) == 1
    assert not reach.is_ended(place, 4)
    assert reach.within(batch("left", 7, [1])) == 0  # offset 4 was a marker or was deleted
    assert reach.is_ended(place, 4)
    reach.extend({place: 10})
    assert not reach.is_ended(place, 4)
    assert not ReadBounds(bounded=False).is_ended(place, 4)


def joining(**options: object) -> Application:
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)  # type: ignore[arg-type]

    def remember(value: int, state: object) -> None:
        state.set("last", value)  # type: ignore[attr-defined]

    def look(value: int, state: object) -> list[int | None]:
        return [value, state.get("last")]  # type: ignore[attr-defined]

    prices = app.dataframe(app.topic("prices", timestamp_extractor=lambda value, *_: int(value)))
    prices.update(remember, stateful=True, store="prices")
    orders = app.dataframe(app.topic("orders"))
    orders.apply(look, stateful=True, store="prices").to_topic(app.topic("priced"))
    return app


def priced(cluster: InMemoryCluster) -> list[list[int | None]]:
    return [json.loads(record.value or b"") for _, record in cluster.read("priced")]


def feed(cluster: InMemoryCluster, topic: str, *times: int) -> None:
    for time_ms in times:
        cluster.produce(topic, b"%d" % time_ms, b"k", timestamp_ms=time_ms)


@pytest.mark.parametrize("first", ["prices", "orders"])
def test_a_backlog_is_joined_by_event_time_and_a_restart_goes_on(first: str) -> None:
    cluster = InMemoryCluster()
    for topic in ("prices", "orders"):
        cluster.create_topic(topic)
    backlog = {"prices": (10, 30, 50), "orders": (9, 11, 30, 49)}
    for topic in sorted(backlog, key=lambda name: name != first):
        feed(cluster, topic, *backlog[topic])
    cluster.run(joining())
    expected: list[list[int | None]] = [[9, None], [11, 10], [30, 30], [49, 30]]
    assert priced(cluster) == expected
    feed(cluster, "orders", 60)
    cluster.run(joining())
    assert priced(cluster) == [*expected, [60, 50]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_worker_that_stops_after_so_many_messages_stops_there(count: int) -> None:
    cluster = InMemoryCluster()
    for topic in ("prices", "orders"):
        cluster.create_topic(topic)
    feed(cluster, "prices", 10, 30, 50)
    feed(cluster, "orders", 9, 11, 30, 49)
    cluster.run(joining(), count=count)
    offsets = cluster.committed_offsets("p")
    assert sum(offsets.values()) == count


@pytest.mark.parametrize(("max_wait", "seen"), [(None, []), (2_000, [[11, None]])])
def test_an_open_transaction_of_a_producer_is_waited_for_within_the_bound(
    max_wait: int | None, seen: list[list[int | None]]
) -> None:
    cluster = InMemoryCluster()
    for topic in ("prices", "orders"):
        cluster.create_topic(topic)
    held = cluster.open_foreign_transaction("prices", 0, [(b"k", b"10")])
    feed(cluster, "orders", 11)
    cluster.run(joining(max_wait=max_wait), quiet_s=5)
    assert priced(cluster) == seen
    held.commit()
    cluster.run(joining(max_wait=max_wait))
    assert priced(cluster) == (seen or [[11, 10]])
