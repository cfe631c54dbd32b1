"""Changed arguments of steps affect existing state.

A deployment refuses a change of the keys under which state is stored. It reports changes of other rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import Application, Count, StreamingDataFrame, Sum, same_as
from holdfast.processors.engine.steps.function_text import FunctionInvalid, hash_of
from holdfast.processors.engine.steps.meaning import ARGUMENTS, recorded
from holdfast.processors.engine.topology import code_version_of
from holdfast.processors.lifecycle.plans.facts.shape import Shape, as_document, from_document, shape_of
from holdfast.processors.lifecycle.verbs.releases.compatibility import Verdict, compare


class Streams:
    """An application with two streams, `orders` and `prices`, and a global table."""

    def __init__(self) -> None:
        self.app = Application(consumer_group="shop")
        self.orders = self.app.dataframe(self.app.topic("orders"))
        self.prices = self.app.dataframe(self.app.topic("prices"))

    def global_table(self) -> Any:
        return self.app.global_table(self.app.topic("planes"))


async def found(key: Any) -> Any:
    return key


def shape(declare: Callable[[Streams], Any]) -> Shape:
    streams = Streams()
    declare(streams)
    topology = streams.app.topology()
    return shape_of(topology, {spec.name: 4 for spec in topology.inputs})


def verdict(before: Shape, after: Shape, store: str) -> Verdict:
    made = compare("shop", before, after, dropped=(), left={})
    return next(each for each in made if each.store == store)


def grouped(key: Any, **options: Any) -> Callable[[Streams], Any]:
    return lambda s: s.orders.group_by(key, name="k", **options).aggregate(n=Count(), store="w")


def looked(**options: Any) -> Callable[[Streams], Any]:
    return lambda s: s.orders.join_lookup(found, **options).aggregate(n=Count(), store="w")


def joined(**options: Any) -> Callable[[Streams], Any]:
    return lambda s: s.orders.join_table(s.global_table(), **options).aggregate(n=Count(), store="w")


def asof(left: str = "orders", **options: Any) -> Callable[[Streams], Any]:
    def declare(s: Streams) -> None:
        right = s.prices if left == "orders" else s.orders
        getattr(s, left).join_asof(right, name="w", **options)

    return declare


def interval(left: str = "orders", **options: Any) -> Callable[[Streams], Any]:
    def declare(s: Streams) -> None:
        right = s.prices if left == "orders" else s.orders
        getattr(s, left).join_interval(right, name="w", **options)

    return declare


def tables(left: str = "orders", **options: Any) -> Callable[[Streams], Any]:
    def declare(s: Streams) -> None:
        mine, theirs = s.orders.to_table(name="o"), s.prices.to_table(name="p")
        (mine if left == "orders" else theirs).join(theirs if left == "orders" else mine, name="w", **options)

    return declare


def rows(declare: Callable[[Any], Any]) -> Callable[[Streams], Any]:
    """A declaration that adds one step to a table."""
    return lambda s: declare(s.orders.to_table(name="o"))


def column(declare: Callable[[StreamingDataFrame, Any], Any]) -> tuple[Callable[[Streams], Any], ...]:
    """The same step with two different functions. The store's text in ``columns`` is the same for both."""
    return tuple(lambda s, of=of: declare(s.orders, of) for of in (lambda v: v["a"], lambda v: v["b"]))


def windowed(open_window: Callable[[StreamingDataFrame], Any]) -> tuple[Callable[[Streams], Any], ...]:
    return column(lambda f, of: open_window(f).sum(of).final())


def by_day(value: Any) -> Any:
    return value["day"]


