"""Stores with another codec than JSON: functions, models, upgrades, a change of the codec, and restores."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.store_options import StoreInvalid
from tests.mechanics.tiers import variants


class Kind(Enum):
    ONE = 1
    TWO = "two"


class Part(BaseModel):
    raw: bytes = b""
    sizes: tuple[int, ...] = ()


class Cart(BaseModel):
    tags: set[str] = set()
    kind: Kind = Kind.ONE
    at: datetime = datetime.fromisoformat("2024-01-01T00:30")
    price: Decimal = Decimal("1.10")
    share: float = 0.0
    part: Part = Part()
    any: Any = None


def build(function: Callable[..., Any], **declared: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    store = app.store("s", **declared)
    app.dataframe(app.topic("in")).apply(function, stateful=True, store=store).to_topic(app.topic("out"))
    return app


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        made.create_topic(topic)
    return made


def run(cluster: InMemoryCluster, app: Application, *values: Any) -> tuple[list[Any], list[str]]:
    """The results of these messages, and the errors in their dead letters."""
    seen = [len(cluster.read(topic)) for topic in ("out", "dead")]
    for value in values or ({},):
        cluster.produce("in", json.dumps(value).encode(), b"k")
    cluster.run(app)
    results = [json.loads(record.value) for _, record in cluster.read("out")[seen[0] :] if record.value]
    errors = [dict(record.headers or ())["holdfast.error"] for _, record in cluster.read("dead")[seen[1] :]]
    return results, [(each or b"").decode() for each in errors]


def keeping(value: Any) -> Callable[[Any, Any], Any]:
    """A function that sets a value, and returns what it read before and afterwards."""

    def keep(_: Any, state: Any) -> Any:
        before = state.get("v")
        state.set("v", value)
        return {"before": repr(before), "now": repr(state.get("v"))}

    return keep


def setting(value: Any) -> Callable[[Any, Any], Any]:
    def put(_: Any, state: Any) -> Any:
        state.set("v", value)
        return {}

    return put


def reading(_: Any, state: Any) -> Any:
    return {"v": repr(state.get("v"))}


def numbers(cluster: InMemoryCluster) -> list[int]:
    """The codec numbers of the values in the changelog, in order."""
    return [record.value[1] for _, record in cluster.read("g-s-changelog") if record.key != META_KEY and record.value]


def told(cluster: InMemoryCluster) -> str | None:
    metas = [record.value for _, record in cluster.read("g-s-changelog") if record.key == META_KEY]
    return json.loads(metas[-1] or b"").get("codec")


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        ("json", {"a": [1, None]}),
        ("msgpack", {1: b"\xff", "a": [1.5, True]}),
        ("typed", {"seen": {1}, "at": datetime.fromisoformat("2024-01-01"), "pair": (1, Decimal("1.0"))}),
        ("bytes", b"\xff\x00"),
    ],
)
def test_a_function_reads_what_it_set_also_after_a_restore(cluster: InMemoryCluster, codec: str, value: Any) -> None:
    shown = repr(value)
    app = build(keeping(value), codec=codec)
    assert run(cluster, app) == ([{"before": "None", "now": shown}], [])
    # on an empty disk, the worker restores the state
    assert run(cluster, build(keeping(value), codec=codec)) == ([{"before": shown, "now": shown}], [])
    assert told(cluster) == (None if codec == "json" else f"{codec} 1")


def test_counters_and_lists_have_the_codec_of_their_store(cluster: InMemoryCluster) -> None:
    def work(_: Any, state: Any) -> Any:
        state.increment("n")
        state.append("list", (1, "a"))
        state.set_bytes("raw", b"x")
        return {"items": repr(state.items()), "pop": state.pop("n")}

    shown = "[('list', [(1, 'a')]), ('n', 1), ('raw', b'x')]"
    assert run(cluster, build(work, codec="typed")) == ([{"items": shown, "pop": 1}], [])
    assert sorted(numbers(cluster)) == [2, 4]


def test_decimals_are_incremented_exactly_and_not_mixed_with_floats(cluster: InMemoryCluster) -> None:
    def work(value: Any, state: Any) -> Any:
        state.increment("n")  # the counter starts as an integer
        state.increment("n", Decimal("0.1"))
        return str(state.increment("n", 0.5 if value["float"] else Decimal("0.2")))

    results, [error] = run(cluster, build(work, codec="typed"), {"float": False}, {"float": True})
    assert results == ["1.3"]
    assert "a Decimal or a whole number for a Decimal" in error
    results, [error] = run(cluster, build(work), {"float": False})
    assert results == []
    assert "Decimal" in error  # the JSON codec refuses a Decimal, because it would not read it back as one


@pytest.mark.parametrize(
    ("held", "by", "total"),
    [
        ("1", "1e-30", "1.000000000000000000000000000001"),
        ("1e40", "1", f"1{'0' * 39}1"),
        ("Infinity", "-Infinity", None),
        ("1e9999", "1e-9999", None),
    ],
)
def test_a_sum_of_decimals_is_exact_or_refused(cluster: InMemoryCluster, held: str, by: str, total: str | None) -> None:
    """The precision of the process's decimal context, 28 digits, does not round what is stored."""

    def work(_: Any, state: Any) -> Any:
        state.set("n", Decimal(held))
        return str(state.increment("n", Decimal(by)))

    results, errors = run(cluster, build(work, codec="typed"))
    assert results == ([] if total is None else [total])
    assert [each for each in errors if "a sum of at most 10,000 digits" not in each] == []


