"""Stores with models. Functions get instances, older values are upgraded, and a value that does not fit fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel

from holdfast import Application, InMemoryCluster
from holdfast.infra.errors import HoldfastError


class Item(BaseModel):
    sku: str
    price: Decimal


class Cart(BaseModel):
    items: list[Item] = Field(default_factory=list)
    since: datetime | None = None
    currency: str = "EUR"


def build(function: Callable[..., Any], **declared: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    carts = app.store("carts", **declared)
    app.dataframe(app.topic("in")).apply(function, stateful=True, store=carts).to_topic(app.topic("out"))
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
    for value in values:
        cluster.produce("in", json.dumps(value).encode(), b"k")
    cluster.run(app)
    results = [json.loads(record.value) for _, record in cluster.read("out")[seen[0] :] if record.value]
    errors = [dict(record.headers or ())["holdfast.error"] for _, record in cluster.read("dead")[seen[1] :]]
    return results, [(each or b"").decode() for each in errors]


def add(value: Any, state: Any) -> Any:
    cart = state.get("cart", default=Cart(since=datetime(2024, 1, 1, tzinfo=UTC)))
    assert isinstance(cart, Cart)
    cart.items.append(Item(**value))
    state.set("cart", cart)
    return {"total": str(sum(each.price for each in cart.items))}


def stored(cluster: InMemoryCluster, app: Application) -> Any:
    return cluster.state(app, "carts")[b"k", "cart"]


def test_functions_get_and_set_instances(cluster: InMemoryCluster) -> None:
    messages = [{"sku": "pen", "price": "1.10"}, {"sku": "ink", "price": "2.20"}]
    results, errors = run(cluster, build(add, model=Cart), *messages)
    assert (results, errors) == ([{"total": "1.10"}, {"total": "3.30"}], [])
    # The store holds the plain JSON of the model.
    assert stored(cluster, build(add, model=Cart)) == {
        "items": messages,
        "since": "2024-01-01T00:00:00Z",
        "currency": "EUR",
    }


def test_a_model_for_each_state_key(cluster: InMemoryCluster) -> None:
    def visit(value: Any, state: Any) -> Any:
        state.set("cart", {"items": [value]})  # `set` also takes data from which an instance can be made
        state.increment("visits")
        state.set("plain", {"any": value})
        return {"kinds": sorted(type(each).__name__ for _, each in state.items())}

    results, errors = run(cluster, build(visit, model={"cart": Cart, "visits": int}), {"sku": "pen", "price": 1})
    assert (results, errors) == ([{"kinds": ["Cart", "dict", "int"]}], [])


@pytest.mark.parametrize(
    ("value", "path"), [("cart", "the value"), ({"items": [{"sku": "pen"}]}, r"items\.0\.price"), (b"raw", "bytes")]
)
def test_what_does_not_fit_is_not_set(cluster: InMemoryCluster, value: Any, path: str) -> None:
    def put(_: Any, state: Any) -> Any:
        (state.set_bytes if isinstance(value, bytes) else state.set)("cart", value)

    results, [error] = run(cluster, build(put, model=Cart), {})
    assert results == []
    assert "Key 'cart' of store 'carts' was set to" in error
    if value != b"raw":
        assert path.replace("\\", "") in error
    assert (b"k", "cart") not in cluster.state(build(put, model=Cart), "carts")


def test_stored_state_that_does_not_fit_fails_its_messages_and_stays(cluster: InMemoryCluster) -> None:
    def put(value: Any, state: Any) -> Any:
        state.set("cart", value)

    run(cluster, build(put), {"items": [{"sku": "pen", "price": "cheap"}]})
    results, [error] = run(cluster, build(add, model=Cart), {"sku": "ink", "price": 1})
    assert results == []
    assert "Key 'cart' of store 'carts' holds a value that does not fit its model at items.0.price" in error
    assert "cheap" in error
    assert stored(cluster, build(add, model=Cart)) == {"items": [{"sku": "pen", "price": "cheap"}]}


# -- upgrades


def _to_items(old: Any) -> Any:
    return {"items": [{"sku": sku, "price": "1"} for sku in old["skus"]]}


def _to_currency(old: Any) -> Any:
    return {**old, "currency": "USD"}


UPGRADES = {1: _to_items, 2: _to_currency}


def test_values_of_older_versions_are_upgraded_when_they_are_read(cluster: InMemoryCluster) -> None:
    def put(value: Any, state: Any) -> Any:
        state.set("cart", value)

    run(cluster, build(put), {"skus": ["pen"]})  # values of the model's version 1 are stored without a version
    app = build(add, model=Cart, upgrades=UPGRADES)
    results, errors = run(cluster, app, {"sku": "ink", "price": "2"}, {"sku": "cap", "price": "3"})
    assert (results, errors) == ([{"total": "3"}, {"total": "6"}], [])
    held = stored(cluster, app)
    assert (held["currency"], held["_version"], len(held["items"])) == ("USD", 3, 3)


def test_reading_alone_changes_nothing(cluster: InMemoryCluster) -> None:
    def put(value: Any, state: Any) -> Any:
        state.set("cart", value)

    def look(_: Any, state: Any) -> Any:
        return state.get("cart").currency

    run(cluster, build(put), {"items": [], "_version": 2})
    app = build(look, model=Cart, upgrades=UPGRADES)
    assert run(cluster, app, {}) == (["USD"], [])
    assert stored(cluster, app) == {"items": [], "_version": 2}


@pytest.mark.parametrize(
    ("held", "upgrades", "said"),
    [
        ({"nothing": 1}, UPGRADES, "can't be upgraded from version 1: KeyError: 'skus'"),
        ({"items": [], "_version": 9}, UPGRADES, "holds a value of version 9, expected 1 to 3"),
        ({"items": [], "_version": "x"}, UPGRADES, "holds a value of version 'x'"),
        ({"skus": []}, {2: _to_currency}, "holds a value of version 1, expected 2 to 3"),
        ({"skus": []}, {1: lambda old: old, 2: lambda old: {"items": 7}}, "does not fit its model at items"),
        ({"skus": []}, {1: lambda old: object()}, "no JSON after its upgrades"),
        ([1], UPGRADES, "holds list '[1]', expected an object with the field '_version'"),
    ],
)
def test_an_upgrade_that_is_missing_or_fails_loses_nothing(
    cluster: InMemoryCluster, held: Any, upgrades: Any, said: str
) -> None:
    def put(value: Any, state: Any) -> Any:
        state.set("cart", value)

    run(cluster, build(put), held)
    app = build(add, model=Cart, upgrades=upgrades)
    results, [error] = run(cluster, app, {"sku": "ink", "price": "2"})
    assert results == []
    assert said in error
    assert "Key 'cart' of store 'carts'" in error
    assert stored(cluster, app) == held


def test_a_version_needs_an_object(cluster: InMemoryCluster) -> None:
    def put(value: Any, state: Any) -> Any:
        state.set("cart", value)

    app = build(put, model=RootModel[list[int]], upgrades={1: lambda old: old})
    assert "a version is a field of an object" in run(cluster, app, [1])[1][0]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"upgrades": {1: _to_items}}, r"are of '\*', which has no model"),
        ({"model": Cart, "upgrades": {1: _to_items, 3: _to_currency}}, r"\[2\] are missing"),
        ({"model": Cart, "upgrades": {0: _to_items}}, "from 1"),
        ({"model": Cart, "upgrades": {1: "f"}}, "'f' for version 1, expected a function"),
        ({"model": Cart, "upgrades": [_to_items]}, "expected functions by version"),
        ({"model": {"a": Cart}, "upgrades": {"b": {1: _to_items}}}, "are of 'b', which has no model"),
        ({"ttl": 0}, "`ttl` is 0"),
        ({"ttl": "long"}, "`ttl` is 'long'"),
    ],
)
def test_declarations_that_contradict_themselves(declared: dict[str, Any], said: str) -> None:
    with pytest.raises(HoldfastError, match=said):
        Application("in-memory", consumer_group="g", loglevel=None).store("carts", **declared)


def test_a_store_is_declared_once_and_used() -> None:
    app = build(add, model=Cart)
    with pytest.raises(HoldfastError, match="declared twice"):
        app.store("carts", model=Item)
    assert app.store("carts", model=Cart) == "carts"
    app.store("cart", model=Cart)
    with pytest.raises(HoldfastError, match=r"names the store 'cart', which no step uses; the stores are carts"):
        app.topology()
    with pytest.raises(HoldfastError, match="the name 7"):
        app.store(7)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError, match="can't be used"):
        app.store("")


def test_aggregations_and_windows_have_a_form_of_their_own() -> None:
    from holdfast import Count

    app = Application("in-memory", consumer_group="g", loglevel=None)
    app.store("totals", ttl=1_000)
    app.dataframe(app.topic("in")).aggregate(n=Count(), store="totals")
    with pytest.raises(HoldfastError, match="Store 'totals' of an aggregation is declared with `app.store`"):
        app.topology()


def test_the_model_types_the_columns_of_the_table() -> None:
    [store] = build(add, model=Cart, upgrades=UPGRADES).topology().stores
    assert store.schema is not None
    assert [column.name for column in store.schema.columns] == ["items", "since", "currency"]
    assert store.columns == ("version of * = 3",)


def test_a_changed_upgrade_is_another_version_of_the_code() -> None:
    first, second = (
        build(add, model=Cart, upgrades={1: upgrade}).topology().code_version for upgrade in (_to_items, _to_currency)
    )
    assert first != second