CASES: dict[tuple[str, str], tuple[Callable[[Streams], Any], ...]] = {
    ("group_by", "key"): (grouped("carrier"), grouped("plane")),
    ("group_by", "key_serializer"): (grouped("carrier"), grouped("carrier", key_serializer="json")),
    ("drop_duplicates", "by"): tuple(
        lambda s, by=by: s.orders.drop_duplicates(by, within=1_000, store="w") for by in ("id", "name")
    ),
    ("moving_average", "of"): column(lambda f, of: f.moving_average(of, over=3, into="mean", store="w")),
    ("aggregate", "of"): column(lambda f, of: f.aggregate(total=Sum(of), store="w")),
    ("to_table", "history_retention"): tuple(
        lambda s, ms=ms: s.orders.to_table(name="w", history_retention=ms) for ms in (1_000, 2_000)
    ),
    ("table", "history_retention"): tuple(
        lambda s, ms=ms: s.app.table(s.app.topic("rows"), name="w", history_retention=ms) for ms in (1_000, 2_000)
    ),
    ("join_table", "on"): (joined(on="plane"), joined(on="carrier")),
    ("join_table", "how"): (joined(how="inner"), joined(how="left")),
    ("join_table", "on_merge"): (joined(on_merge="keep-left"), joined(on_merge="keep-right")),
    ("join_asof", "right"): (asof("orders"), asof("prices")),
    ("join_asof", "how"): (asof(how="inner"), asof(how="left")),
    ("join_asof", "on_merge"): (asof(on_merge=lambda a, b: a), asof(on_merge=lambda a, b: b)),
    ("join_asof", "grace_ms"): (asof(grace_ms=1), asof(grace_ms=2)),
    ("join_asof", "tolerance_ms"): (asof(), asof(tolerance_ms=2)),
    ("join_interval", "right"): (interval("orders"), interval("prices")),
    ("join_interval", "how"): (interval(how="inner"), interval(how="outer")),
    ("join_interval", "on_merge"): (interval(on_merge=lambda a, b: a), interval(on_merge=lambda a, b: b)),
    ("join_interval", "grace_ms"): (interval(grace_ms=1), interval(grace_ms=2)),
    ("join_interval", "backward_ms"): (interval(backward_ms=1), interval(backward_ms=2)),
    ("join_interval", "forward_ms"): (interval(forward_ms=1), interval(forward_ms=2)),
    ("join", "other"): (tables("orders"), tables("prices")),
    ("join", "on"): (tables(on="price"), tables(on="other_price")),
    ("join", "how"): (tables(how="inner"), tables(how="left")),
    ("join", "on_merge"): (tables(on_merge="keep-left"), tables(on_merge="keep-right")),
    ("table_filter", "func"): (
        rows(lambda t: t.filter(lambda row: row["a"], name="w")),
        rows(lambda t: t.filter(lambda row: row["b"], name="w")),
    ),
    ("table_map", "func"): (
        rows(lambda t: t.map(lambda row: row["a"], name="w")),
        rows(lambda t: t.map(lambda row: row["b"], name="w")),
    ),
    ("table_group_by", "key"): (
        rows(lambda t: t.group_by("carrier", name="k").aggregate(n=Count(), name="w")),
        rows(lambda t: t.group_by("plane", name="k").aggregate(n=Count(), name="w")),
    ),
    ("table_aggregate", "columns"): (
        rows(lambda t: t.group_by("carrier").aggregate(n=Count(), name="w")),
        rows(lambda t: t.group_by("carrier").aggregate(n=Count(), total=Sum("a"), name="w")),
    ),
    ("table_aggregate", "of"): (
        rows(lambda t: t.group_by("carrier").aggregate(total=Sum(lambda row: row["a"]), name="w")),
        rows(lambda t: t.group_by("carrier").aggregate(total=Sum(lambda row: row["b"]), name="w")),
    ),
    ("join_lookup", "on"): (looked(on="plane"), looked(on="carrier")),
    ("join_lookup", "fields"): (looked(fields={"a": "b"}), looked(fields={"a": "c"})),
    ("join_lookup", "how"): (looked(how="left"), looked(how="inner")),
    ("join_lookup", "on_merge"): (looked(on_merge="keep-left"), looked(on_merge="keep-right")),
    ("join_lookup", "default"): (looked(default=1), looked(default=2)),
    ("tumbling_window", "of"): windowed(lambda f: f.tumbling_window(10, name="w")),
    ("hopping_window", "of"): windowed(lambda f: f.hopping_window(10, 5, name="w")),
    ("sliding_window", "of"): windowed(lambda f: f.sliding_window(10, name="w")),
    ("session_window", "of"): windowed(lambda f: f.session_window(10, name="w")),
    ("tumbling_count_window", "of"): windowed(lambda f: f.tumbling_count_window(4, "w")),
    ("hopping_count_window", "of"): windowed(lambda f: f.hopping_count_window(4, 2, "w")),
    ("sliding_count_window", "of"): windowed(lambda f: f.sliding_count_window(4, "w")),
}