def test_values_of_any_codec_end(cluster: InMemoryCluster) -> None:
    def visit(_: Any, state: Any) -> Any:
        seen = state.get("v")
        state.set("v", {1, 2}, ttl=timedelta(seconds=1))
        return {"v": repr(seen)}

    app = build(visit, codec="typed", ttl="by value")
    start = int(cluster.clock.time() * 1000) - 3_600_000
    for at in (0, 999, 5_000):
        cluster.produce("in", b"{}", b"k", timestamp_ms=start + at)
    cluster.run(app)
    assert [json.loads(record.value or b"")["v"] for _, record in cluster.read("out")] == ["None", "{1, 2}", "None"]


# -- models


def test_instances_come_back_exactly_also_what_json_would_lose(cluster: InMemoryCluster) -> None:
    cart = Cart(
        tags={"b", "a"},
        kind=Kind.TWO,
        price=Decimal("1.100"),
        share=float("nan"),
        part=Part(raw=b"\xff", sizes=(3, 1)),
        any={"nested": {(1, 2), "x"}},
    )
    results, errors = run(cluster, build(keeping(cart), codec="typed", model=Cart), {}, {})
    assert errors == []
    assert results[1]["before"] == results[0]["now"]
    assert "raw=b'\\xff', sizes=(3, 1)" in results[1]["before"]
    assert "Decimal('1.100')" in results[1]["before"]
    assert "kind=<Kind.TWO: 'two'>" in results[1]["before"]
    stored = cluster.state(build(keeping(cart), codec="typed", model=Cart), "s")[b"k", "v"]
    assert stored["any"] == {"nested": {(1, 2), "x"}}
    assert type(stored["price"]) is Decimal


@pytest.mark.parametrize(
    ("cart", "said"),
    [
        (Cart(any=Kind.ONE), "would not come back as it was set: at any, <Kind.ONE: 1> of type Kind comes back as 1"),
        (Cart(any=Part()), "at any, Part(raw=b'', sizes=()) of type Part comes back as"),
        (Cart(any=[[object()]]), "value['any'][0][0]"),
        (Cart.model_construct(tags=5), "at tags"),
    ],
)
def test_an_instance_that_would_not_come_back_is_refused_with_its_path(
    cluster: InMemoryCluster, cart: Cart, said: str
) -> None:
    results, [error] = run(cluster, build(setting(cart), codec="typed", model=Cart))
    assert results == []
    assert said in error
    assert numbers(cluster) == []


def test_msgpack_keeps_the_json_values_of_a_model(cluster: InMemoryCluster) -> None:
    cart = Cart(tags={"a"}, part=Part(sizes=(1, 2)), price=Decimal("2.50"))
    results, errors = run(cluster, build(keeping(cart), codec="msgpack", model=Cart), {}, {})
    assert errors == []
    assert results[1]["before"] == results[0]["now"] == repr(cart)
    _, [error] = run(cluster, build(setting(Cart(part=Part(raw=b"\xff"))), codec="msgpack", model=Cart))
    assert "can't be written as JSON" in error


def test_a_model_that_changed_under_stored_state_fails_its_messages_and_the_value_stays(
    cluster: InMemoryCluster,
) -> None:
    class Later(BaseModel):
        tags: int

    run(cluster, build(setting(Cart(tags={"a"})), codec="typed", model=Cart))
    results, [error] = run(cluster, build(reading, codec="typed", model=Later))
    assert results == []
    assert "Key 'v' of store 's' holds a value that does not fit its model at tags" in error
    assert run(cluster, build(reading, codec="typed", model=Cart))[0][0]["v"].startswith("Cart(tags={'a'}")


def test_upgrades_get_python_values_of_the_codec(cluster: InMemoryCluster) -> None:
    class First(BaseModel):
        tags: set[str]

    class Second(BaseModel):
        tags: frozenset[str]
        count: int

    def count(old: dict[str, Any]) -> dict[str, Any]:
        assert type(old["tags"]) is set
        return {**old, "count": len(old["tags"])}

    run(cluster, build(setting(First(tags={"a", "b"})), codec="typed", model=First))
    second = build(keeping(Second(tags=frozenset("c"), count=9)), codec="typed", model=Second, upgrades={1: count})
    results, errors = run(cluster, second, {}, {})
    assert errors == []
    assert "count=2" in results[0]["before"]
    assert results[1]["before"] == "Second(tags=frozenset({'c'}), count=9)"
    assert cluster.state(second, "s")[b"k", "v"]["_version"] == 2


# -- another codec


CODECS = ("json", "msgpack", "typed")


