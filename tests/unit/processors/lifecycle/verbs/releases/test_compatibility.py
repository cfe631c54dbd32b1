"""Whether a code version can use the state of another code version.

Every verdict is decided from descriptions of stores alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast import Application, State
from holdfast.processors.engine.aggregates.aggregation import Aggregator, Count, Sum
from holdfast.processors.engine.topology import StoreSpec, Topology
from holdfast.processors.lifecycle.plans.facts.shape import Shape, as_document, from_document, shape_of
from holdfast.processors.lifecycle.verbs.releases.compatibility import Verdict, compare


def keep(value: Any, state: State) -> Any:
    state.set("last", value)
    return value


def topology(*stores: str, changelogs: bool = True, renamed: dict[str, str] | None = None) -> Topology:
    application = Application(consumer_group="orders", use_changelog_topics=changelogs, renamed_stores=renamed)
    frame = application.dataframe(application.topic("placed"))
    for store in stores:
        frame = frame.apply(keep, stateful=True, store=store)
    return application.topology()


def totals(*columns: str) -> Topology:
    application = Application(consumer_group="orders")
    frame = application.dataframe(application.topic("placed"))
    known = {"orders": Count(), "sum": Sum("amount"), "fees": Sum("fee")}
    frame.aggregate({name: known[name] for name in columns}, store="totals")
    return application.topology()


def shape(made: Topology, partitions: int = 4) -> Shape:
    return shape_of(made, {spec.name: partitions for spec in made.inputs})


def verdicts(before: Shape, after: Shape, *, dropped: tuple[str, ...] = (), left: int = 0) -> tuple[Verdict, ...]:
    held = {store.changelog or "": left for store in after.stores}
    return compare("orders", before, after, dropped=dropped, left=held)


def same(store: str) -> Verdict:
    return Verdict("same", store, f"Store `{store}` keeps its state.")


def test_the_same_stores_go_on() -> None:
    assert verdicts(shape(topology("a", "b")), shape(topology("a", "b"))) == (same("a"), same("b"))


def test_a_shape_goes_through_json_unchanged() -> None:
    made = shape(totals("orders", "sum"))
    assert from_document(as_document(made)) == made


def test_a_new_store_begins_empty_and_is_offered_a_backfill() -> None:
    kept, new = verdicts(shape(topology("a")), shape(topology("a", "b")))
    assert kept == same("a")
    assert (new.change, new.refused, new.changelog) == ("new", False, "orders-b-changelog")
    assert "begins empty" in new.sentence


def test_a_new_store_whose_changelog_holds_former_state_is_refused_until_that_is_dropped() -> None:
    before, after = shape(topology("a")), shape(topology("a", "b"))
    _, new = verdicts(before, after, left=12)
    assert new.refused
    assert "up to 12 records" in new.sentence
    assert "--drop b" in new.action
    assert "holdfast apply backfill orders --store b --from topic" in new.action
    assert not verdicts(before, after, left=12, dropped=("b",))[1].refused


def test_a_store_that_goes_is_kept_for_a_time_of_grace() -> None:
    _, gone = verdicts(shape(topology("a", "b")), shape(topology("a")))
    assert (gone.change, gone.refused) == ("removed", False)
    assert "Keep them for at least 7 days" in gone.sentence
    assert "--drop b" in gone.sentence
    _, dropped = verdicts(shape(topology("a", "b")), shape(topology("a")), dropped=("b",))
    assert "is deleted" in dropped.sentence


def test_a_store_that_looks_renamed_is_refused_with_both_ways_out() -> None:
    before, after = shape(topology("a")), shape(topology("b"))
    found = verdicts(before, after)
    assert found[0].change == "looks renamed"
    assert "renamed_stores={'b': 'a'}" in found[0].action
    assert "--drop a" in found[0].action
    new, gone = verdicts(before, after, dropped=("a",))
    assert (new.change, gone.change, new.refused) == ("new", "removed", False)


def unnamed(*topics: str, store: str | None = None, renamed: dict[str, str] | None = None) -> Topology:
    application = Application(consumer_group="orders", renamed_stores=renamed)
    for topic in topics:
        application.dataframe(application.topic(topic)).apply(keep, stateful=True, store=store)
    return application.topology()


def test_the_former_store_of_steps_without_a_name_is_not_left_behind() -> None:
    before = shape(unnamed("placed", store="default"))
    found = verdicts(before, shape(unnamed("placed")))
    assert [each.store for each in found if each.refused] == ["placed"]
    assert "`store='default'` in these steps on placed" in found[0].action
    assert "renamed_stores={'placed': 'default'}" in found[0].action
    assert verdicts(before, shape(unnamed("placed", store="default"))) == (same("default"),)
    assert verdicts(before, shape(unnamed("placed", renamed={"placed": "default"}))) == (same("default"),)
    assert not any(each.refused for each in verdicts(before, shape(unnamed("placed")), dropped=("default",)))


def test_the_former_store_that_streams_shared_by_having_no_name_is_not_left_behind() -> None:
    found = verdicts(shape(unnamed("placed", "paid", store="default")), shape(unnamed("placed", "paid")))
    assert [each.store for each in found if each.refused] == ["placed", "paid"]
    for each in found[:2]:
        assert "`store='default'` in these steps on paid, placed." in each.action
        assert "renamed_stores" not in each.action


def test_the_former_store_of_an_aggregation_without_a_name_is_not_left_behind() -> None:
    def made(store: str | None) -> Shape:
        application = Application(consumer_group="orders")
        application.dataframe(application.topic("placed")).aggregate(n=Count(), store=store)
        return shape(application.topology())

    found = verdicts(made("aggregate"), made(None))
    assert (found[0].store, found[0].change) == ("placed-aggregate", "looks renamed")
    assert "`store='aggregate'`" in found[0].action


def test_a_store_that_is_declared_as_renamed_is_the_same() -> None:
    assert verdicts(shape(topology("a")), shape(topology("b", renamed={"b": "a"}))) == (same("a"),)


def test_other_columns_under_the_same_name_are_refused() -> None:
    (changed,) = verdicts(shape(totals("orders", "sum")), shape(totals("orders", "fees")))
    assert changed.change == "misread"
    assert "columns was" in changed.sentence
    assert "totals-2" in changed.action


def test_another_kind_under_the_same_name_is_refused() -> None:
    (changed,) = verdicts(shape(totals("orders")), shape(topology("totals")))
    assert changed.change == "misread"
    assert "kind was aggregation, now key-value" in changed.sentence


def test_another_codec_is_told_and_not_refused() -> None:
    made = topology("a")
    other = replace(made, stores=tuple(replace(store, codec="typed") for store in made.stores))
    for before, after, told in (
        (made, other, "written with the codec json, from now on with typed"),
        (other, made, "written with the codec typed, from now on with json"),
    ):
        (changed,) = verdicts(shape(before), shape(after))
        assert (changed.change, changed.refused) == ("other codec", False)
        assert told in changed.sentence
        assert "a value has the new codec as soon as it is set again" in changed.sentence


def test_another_codec_is_told_beside_another_ttl() -> None:
    made, other = topology("a"), topology("a")
    other = replace(
        other, stores=tuple(replace(each, codec="msgpack", columns=("ttl = 5 ms",)) for each in made.stores)
    )
    (changed,) = verdicts(shape(made), shape(other))
    assert (changed.change, changed.refused) == ("other terms", False)
    assert "from now on with msgpack" in changed.sentence


@pytest.mark.parametrize("change", [{"codec": "of-a-newer-version"}, {"format_version": 2}])
def test_an_unknown_codec_or_another_format_is_refused(change: dict[str, Any]) -> None:
    made = topology("a")
    other = replace(made, stores=tuple(replace(store, **change) for store in made.stores))
    (changed,) = verdicts(shape(made), shape(other))
    assert changed.change == "misread"
    assert changed.refused


def test_other_inputs_are_refused() -> None:
    made = topology("a")
    other = replace(made, stores=(replace(made.stores[0], inputs=("placed", "paid")),))
    (changed,) = verdicts(shape(made), shape(other))
    assert "were placed, now paid, placed" in changed.sentence
    assert changed.refused


def test_another_number_of_partitions_is_refused() -> None:
    made = topology("a")
    (changed,) = verdicts(shape(made, 4), shape(made, 6))
    assert "had 4 partitions, now 6" in changed.sentence
    assert "keys go to other partitions" in changed.sentence


def test_changelogs_that_are_turned_off_on_or_moved_are_refused() -> None:
    logged, bare = shape(topology("a")), shape(topology("a", changelogs=False))
    (off,) = verdicts(logged, bare)
    assert (off.change, off.refused) == ("changelog off", True)
    (on,) = verdicts(bare, logged)
    assert (on.change, on.refused) == ("changelog on", False)
    made = topology("a")
    spec = made.changelogs[0]
    moved = replace(made, changelogs=(replace(spec, topic=replace(spec.topic, name="elsewhere")),))
    (other,) = verdicts(logged, shape(moved))
    assert (other.change, other.refused) == ("changelog moved", True)
    assert "had changelog orders-a-changelog, now elsewhere" in other.sentence


def test_tasks_of_another_name_are_restored_from_the_changelog_or_refused() -> None:
    def joined(*, changelogs: bool) -> Topology:
        application = Application(consumer_group="orders", use_changelog_topics=changelogs)
        for topic in ("placed", "paid"):
            frame = application.dataframe(application.topic(topic))
            frame.apply(keep, stateful=True, store="both")
            frame.apply(keep, stateful=True, store=f"of-{topic}")
        return application.topology()

    def parted(made: Topology) -> Shape:
        found = shape(made)
        stores = tuple(
            msgspec.structs.replace(store, task_group=store.inputs[0]) if store.name != "both" else store
            for store in found.stores
        )
        return Shape(found.code_version, found.inputs, found.outputs, stores)

    found = {each.store: each for each in verdicts(parted(joined(changelogs=True)), shape(joined(changelogs=True)))}
    assert found["of-placed"].change == "regrouped"
    assert not found["of-placed"].refused
    bare = {each.store: each for each in verdicts(parted(joined(changelogs=False)), shape(joined(changelogs=False)))}
    assert bare["of-placed"].refused


def test_a_store_spec_is_described_whole() -> None:
    """This test fails when `StoreSpec` gets a new field, because the comparison must cover each field."""
    known = {"name", "inputs", "kind", "codec", "format_version", "columns"}
    known |= {"schema"}  # a change of the schema changes only the warehouse's table, not the state
    known |= {"meaning"}  # its lines of text are compared one by one; test_meaning_plans.py has a case for each line
    known |= {"uses"}  # the text lines in `columns` are computed from this field, and `columns` is compared
    known |= {"retracts"}  # follows from the steps; if they group differently, the lines in `meaning` differ
    assert set(StoreSpec.__slots__) == known  # type: ignore[attr-defined]


def hours(duration_ms: int, closing: Any = "partition", **columns: Aggregator) -> Shape:
    application = Application(consumer_group="orders")
    window = application.dataframe(application.topic("placed")).tumbling_window(duration_ms, name="hours")
    window.agg(**(columns or {"orders": Count()})).final(closing)
    return shape(application.topology())


def test_windows_with_a_new_definition_are_told_with_the_choices() -> None:
    [verdict] = verdicts(hours(60_000), hours(30_000, orders=Count(), sum=Sum("amount")))
    assert (verdict.change, verdict.refused) == ("other windows", False)
    for said in (
        "60000 ms",
        "30000 ms",
        "keep their start and end, and have a new grace and retention at once",
        "clear the store",
        "--store hours-2 --from topic",
    ):
        assert said in verdict.sentence
    assert verdicts(hours(60_000), hours(60_000)) == (same("hours"),)


def test_windows_that_are_closed_in_another_way_are_refused() -> None:
    [verdict] = verdicts(hours(60_000), hours(60_000, "key"))
    assert (verdict.change, verdict.refused) == ("misread", True)


def carts(**declared: Any) -> Shape:
    application = Application(consumer_group="orders")
    application.store("carts", **declared)
    application.dataframe(application.topic("placed")).update(lambda value, state: None, stateful=True, store="carts")
    return shape(application.topology())


def test_a_store_that_is_declared_otherwise_is_told_and_keeps_its_state() -> None:
    upgraded = {"model": dict[str, int], "upgrades": {1: dict}}
    for was, now in ((carts(), carts(ttl=1_000)), (carts(ttl=1_000), carts(ttl=2_000)), (carts(), carts(**upgraded))):
        [verdict] = verdicts(was, now)
        assert (verdict.change, verdict.refused) == ("other terms", False)
        for line in (*was.stores[0].columns, *now.stores[0].columns):
            assert line in verdict.sentence
    assert verdicts(carts(ttl=1_000), carts(ttl=1_000)) == (same("carts"),)
    assert verdicts(carts(), carts(model=dict[str, int])) == (same("carts"),)


def of_window(place: Callable[[Any], Any]) -> Shape:
    application = Application(consumer_group="orders")
    place(application.dataframe(application.topic("placed")))
    return shape(application.topology())


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (lambda f: f.session_window(10, name="w"), lambda f: f.session_window(20, name="w"), "other windows"),
        (lambda f: f.sliding_window(10, name="w"), lambda f: f.sliding_window(20, name="w"), "other windows"),
        (lambda f: f.session_window(10, name="w"), lambda f: f.tumbling_window(10, name="w"), "misread"),
        (lambda f: f.tumbling_window(10, name="w"), lambda f: f.sliding_window(10, name="w"), "misread"),
        (lambda f: f.tumbling_count_window(3, "w"), lambda f: f.tumbling_count_window(5, "w"), "other windows"),
        (lambda f: f.hopping_count_window(6, 2, "w"), lambda f: f.sliding_count_window(6, "w"), "other windows"),
        (lambda f: f.tumbling_count_window(3, "w"), lambda f: f.sliding_count_window(3, "w"), "misread"),
        (lambda f: f.tumbling_count_window(3, "w"), lambda f: f.tumbling_window(3, name="w"), "misread"),
    ],
)
def test_another_kind_of_window_is_refused_and_another_size_is_told(
    before: Callable[[Any], Any], after: Callable[[Any], Any], change: str
) -> None:
    shapes = [of_window(lambda frame, place=place: place(frame).count().final()) for place in (before, after)]
    [verdict] = verdicts(*shapes)
    assert (verdict.change, verdict.refused) == (change, change == "misread")
    if change == "other windows":
        assert "To begin empty, clear the store first." in verdict.sentence
        assert "--store w-2 --from topic" in verdict.sentence


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (lambda f, times: f.tumbling_window(10, times, name="w"), "have a new grace and retention at once"),
        (lambda f, times: f.session_window(times, name="w"), "Sessions that are open have the new gap"),
        (lambda f, times: f.sliding_window(times, name="w"), "hold from the next message on"),
    ],
    ids=["tumbling", "session", "sliding"],
)
def test_the_plan_says_what_windows_that_are_open_have_of_new_times(place: Callable[..., Any], said: str) -> None:
    shapes = [of_window(lambda frame, times=times: place(frame, times).count().final()) for times in (10, 20)]
    [verdict] = verdicts(*shapes)
    assert said in verdict.sentence


def scheduled(*intervals: int, missed: Any = "once") -> Shape:
    application = Application(consumer_group="orders")
    application.dataframe(application.topic("placed")).apply(keep, stateful=True, store="carts")
    for interval in intervals:
        application.every(interval, name=f"every-{interval}", missed=missed)(print)
    return shape(application.topology())


def test_schedules_that_are_added_changed_or_removed_are_told() -> None:
    [_, new] = verdicts(scheduled(), scheduled(1_000))
    assert new.change == "new"
    assert "schedule every-1000: every 1000 ms, once for the processor" in new.sentence
    assert "first slots are those after the deploy" in new.sentence
    assert "backfill" not in new.sentence
    [_, changed] = verdicts(scheduled(1_000, 2_000), scheduled(2_000, 3_000))
    assert (changed.change, changed.refused) == ("other terms", False)
    assert "added: every-3000: every 3000 ms" in changed.sentence
    assert "removed: every-1000: every 1000 ms" in changed.sentence
    assert "every-2000" not in changed.sentence
    [_, gone] = verdicts(scheduled(1_000), scheduled())
    assert gone.change == "removed"
    [_, policy] = verdicts(scheduled(1_000), scheduled(1_000, missed="all"))
    assert policy.change == "other terms"
    assert verdicts(scheduled(1_000), scheduled(1_000))[1] == same("placed-schedules")


def called(ttl: int | None = None, store: str | None = None, *, durable: bool = True) -> Shape:
    async def ask(value: Any) -> Any:
        return value

    application = Application(consumer_group="orders")
    stream = application.dataframe(application.topic("placed"))
    stream.apply_async(ask, durable=durable, ttl=ttl, store=store).apply(keep, stateful=True, store="carts")
    return shape(application.topology())


def test_durable_calls_that_are_added_changed_or_removed_are_told() -> None:
    new, _ = verdicts(called(durable=False), called())
    assert (new.change, new.store, new.refused) == ("new", "placed-calls", False)
    assert "answers of calls that are not used after 86400000 ms. It begins empty, as it should." in new.sentence
    assert "backfill" not in new.sentence
    changed, _ = verdicts(called(), called(ttl=60))
    assert (changed.change, changed.refused) == ("other terms", False)
    assert "now answers of calls that are not used after 60000 ms, also for stored answers." in changed.sentence
    assert [each.change for each in verdicts(called(), called(durable=False))] == ["same", "removed"]
    assert verdicts(called(), called())[0] == same("placed-calls")
