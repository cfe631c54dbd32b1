"""``apply_async`` runs many calls at once. Messages keep their order, and a failed call fails only its message."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, Count, HoldfastError, InMemoryCluster, ProcessingFailed
from holdfast.processors.engine.runtime.commit import produce_changelogs


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)


def world(count: int = 60, keys: int = 7) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=2)
    for number in range(count):
        cluster.produce("in", json.dumps({"n": number}).encode(), f"k{number % keys}".encode(), timestamp_ms=number + 1)
    return cluster


def sent(cluster: InMemoryCluster, topic: str = "out") -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


class Service:
    """An external system that answers after a random time.

    It records the calls, their order, and the largest number of simultaneous calls.
    """

    def __init__(self, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.fails = fails
        self.at_once = self.most = 0
        self.calls: Counter[int] = Counter()
        self.answered: list[int] = []
        self._random = random.Random(4)

    async def __call__(self, value: dict[str, int]) -> dict[str, int]:
        self.calls[value["n"]] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(self._random.random() / 500)
        self.at_once -= 1
        self.answered.append(value["n"])
        if self.fails(value["n"]):
            raise ValueError(f"no answer for {value['n']}")
        return {**value, "answer": value["n"] * 10}


def test_answers_come_in_the_order_of_the_messages_though_calls_wait_together() -> None:
    service, cluster = Service(), world()
    app = application()
    app.dataframe(app.topic("in")).apply_async(service, concurrency=20, order="none").to_topic(app.topic("out"))
    cluster.run(app)
    assert 1 < service.most <= 20
    assert service.calls == dict.fromkeys(range(60), 1)
    by_key: dict[int, list[int]] = {}
    for each in sent(cluster):
        assert each["answer"] == each["n"] * 10
        by_key.setdefault(each["n"] % 7, []).append(each["n"])
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 60


def test_calls_of_a_key_are_made_one_after_the_other_unless_order_is_none() -> None:
    service, cluster = Service(), world()
    app = application()
    app.dataframe(app.topic("in")).apply_async(service, concurrency=20).to_topic(app.topic("out"))
    cluster.run(app)
    for key in range(7):
        of_key = [number for number in service.answered if number % 7 == key]
        assert of_key == sorted(of_key)
    assert 1 < service.most <= 7


def test_steps_before_and_behind_it_work_as_always() -> None:
    service, cluster = Service(), world()
    app = application()
    sdf = app.dataframe(app.topic("in")).filter(lambda value: value["n"] % 3).apply(lambda value: {"n": value["n"] + 1})
    sdf.apply_async(service).aggregate(n=Count()).to_topic(app.topic("out"))
    cluster.run(app)
    kept = [number for number in range(60) if number % 3]
    assert service.calls == dict.fromkeys((number + 1 for number in kept), 1)
    assert max(each["n"] for each in sent(cluster)) == max(Counter(number % 7 for number in kept).values())
    assert len(sent(cluster)) == len(kept)


def test_a_call_that_raises_fails_its_message_and_no_other() -> None:
    service, cluster = Service(fails=lambda number: number % 10 == 4), world()
    app = application(dead_letter_topic="dead")
    app.dataframe(app.topic("in")).apply_async(service).to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(each["n"] for each in sent(cluster)) == [number for number in range(60) if number % 10 != 4]
    assert sorted(each["n"] for each in sent(cluster, "dead")) == [4, 14, 24, 34, 44, 54]


def test_without_a_policy_the_messages_before_the_failed_one_are_committed() -> None:
    service, cluster = Service(fails=lambda number: number == 9), InMemoryCluster()
    cluster.create_topic("in")
    for number in range(20):
        cluster.produce("in", json.dumps({"n": number}).encode(), b"k")
    app = application()
    app.dataframe(app.topic("in")).apply_async(service).to_topic(app.topic("out"))
    with pytest.raises(ProcessingFailed, match="no answer for 9"):
        cluster.run(app)
    assert [each["n"] for each in sent(cluster)] == list(range(9))
    service.fails = lambda number: False
    cluster.run(app)
    assert [each["n"] for each in sent(cluster)] == list(range(20))


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_call_that_never_returns_fails_in_time(stubborn: bool) -> None:
    async def never(value: dict[str, int]) -> dict[str, int]:
        while value["n"] == 3:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        return value

    cluster = world(8)
    app = application(dead_letter_topic="dead")
    app.dataframe(app.topic("in")).apply_async(never, timeout=timedelta(milliseconds=20)).to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(each["n"] for each in sent(cluster)) == [0, 1, 2, 4, 5, 6, 7]
    assert [each["n"] for each in sent(cluster, "dead")] == [3]


def test_a_call_that_exits_fails_its_message_and_leaves_the_process_alone() -> None:
    async def exiting(value: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(0)
        if value["n"] == 3:
            raise SystemExit("enough")
        return value

    cluster = world(8)
    app = application(dead_letter_topic="dead")
    app.dataframe(app.topic("in")).apply_async(exiting).to_topic(app.topic("out"))
    cluster.run(app)
    assert sorted(each["n"] for each in sent(cluster)) == [0, 1, 2, 4, 5, 6, 7]
    [(_, dead)] = cluster.read("dead")
    assert "SystemExit(enough), which would end the process" in dict(dead.headers or ())["holdfast.error"].decode()


def test_an_aborted_commit_repeats_calls_and_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.infra.kafka.errors import TransactionAborted
    from holdfast.processors.engine.runtime import commit

    service, cluster = Service(), world()
    app = application(commit_every=10)
    app.dataframe(app.topic("in")).apply_async(service).aggregate(n=Count()).to_topic(app.topic("out"))
    aborts = iter([True, False, True])

    def aborting(*given: Any, **named: Any) -> None:
        produce_changelogs(*given, **named)
        if next(aborts, False):
            raise TransactionAborted("A broker is away.", action="Nothing to do.")

    monkeypatch.setattr(commit, "produce_changelogs", aborting)
    cluster.run(app)
    assert sum(service.calls.values()) > 60
    assert len(sent(cluster)) == 60
    assert sum(value["n"] for value in newest(cluster).values()) == 60


def newest(cluster: InMemoryCluster) -> dict[bytes, Any]:
    return {record.key or b"": json.loads(record.value or b"null") for _, record in cluster.read("out")}


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_slow_calls_still_wait_together_after_many_turns(durable: bool) -> None:
    """The worker makes its slices smaller while slices are slow. Calls are slow because they wait."""
    cluster, together, under_way = world(500, keys=500), list[int](), Counter[str]()

    async def slow(value: dict[str, int]) -> dict[str, int]:
        under_way["now"] += 1
        together.append(under_way["now"])
        await asyncio.sleep(0)
        if under_way["now"] == max(together[-16:]):
            cluster.clock.advance_to(cluster.clock.monotonic() + 0.3)
        under_way["now"] -= 1
        return value

    app = application()
    app.dataframe(app.topic("in")).apply_async(slow, order="none", durable=durable).to_topic(app.topic("out"))
    cluster.run(app)
    assert len(sent(cluster)) == 500
    assert sum(number == 16 for number in together) >= 500 // 16 - 4


@pytest.mark.parametrize("options", [{"commit_every": 1}, {"on_message_processed": lambda *place: None}])
def test_with_a_commit_or_a_callback_for_each_message_one_call_is_made_at_a_time(options: dict[str, Any]) -> None:
    service, cluster = Service(), world(20)
    app = application(**options)
    app.dataframe(app.topic("in")).apply_async(service).to_topic(app.topic("out"))
    cluster.run(app)
    assert service.most == 1
    assert len(sent(cluster)) == 20


async def answer(value: Any) -> Any:
    return value


async def of_two(value: Any, state: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda sdf: sdf.apply_async(lambda value: value), "expected an async function"),
        (lambda sdf: sdf.apply_async(of_two), "can't be called with"),
        (lambda sdf: sdf.apply_async(answer, concurrency=0), "from 1 to 1,000"),
        (lambda sdf: sdf.apply_async(answer, order="time"), "expected `key` or `none`"),
        (lambda sdf: sdf.apply_async(answer, timeout=11), "from 0.001 to 10 seconds"),
        (lambda sdf: sdf.apply_async(answer, timeout=0), "from 0.001 to 10 seconds"),
        (lambda sdf: sdf.apply_async(answer, timeout=float("nan")), "from 0.001 to 10 seconds"),
        (lambda sdf: sdf.apply_async(answer, timeout=timedelta(minutes=1)), "from 0.001 to 10 seconds"),
        (lambda sdf: sdf.aggregate(n=Count()).apply_async(answer), "has state"),
        (lambda sdf: sdf.apply(lambda value: [value], expand=True).apply_async(answer), "several values"),
        (lambda sdf: (sdf.apply_async(answer), sdf.apply(len)), "a branch before"),
        (lambda sdf: sdf.apply_async(answer).apply_async(answer), "two steps that wait"),
    ],
)
def test_what_can_not_run_is_refused(declare: Any, says: str) -> None:
    app = application()

    def describe() -> None:
        declare(app.dataframe(app.topic("in")))
        app.topology()

    with pytest.raises(HoldfastError, match=says):
        describe()


def test_the_function_is_one_of_the_version() -> None:
    async def other(value: Any) -> Any:
        return [value]

    def version(func: Any, **how: Any) -> str:
        app = application()
        app.dataframe(app.topic("in")).apply_async(func, **how).to_topic(app.topic("out"))
        return app.topology().code_version

    assert len({version(answer), version(other), version(answer, order="none"), version(answer, concurrency=3)}) == 4