@pytest.mark.parametrize("now", CODECS)
@pytest.mark.parametrize("was", CODECS)
@pytest.mark.parametrize("model", variants([Cart, None]))
def test_a_changed_codec_reads_the_old_values_and_writes_new_ones(
    cluster: InMemoryCluster, was: str, now: str, model: Any
) -> None:
    value: Any = {"a": [1, "x"]} if model is None else Cart(tags={"a"}, price=Decimal("3.10"))
    shown = repr(value)

    def both(given: Any, state: Any) -> Any:
        before = state.get(given["key"])
        state.set(given["key"], value)
        return {"before": repr(before)}

    run(cluster, build(both, codec=was, model=model), {"key": "x"}, {"key": "y"})
    results, errors = run(cluster, build(both, codec=now, model=model), {"key": "x"})
    assert (results, errors) == ([{"before": shown}], [])
    # The changelog has values of both codecs, and a restore from its beginning reads both.
    results, errors = run(cluster, build(both, codec=now, model=model), {"key": "x"}, {"key": "y"})
    assert (results, errors) == ([{"before": shown}] * 2, [])
    numbers_of = {"json": 1, "msgpack": 3, "typed": 4}
    assert numbers(cluster) == [numbers_of[was]] * 2 + [numbers_of[now]] * 3


def test_a_store_of_bytes_still_reads_json_and_refuses_to_set_it(cluster: InMemoryCluster) -> None:
    run(cluster, build(setting({"a": 1})))
    assert run(cluster, build(reading, codec="bytes")) == ([{"v": "{'a': 1}"}], [])
    _, [error] = run(cluster, build(setting({"a": 1}), codec="bytes"))
    assert "value is a dict, which would come back as another type" in error


# -- what is refused


def test_a_value_that_does_not_come_back_fails_its_message_and_changes_nothing(cluster: InMemoryCluster) -> None:
    deep: Any = 1
    for _ in range(1_000):
        deep = {"in": deep}
    for codec, value, said in (
        ("msgpack", {"a": {1}}, "value['a'] is a set"),
        ("typed", [Kind.ONE], "an enum comes back only through a model"),
        ("typed", deep, "is nested more than 100 levels deep"),
        ("msgpack", deep, "is nested more than 100 levels deep"),
        ("typed", {"blob": b"x" * 10_000_000}, "bytes"),  # the value is larger than a record of the changelog may be
    ):
        results, [error] = run(cluster, build(setting(value), codec=codec))
        assert results == []
        assert said in error
        assert "for key 'v' of store 's'" in error or "The value of key 'v' in store 's'" in error
    assert numbers(cluster) == []


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"codec": "pickle"}, "is 'pickle', expected one of 'json', 'msgpack', 'typed', 'bytes'"),
        ({"codec": None}, "is None, expected one of"),
        ({"codec": ["json"]}, "expected one of"),
        ({"codec": "bytes", "model": Cart}, "has a model and the codec 'bytes'"),
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(StoreInvalid, match=said.replace("[", r"\[")) as refused:
        build(reading, **declared)
    assert refused.value.action


def test_a_codec_for_the_store_of_a_built_in_step_is_refused() -> None:
    app = Application("in-memory", consumer_group="g", loglevel=None)
    app.dataframe(app.topic("in")).to_table(app.store("rows", codec="msgpack"))
    with pytest.raises(StepInvalid, match="'rows' has the codec 'msgpack', and a built-in step writes its values"):
        app.topology()
    other = Application("in-memory", consumer_group="g", loglevel=None)
    frame, store = other.dataframe(other.topic("in")), other.store("sums", codec="typed")
    with pytest.raises(HoldfastError, match="sums"):
        frame.drop_duplicates("k", within=5, store=store)


def test_a_store_without_a_codec_and_one_with_json_are_the_same_version() -> None:
    versions = {build(reading, **declared).topology().code_version for declared in ({}, {"codec": "json"})}
    assert len(versions) == 1
    assert build(reading, codec="typed").topology().code_version not in versions


def test_the_action_for_a_value_that_is_not_of_json_names_the_codec_that_keeps_it() -> None:
    def counted(options: dict[str, Any]) -> list[bytes | None]:
        app = Application(consumer_group="sets", auto_offset_reset="earliest", loglevel=None)
        store = app.store("name", **options)

        def see(value: int, state: Any) -> int:
            seen = state.get("seen", set()) | {value}
            state.set("seen", seen)
            return len(seen)

        app.dataframe(app.topic("in")).apply(see, stateful=True, store=store).to_topic(app.topic("out"))
        cluster = InMemoryCluster()
        for name in ("in", "out"):
            cluster.create_topic(name)
        for number in (1, 2, 2):
            cluster.produce("in", json.dumps(number).encode(), b"k")
        cluster.run(app)
        return [record.value for _, record in cluster.read("out")]

    with pytest.raises(HoldfastError, match="value is a set") as failed:
        counted({})
    assert "`app.store('name', codec='typed')`" in str(failed.value)
    assert counted({"codec": "typed"}) == [b"1", b"2", b"2"]
