"""``join_lookup`` reads rows of another system through a bounded cache.

The cache also remembers missing rows, and its entries expire.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, HoldfastError, InMemoryCluster, NotFound, ProcessingFailed
from holdfast.infra.kafka.errors import TransactionAborted
from holdfast.processors.engine.dataframe.calls import lookup_figures
from holdfast.processors.engine.joins.lookups import Asked, CachedLookup, LookupKey
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.runtime import commit
from holdfast.processors.engine.runtime.commit import produce_changelogs
from holdfast.processors.engine.steps.async_calls import AsyncInvalid
from holdfast.processors.engine.steps.checked_arguments import StepInvalid


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)


def world(values: list[Any], key: bytes | None = None) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number, value in enumerate(values):
        cluster.produce("in", json.dumps(value).encode(), key or b"k%d" % number, timestamp_ms=number + 1)
    return cluster


def sent(cluster: InMemoryCluster, topic: str = "out") -> list[Any]:
    return [json.loads(record.value or b"null") for _, record in cluster.read(topic)]


class Planes:
    """Another system with rows by key. It counts the requests for each key."""

    def __init__(self, rows: dict[Any, Any]) -> None:
        self.rows, self.calls = rows, Counter[Any]()
        self.fails = False

    async def __call__(self, key: Any) -> Any:
        self.calls[key] += 1
        await asyncio.sleep(0)
        if self.fails:
            raise ValueError("no answer")
        if key not in self.rows:
            raise NotFound
        return self.rows[key]


def looked_up(values: list[Any], lookup: Any, *arguments: Any, **options: Any) -> list[Any]:
    cluster, app = world(values), application()
    app.dataframe(app.topic("in")).join_lookup(lookup, *arguments, **options).to_topic(app.topic("out"))
    cluster.run(app)
    return sent(cluster)


def test_fields_of_a_row_are_added_and_a_row_is_asked_for_once() -> None:
    planes = Planes({"A": {"owner": "Ann", "year": 1999}})
    values = [{"plane": "A", "n": number} for number in range(40)]
    made = looked_up(values, planes, {"owner": "owner", "age": lambda row: 2026 - row["year"]}, "plane")
    assert made == [{**value, "owner": "Ann", "age": 27} for value in values]
    assert planes.calls == {"A": 1}


def test_names_alone_take_the_fields_of_that_name_and_replace_those_of_the_value() -> None:
    made = looked_up([{"plane": "A", "city": "old"}], Planes({"A": {"city": "Bonn"}}), ["city", "land"], "plane")
    assert made == [{"plane": "A", "city": "Bonn", "land": None}]


def test_without_fields_the_row_is_merged_as_in_other_joins() -> None:
    planes = Planes({"A": {"owner": "Ann"}})
    assert looked_up([{"plane": "A"}], planes, on="plane") == [{"plane": "A", "owner": "Ann"}]
    pair = looked_up([{"plane": "A"}], planes, on=lambda value, key: value["plane"], on_merge=lambda *both: [*both])
    assert pair == [[{"plane": "A"}, {"owner": "Ann"}]]


def test_the_key_of_the_message_is_the_default() -> None:
    assert looked_up([{}, {}], Planes({b"k1": {"owner": "Ann"}}), ["owner"]) == [{"owner": None}, {"owner": "Ann"}]


@pytest.mark.parametrize("row", [None, 0, "", False, {}, []], ids=repr)
def test_none_and_falsy_rows_are_rows(row: Any) -> None:
    planes = Planes({"A": row})
    values = [{"plane": "A"}, {"plane": "B"}] * 20
    inner = looked_up(values, planes, on="plane", how="inner", on_merge=lambda value, row: [value["plane"], row])
    assert repr(inner) == repr([["A", row]] * 20)
    assert planes.calls == {"A": 1, "B": 1}


@pytest.mark.parametrize("row", [None, 0, "", False, {}, []], ids=repr)
def test_a_function_of_the_row_gets_falsy_rows_too(row: Any) -> None:
    made = looked_up([{"plane": "A"}, {"plane": "B"}], Planes({"A": row}), {"row": lambda row: [row]}, "plane")
    assert repr(made) == repr([{"plane": "A", "row": [row]}, {"plane": "B", "row": None}])


def test_a_lookup_that_exits_fails_its_message_and_leaves_the_process_alone() -> None:
    async def exits(key: str) -> Any:
        raise SystemExit(key)

    cluster, app = world([{"plane": "A"}]), application(dead_letter_topic="dead")
    app.dataframe(app.topic("in")).join_lookup(exits, ["owner"], "plane").to_topic(app.topic("out"))
    cluster.run(app)
    [(_, dead)] = cluster.read("dead")
    assert "SystemExit(A), which would end the process" in dict(dead.headers or ())["holdfast.error"].decode()


def test_no_row_is_kept_as_an_answer_and_has_the_default() -> None:
    planes = Planes({})
    assert (
        looked_up([{"plane": "A"}] * 40, planes, ["owner"], "plane", default={"owner": "?"})
        == [{"plane": "A", "owner": "?"}] * 40
    )
    assert planes.calls == {"A": 1}


def test_none_as_a_key_asks_for_nothing() -> None:
    planes = Planes({None: {"owner": "nobody"}})
    assert looked_up([{"plane": None}, {}], planes, ["owner"], "plane") == [
        {"plane": None, "owner": None},
        {"owner": None},
    ]
    assert planes.calls == {}


def test_keys_that_are_equal_in_python_but_of_other_types_have_rows_of_their_own() -> None:
    asked = []

    async def find(key: Any) -> Any:
        asked.append(repr(key))
        return repr(key)

    values = [{"plane": key} for key in (1, True, 1.0, "1")] * 2
    made = looked_up(values, find, on="plane", on_merge=lambda value, row: row)
    assert made == ["1", "True", "1.0", "'1'"] * 2
    assert sorted(asked) == sorted(made[:4])


def test_a_step_that_changes_a_row_changes_no_later_message() -> None:
    planes = Planes({"A": {"stops": []}})
    cluster, app = world([{"plane": "A", "n": number} for number in range(40)]), application()
    sdf = app.dataframe(app.topic("in")).join_lookup(planes, ["stops"], "plane")
    sdf.update(lambda value: value["stops"].append(value["n"])).to_topic(app.topic("out"))
    cluster.run(app)
    assert [value["stops"] for value in sent(cluster)] == [[number] for number in range(40)]
    assert planes.rows == {"A": {"stops": []}}


def test_a_failed_call_fails_its_message_and_is_asked_again() -> None:
    planes = Planes({"A": {"owner": "Ann"}})
    planes.fails = True
    cluster, app = world([{"plane": "A"}]), application()
    app.dataframe(app.topic("in")).join_lookup(planes, ["owner"], "plane").to_topic(app.topic("out"))
    with pytest.raises(ProcessingFailed, match="no answer"):
        cluster.run(app)
    planes.fails = False
    cluster.run(app)
    assert sent(cluster) == [{"plane": "A", "owner": "Ann"}]


def test_a_call_that_hangs_fails_all_that_wait_for_it_and_the_next_one_asks_again() -> None:
    calls = []

    async def find(key: Any) -> Any:
        calls.append(key)
        if len(calls) == 1:
            await asyncio.sleep(3600)
        return {"owner": "Ann"}

    cluster, app = world([{"plane": "A"}] * 3), application(dead_letter_topic="dead")
    app.dataframe(app.topic("in")).join_lookup(find, ["owner"], "plane", timeout=0.05).to_topic(app.topic("out"))
    cluster.run(app)
    assert (len(sent(cluster)), len(sent(cluster, "dead"))) == (0, 3)
    cluster.produce("in", b'{"plane": "A"}', b"k")
    cluster.run(app)
    assert sent(cluster) == [{"plane": "A", "owner": "Ann"}]
    assert calls == ["A", "A"]


def test_an_aborted_commit_repeats_no_output_and_hits_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    planes = Planes({"A": {"owner": "Ann"}})
    cluster, app = world([{"plane": "A"}] * 5), application()
    app.dataframe(app.topic("in")).join_lookup(planes, ["owner"], "plane").to_topic(app.topic("out"))
    aborts = iter([True])

    def aborting(*given: Any, **named: Any) -> None:
        produce_changelogs(*given, **named)
        if next(aborts, False):
            raise TransactionAborted("A broker is away.", action="Nothing to do.")

    monkeypatch.setattr(commit, "produce_changelogs", aborting)
    cluster.run(app)
    assert next(aborts, None) is None
    assert sent(cluster) == [{"plane": "A", "owner": "Ann"}] * 5
    assert planes.calls == {"A": 1}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(cache: CachedLookup, *keys: Any) -> list[Any]:
    """The rows that the cache returns for these keys. The keys are requested one after the other, as a task does."""

    async def one(key: Any) -> Any:
        asked: Asked = LookupKey(None)(None, key, 0, None)
        return (cache.known(asked) or (await cache(asked),))[0].row

    return [asyncio.run(one(key)) for key in keys]


def test_an_answer_ends_after_its_time_also_that_there_is_none() -> None:
    clock, planes = Clock(), Planes({"A": 1})
    cache = CachedLookup(planes, 60.0, 10, clock)
    ask(cache, "A", "B")
    clock.now = 59.9
    ask(cache, "A", "B")
    assert planes.calls == {"A": 1, "B": 1}
    planes.rows["A"], clock.now = 2, 60.0
    assert ask(cache, "A", "B", "A") == [2, None, 2]
    assert planes.calls == {"A": 2, "B": 2}


def test_the_answer_that_was_not_asked_for_longest_leaves_first() -> None:
    planes = Planes({"A": 1, "B": 2, "C": 3})
    cache = CachedLookup(planes, 60.0, 2, Clock())
    ask(cache, "A", "B", "A", "C", "A", "B")
    assert planes.calls == {"A": 1, "B": 2, "C": 1}
    assert cache.entries == 2


def test_without_a_time_each_message_asks() -> None:
    planes = Planes({"A": {"owner": "Ann"}})
    cache = CachedLookup(planes, 0.0, 10, Clock())
    ask(cache, "A", "A")
    assert (planes.calls, cache.entries) == ({"A": 2}, 0)


def test_hits_and_misses_are_counted() -> None:
    planes = Planes({"A": 1})
    cluster, app = world([{"plane": "A"}] * 3 + [{"plane": "B"}]), application()
    app.dataframe(app.topic("in")).join_lookup(planes, on="plane", on_merge=lambda *both: None).to_topic(
        app.topic("out")
    )
    cluster.run(app)
    told = lookup_figures(frame.source for frame in app._frames.values())
    assert told == {"Planes": {"hits": 2, "misses": 2, "entries": 2}}


async def find(key: Any) -> Any: ...


async def finds(value: Any, key: Any) -> Any: ...


@pytest.mark.parametrize(
    ("arguments", "options", "error", "said"),
    [
        ((lambda key: None,), {}, AsyncInvalid, "expected an async function"),
        ((finds,), {}, StepInvalid, "can't be called with .key."),
        ((find, {}), {}, JoinInvalid, "expected names of fields"),
        ((find, {"a": 1}), {}, JoinInvalid, "expected names of fields"),
        ((find, "owner"), {}, JoinInvalid, "expected names of fields"),
        ((find, ["a"], 5), {}, JoinInvalid, "expected a field's name"),
        ((find, ["a"], lambda value: value), {}, StepInvalid, "can't be called with .value, key."),
        ((find, ["a"]), {"how": "outer"}, JoinInvalid, "expected 'left' or 'inner'"),
        ((find, ["a"]), {"on_merge": "keep-left"}, JoinInvalid, "expected one of them"),
        ((find, ["a"]), {"how": "inner", "default": 1}, JoinInvalid, "drops values"),
        ((find, {"a": find}), {}, StepInvalid, "async function"),
        ((find, {"a": lambda: 1}), {}, StepInvalid, "can't be called with .row."),
        ((find,), {"on_merge": "mine"}, JoinInvalid, "`on_merge`"),
        ((find,), {"ttl": -1}, AsyncInvalid, "seconds or a timedelta"),
        ((find,), {"ttl": True}, AsyncInvalid, "seconds or a timedelta"),
        ((find,), {"ttl": timedelta(seconds=-1)}, AsyncInvalid, "seconds or a timedelta"),
        ((find,), {"cache_size": 0}, AsyncInvalid, "`cache_size` is 0"),
        ((find,), {"concurrency": 0}, AsyncInvalid, "`concurrency` is 0"),
        ((find,), {"order": "any"}, AsyncInvalid, "`order`"),
        ((find,), {"timeout": 11}, AsyncInvalid, "`timeout`"),
    ],
)
def test_arguments_that_can_not_be_used_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[HoldfastError], said: str
) -> None:
    app = application()
    with pytest.raises(error, match=said):
        app.dataframe(app.topic("in")).join_lookup(*arguments, **options)


@pytest.mark.parametrize(
    ("value", "options", "said"),
    [
        ({"plane": ["A"]}, {"on": "plane"}, "key of type list"),
        ([1], {"on": "plane"}, "takes the field 'plane' of a value of type list"),
        ([1], {"fields": ["owner"], "on": lambda value, key: "A"}, "The value of a `join_lookup` is of type list"),
        ({"plane": "B"}, {"fields": ["owner"], "on": "plane"}, "The row of a `join_lookup` is of type int"),
    ],
)
def test_messages_that_can_not_be_looked_up_fail(value: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ProcessingFailed, match=said):
        looked_up([value], Planes({"A": {"owner": "Ann"}, "B": 7}), **options)


def test_another_rule_or_function_is_another_version() -> None:
    def version(*arguments: Any, **options: Any) -> str:
        app = application()
        app.dataframe(app.topic("in")).join_lookup(*arguments, **options)
        return app.topology().code_version

    async def other(key: Any) -> Any:
        raise NotFound

    versions = [
        version(find),
        version(other),
        version(find, ["a"]),
        version(find, {"a": "b"}),
        version(find, {"a": lambda row: 1}),
        version(find, on="a"),
        version(find, how="inner"),
        version(find, default=1),
    ]
    assert len(set(versions)) == len(versions)
    # the setting of the cache changes no result, so it does not change the processor's code version
    assert version(find, ttl=5) == version(find)
