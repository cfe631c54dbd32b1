"""``apply_async(durable=True)``: an answer is committed before it is used, and its call is not repeated.

``Killed`` ends a worker without a commit of its open work, as kill -9 does.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, Count, HoldfastError, InMemoryCluster, ProcessingFailed
from holdfast.infra.kafka.errors import TransactionAborted
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.runtime import commit
from holdfast.processors.engine.runtime.commit import produce_changelogs
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import Clear
from holdfast.processors.engine.topology_drawing import drawing_of
from holdfast.processors.lifecycle.plans.store_words import times_of
from tests.window_lives import carry_out

MESSAGES, KEYS = 40, 5


class Killed(BaseException):
    """Ends a worker in the middle of its work."""


class Service:
    """An external system. It counts the calls of each message, and gives each call another answer."""

    def __init__(self, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.calls: Counter[int] = Counter()
        self.answers = 0
        self.fails = fails

    async def __call__(self, value: dict[str, Any]) -> Any:
        self.calls[value["n"]] += 1
        await asyncio.sleep(0)
        if self.fails(value["n"]):
            raise ValueError(f"no answer for {value['n']}")
        self.answers += 1
        return {**value, "answer": self.answers}


class Dying:
    """A step that ends the worker at one message, once."""

    def __init__(self, at: int, error: BaseException | None = None) -> None:
        self.at, self._error = {at}, error or Killed()

    def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        if value["n"] in self.at:
            self.at.discard(value["n"])
            raise self._error
        return value


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)


def world(count: int = MESSAGES, partitions: int = 2) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions=partitions)
    for number in range(count):
        value = json.dumps({"n": number}).encode()
        cluster.produce("in", value, f"k{number % KEYS}".encode(), timestamp_ms=number + 1)
    return cluster


def calling(service: Any, *behind: Callable[[Any], Any], options: Any = None, **arguments: Any) -> Application:
    app = application(**(options or {}))
    stream = app.dataframe(app.topic("in")).apply_async(service, **{"durable": True, "concurrency": 4, **arguments})
    for step in behind:
        stream = stream.apply(step)
    stream.to_topic(app.topic("out"))
    return app


def sent(cluster: InMemoryCluster, topic: str = "out") -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


def numbers(cluster: InMemoryCluster, topic: str = "out") -> list[int]:
    return sorted(value["n"] for value in sent(cluster, topic))


def killed(cluster: InMemoryCluster, app: Application) -> None:
    with pytest.raises(Killed):
        cluster.run(app)


def kept(cluster: InMemoryCluster, store: str = "in-calls") -> dict[bytes, bytes]:
    """The answers in the changelog: the newest value of each key."""
    found = {record.key or b"": record.value for _, record in cluster.read(f"p-{store}-changelog")}
    return {key: value for key, value in found.items() if key != META_KEY and value is not None}


def test_each_call_is_made_once_and_its_answer_leaves_the_store_with_its_message() -> None:
    service, cluster = Service(), world()
    app = application()
    stream = app.dataframe(app.topic("in")).apply_async(service, durable=True, concurrency=4)
    stream.aggregate(n=Count()).to_topic(app.topic("out"))
    cluster.run(app)
    assert service.calls == dict.fromkeys(range(MESSAGES), 1)
    assert sorted(Counter(value["n"] for value in sent(cluster)).values()) == [KEYS] * (MESSAGES // KEYS)
    assert kept(cluster) == {}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_after_a_kill_committed_answers_are_used_and_their_calls_are_not_repeated(guarantee: str) -> None:
    service, cluster = Service(), world()
    dying, options = Dying(17), {"processing_guarantee": guarantee}
    killed(cluster, calling(service, dying, options=options))
    pending = len(kept(cluster))
    assert 0 < pending <= 2 * 4
    made = service.answers
    cluster.run(calling(service, dying, options=options))  # a new worker without local state restores the answers
    assert service.calls == dict.fromkeys(range(MESSAGES), 1)
    assert numbers(cluster) == list(range(MESSAGES))
    assert sorted(value["answer"] for value in sent(cluster)) == list(range(1, MESSAGES + 1))
    assert made < MESSAGES
    assert kept(cluster) == {}


def test_a_kill_before_the_commit_of_answers_repeats_at_most_concurrency_calls_of_each_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, cluster, commits = Service(), world(), Counter[str]()

    def dying(*given: Any, **named: Any) -> None:
        produce_changelogs(*given, **named)
        commits["all"] += 1
        if commits["all"] == 5:
            raise Killed

    monkeypatch.setattr(commit, "produce_changelogs", dying)
    killed(cluster, calling(service))
    cluster.run(calling(service))
    assert numbers(cluster) == list(range(MESSAGES))
    assert 0 < service.calls.total() - MESSAGES <= 2 * 4
    assert max(service.calls.values()) == 2


def test_an_aborted_commit_repeats_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    service, cluster, commits = Service(), world(), Counter[str]()

    def aborting(*given: Any, **named: Any) -> None:
        produce_changelogs(*given, **named)
        commits["all"] += 1
        if commits["all"] % 2:
            raise TransactionAborted("A broker is away.", action="Nothing to do.")

    monkeypatch.setattr(commit, "produce_changelogs", aborting)
    cluster.run(calling(service))
    assert service.calls == dict.fromkeys(range(MESSAGES), 1)
    assert numbers(cluster) == list(range(MESSAGES))
    assert kept(cluster) == {}


def test_a_failed_call_has_no_answer_and_is_one_dead_letter() -> None:
    service, cluster = Service(fails=lambda number: number % 10 == 4), world()
    cluster.run(calling(service, options={"dead_letter_topic": "dead"}))
    assert numbers(cluster) == [number for number in range(MESSAGES) if number % 10 != 4]
    assert numbers(cluster, "dead") == [4, 14, 24, 34]
    assert service.calls == dict.fromkeys(range(MESSAGES), 1)


def test_a_failed_call_that_stops_the_worker_is_made_again_and_no_other() -> None:
    service, cluster = Service(fails=lambda number: number == 9), world(20, partitions=1)
    with pytest.raises(ProcessingFailed, match="no answer for 9"):
        cluster.run(calling(service))
    assert numbers(cluster) == list(range(9))
    service.fails = lambda number: False
    cluster.run(calling(service))
    assert numbers(cluster) == list(range(20))
    assert service.calls == {**dict.fromkeys(range(20), 1), 9: 2}


def test_a_message_that_stops_the_worker_behind_its_call_keeps_its_answer_for_the_repaired_version() -> None:
    service, cluster = Service(), world(20, partitions=1)
    with pytest.raises(ProcessingFailed, match="no such field"):
        cluster.run(calling(service, Dying(9, KeyError("no such field"))))
    assert numbers(cluster) == list(range(9))

    async def repaired(value: dict[str, Any]) -> Any:
        return {**await service(value), "version": 2}

    cluster.run(calling(repaired, lambda value: {**value, "behind": 2}))
    assert service.calls == dict.fromkeys(range(20), 1)
    assert numbers(cluster) == list(range(20))
    by_number = {value["n"]: value for value in sent(cluster)}
    assert by_number[9] == {"n": 9, "answer": 10, "behind": 2}, "the answer is that of the former version"
    assert by_number[19]["version"] == 2


def test_another_store_asks_again() -> None:
    service, cluster, dying = Service(), world(20, partitions=1), Dying(9)
    killed(cluster, calling(service, dying))
    pending = len(kept(cluster))
    assert pending
    cluster.create_topic("p-other-changelog", partitions=1, config={"cleanup.policy": "compact"})
    start = Start(begin_empty={"other": cluster._broker.topics["p-other-changelog"].topic_id})  # as a deploy does
    other = calling(service, dying, store="other")
    other.with_run_overrides(slot="0", auto_create_topics=True, start=start)
    cluster.run(other)
    assert service.calls.total() == 20 + pending
    assert numbers(cluster) == list(range(20))


@pytest.mark.parametrize(("seconds", "again"), [(50, False), (61, True)])
def test_an_answer_is_not_used_after_its_ttl(seconds: int, again: bool) -> None:
    service, cluster, dying = Service(), world(20, partitions=1), Dying(9)
    killed(cluster, calling(service, dying, ttl=timedelta(seconds=60)))
    pending = len(kept(cluster))
    assert pending
    cluster.advance(seconds)
    cluster.run(calling(service, dying, ttl=60))
    assert service.calls.total() == 20 + (pending if again else 0)
    assert numbers(cluster) == list(range(20))
    assert kept(cluster) == {}


@pytest.mark.slow
def test_a_clear_of_a_key_drops_its_answers_and_a_clear_with_a_rewind_all() -> None:
    service, cluster, dying = Service(), world(20, partitions=1), Dying(8)
    killed(cluster, calling(service, dying))
    pending = [key for key in kept(cluster) if b"k3" in key]
    assert len(pending) < len(kept(cluster))
    carry_out(cluster, calling(service, dying), Clear(store="in-calls", keys=("k3",)))
    assert [key for key in kept(cluster) if b"k3" in key] == []
    cluster.run(calling(service, dying))
    assert service.calls.total() == 20 + len(pending)
    cluster.clear_state(calling(service), rewind="earliest")
    cluster.run(calling(service))
    assert service.calls.total() == 40 + len(pending)
    assert numbers(cluster) == sorted([*range(20), *range(20)])


def test_a_rewind_while_answers_wait_uses_none_of_them() -> None:
    service, cluster, dying = Service(), world(20, partitions=1), Dying(9)
    killed(cluster, calling(service, dying))
    before = service.calls.total()
    assert kept(cluster)
    cluster.clear_state(calling(service), rewind="earliest")
    cluster.run(calling(service))
    assert service.calls.total() == before + 20


def test_messages_without_a_key_have_answers_too() -> None:
    service, cluster, dying = Service(), InMemoryCluster(), Dying(9)
    cluster.create_topic("in")
    for number in range(20):
        cluster.produce("in", json.dumps({"n": number}).encode(), None)
    killed(cluster, calling(service, dying))
    cluster.run(calling(service, dying))
    assert service.calls == dict.fromkeys(range(20), 1)
    assert numbers(cluster) == list(range(20))


def test_steps_before_it_filter_change_and_set_times() -> None:
    service, cluster, dying = Service(), world(), Dying(17)

    def built() -> Application:
        app = application()
        stream = app.dataframe(app.topic("in")).filter(lambda value: value["n"] % 3)
        stream = stream.apply(lambda value: {**value, "twice": 2 * value["n"]})
        stream = stream.set_timestamp(lambda value, key, timestamp, headers: timestamp + 1_000)
        stream = stream.apply_async(service, durable=True, concurrency=3).apply(dying)
        stream.to_topic(app.topic("out"))
        return app

    killed(cluster, built())
    cluster.run(built())
    left = [number for number in range(MESSAGES) if number % 3]
    assert service.calls == dict.fromkeys(left, 1)
    assert [value["twice"] for value in sorted(sent(cluster), key=lambda value: value["n"])] == [2 * n for n in left]
    times = {json.loads(record.value or b"")["n"]: record.timestamp_ms for _, record in cluster.read("out")}
    assert times == {number: number + 1_001 for number in left}


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_calls_before_or_behind_group_by_are_made_once(before: bool) -> None:
    service, cluster, dying = Service(), world(), Dying(17)

    def built() -> Application:
        app = application()
        stream = app.dataframe(app.topic("in"))
        if before:
            stream = stream.apply_async(service, durable=True, concurrency=4).apply(dying)
        stream = stream.group_by(lambda value: f"g{value['n'] % 3}", "by-three")
        if not before:
            stream = stream.apply_async(service, durable=True, concurrency=4).apply(dying)
        stream.to_topic(app.topic("out"))
        return app

    killed(cluster, built())
    cluster.run(built())
    assert service.calls == dict.fromkeys(range(MESSAGES), 1)
    assert numbers(cluster) == list(range(MESSAGES))
    assert kept(cluster, "in-calls" if before else "in-by-by-three-calls") == {}


def test_two_inputs_of_one_step_share_a_store_and_keep_their_order_of_times() -> None:
    service, cluster, dying = Service(), InMemoryCluster(), Dying(9)
    for topic in ("a", "b"):
        cluster.create_topic(topic)
    for number in range(20):
        cluster.produce("ab"[number % 2], json.dumps({"n": number}).encode(), b"k", timestamp_ms=number + 1)

    def built() -> Application:
        app = application()
        both = app.dataframe(app.topic("a")).concat(app.dataframe(app.topic("b")))
        both.apply_async(service, durable=True, concurrency=4).apply(dying).to_topic(app.topic("out"))
        return app

    killed(cluster, built())
    cluster.run(built())
    assert service.calls == dict.fromkeys(range(20), 1)
    assert [value["n"] for value in sent(cluster)] == list(range(20))
    assert built().topology().stores[0].inputs == ("a", "b")
    assert kept(cluster, "a-b-calls") == {}


@pytest.mark.parametrize(
    ("answer", "says"),
    [({1}, "can't be kept as JSON"), (float("nan"), "can't be kept as JSON"), ("x" * 2_000_000, "may have 999,872")],
    ids=["set", "nan", "large"],
)
def test_an_answer_that_can_not_be_kept_fails_its_message_once(answer: Any, says: str) -> None:
    calls, cluster = Counter[int](), world(8, partitions=1)

    async def asked(value: dict[str, Any]) -> Any:
        calls[value["n"]] += 1
        return {**value, "answer": answer} if value["n"] == 3 else value

    cluster.run(calling(asked, options={"dead_letter_topic": "dead"}))
    assert numbers(cluster) == [0, 1, 2, 4, 5, 6, 7]
    [(_, dead)] = cluster.read("dead")
    assert says in str(dict(dead.headers or ())["holdfast.error"])
    assert calls == dict.fromkeys(range(8), 1)


def test_an_answer_of_other_python_values_passes_without_durable_as_its_error_says() -> None:
    async def asked(value: dict[str, Any]) -> Any:
        return {**value, "answer": {1, 2}}

    def listed(value: dict[str, Any]) -> Any:
        return {**value, "answer": sorted(value["answer"])}

    with pytest.raises(ProcessingFailed, match="can't be kept as JSON") as failed:
        world(3).run(calling(asked, listed))
    assert "take `durable=True` out" in str(failed.value)
    cluster = world(3)
    cluster.run(calling(asked, listed, durable=False))
    assert [value["answer"] for value in sent(cluster)] == [[1, 2]] * 3


def test_one_key_is_called_one_after_the_other() -> None:
    under_way, most, cluster = Counter[str](), Counter[str](), world()

    async def asked(value: dict[str, Any]) -> Any:
        key = f"k{value['n'] % KEYS}"
        under_way[key] += 1
        most[key] = max(most[key], under_way[key])
        await asyncio.sleep(0.001)
        under_way[key] -= 1
        return value

    cluster.run(calling(asked))
    assert set(most.values()) == {1}
    assert numbers(cluster) == list(range(MESSAGES))


def test_the_trial_of_a_stream_uses_the_answer() -> None:
    app = application()
    stream = app.dataframe(app.topic("in")).apply_async(Service(), durable=True).apply(lambda value: value["answer"])
    assert [value for value, *_ in stream.test({"n": 5}, key="k")] == [1]


@pytest.mark.parametrize(
    ("declare", "says", "mended"),
    [
        (
            lambda app, sdf: sdf.apply_async(Service(), ttl=60),
            "ttl=60 without `durable=True`",
            {"durable": True, "ttl": 60},
        ),
        (
            lambda app, sdf: sdf.apply_async(Service(), store="s"),
            "without `durable=True`",
            {"durable": True, "store": "s"},
        ),
        (lambda app, sdf: sdf.apply_async(Service(), durable=True, ttl=59), "from 60 seconds", {"durable": True}),
        (lambda app, sdf: sdf.apply_async(Service(), durable=True, ttl=True), "from 60 seconds", {"durable": True}),
        (
            lambda app, sdf: (app.store("in-calls"), sdf.apply_async(Service(), durable=True)),
            "declared with `app.store`",
            {"durable": True, "store": "answers"},
        ),
        (
            lambda app, sdf: sdf.apply_async(Service(), durable=True, store="s").apply(
                lambda value, state: value, stateful=True, store="s"
            ),
            "durable calls",
            {"durable": True, "store": "s"},
        ),
    ],
)
def test_what_can_not_be_kept_is_refused_and_the_named_edit_helps(declare: Any, says: str, mended: Any) -> None:
    def describe() -> None:
        app = application()
        declare(app, app.dataframe(app.topic("in")))
        app.topology()

    with pytest.raises(HoldfastError) as refused:
        describe()
    assert says in refused.value.message
    app = application()
    app.dataframe(app.topic("in")).apply_async(Service(), **mended)
    assert app.topology().stores


def test_durable_calls_need_changelogs_and_the_two_named_edits_help() -> None:
    options = {"use_changelog_topics": False, "processing_guarantee": "at-least-once"}
    with pytest.raises(HoldfastError, match="answers of durable calls, but use_changelog_topics is off"):
        calling(Service(), options=options).topology()
    calling(Service(), options=options, durable=False).topology()
    calling(Service(), options={**options, "use_changelog_topics": True}).topology()


def test_the_description_tells_of_the_store() -> None:
    app = calling(Service(), ttl=timedelta(hours=2))
    topology = app.topology()
    [store] = topology.stores
    assert (store.name, store.kind, store.follows_input, store.timed) == ("in-calls", "calls", False, False)
    assert "keeps   answers of calls that are not used after 7200000 ms (in-calls)" in drawing_of(topology)
    assert times_of(topology.stores) == ("store `in-calls` has answers of calls that are not used after 2 h",)
    assert topology.prove is False, "a proof would repeat answered calls"
    plain = calling(Service(), durable=False).topology()
    assert (plain.stores, plain.prove) == ((), True)
    assert plain.code_version != topology.code_version != calling(Service(), ttl=90).topology().code_version