def test_each_recorded_argument_has_a_case() -> None:
    assert set(CASES) == {(step, name) for step in ARGUMENTS for name in recorded(step)}


@pytest.mark.parametrize(("step", "name"), CASES)
def test_a_changed_argument_is_refused_or_told(step: str, name: str) -> None:
    before, after = map(shape, CASES[step, name])
    made = verdict(before, after, "w")
    is_key = ARGUMENTS[step][name] == "key"
    assert (made.change, made.refused) == ("other keys" if is_key else "other rule", is_key)
    assert f": {name} was " in made.sentence
    assert verdict(before, before, "w").change == "same"
    if is_key:
        chained = any(spec.topic in after.inputs for spec in after.repartitions)
        fills = "clear shop --all --rewind earliest`" if chained else "backfill shop --store STORE --from topic`"
        assert f"`holdfast apply {fills}" in made.action


def test_another_function_as_key_is_refused_and_one_that_gives_the_same_keys_is_said_so() -> None:
    def spaced(value: Any) -> Any:
        """Returns the same value as `by_day`."""
        return value["day"]  # same code, with a comment

    former = hash_of(by_day)
    made = verdict(shape(grouped(by_day)), shape(grouped(spaced)), "w")
    # the function's name differs, so the comparison cannot know that it returns the same keys
    assert made.change == "other keys"
    assert f'`@same_as("{former}")` over it' in made.action
    assert verdict(shape(grouped(by_day)), shape(grouped(same_as(former)(spaced))), "w").change == "same"


def test_comments_and_what_stands_around_a_lambda_are_no_other_function() -> None:
    one = grouped(lambda v: v["day"])
    # fmt: off
    two = grouped(lambda v:
        v["day"])  # by day
    # fmt: on
    assert verdict(shape(one), shape(two), "w").change == "same"


def test_a_function_is_known_by_what_it_was_closed_over() -> None:
    def by(field: str) -> Callable[[Any], Any]:
        return lambda value: value[field]

    assert verdict(shape(grouped(by("a"))), shape(grouped(by("b"))), "w").change == "other keys"
    assert verdict(shape(grouped(by("a"))), shape(grouped(by("a"))), "w").change == "same"


@pytest.mark.parametrize("wrong", ["", "day", "0123ABCD", None])
def test_same_as_takes_what_an_error_named(wrong: Any) -> None:
    with pytest.raises(FunctionInvalid, match="expected the 8 digits"):
        same_as(wrong)


def test_what_is_before_the_next_group_by_is_no_key_of_state_behind_it() -> None:
    def declare(first: str) -> Callable[[Streams], Any]:
        return lambda s: s.orders.group_by(first, name="k").group_by("g").aggregate(n=Count(), store="w")

    assert verdict(shape(declare("a")), shape(declare("b")), "w").change == "same"


def test_a_version_that_did_not_record_its_meaning_is_told_and_goes_on() -> None:
    after = shape(grouped("plane"))
    document = as_document(shape(grouped("carrier")))
    for store in document["stores"]:
        del store["meaning"]
    made = verdict(from_document(document), after, "w")
    assert (made.change, made.refused) == ("same", False)
    assert "did not record the keys and rules" in made.sentence
    plain = shape(lambda s: s.orders.apply(lambda v, state: v, stateful=True, store="w"))
    unknown = msgspec.structs.replace(plain, stores=tuple(_without(each) for each in plain.stores))
    assert verdict(unknown, plain, "w").sentence == "Store `w` keeps its state."


def _without(store: Any) -> Any:
    return msgspec.structs.replace(store, meaning=None)


def test_meaning_is_told_beside_other_windows() -> None:
    before = shape(lambda s: s.orders.tumbling_window(10, name="w").sum(lambda v: v["a"]).final())
    after = shape(lambda s: s.orders.tumbling_window(20, name="w").sum(lambda v: v["b"]).final())
    made = verdict(before, after, "w")
    assert made.change == "other windows"
    assert "tumbling_window w: of was value: function" in made.sentence


def test_the_version_of_a_processor_is_the_same_as_before_its_meaning_was_recorded() -> None:
    streams = Streams()
    grouped("carrier")(streams)
    topology = streams.app.topology()
    bare = replace(topology, stores=tuple(replace(each, meaning=()) for each in topology.stores))
    assert code_version_of(bare, "code") == code_version_of(topology, "code")
