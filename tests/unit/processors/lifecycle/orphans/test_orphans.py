"""Finds resources without an owner. It gets the existing resources and the registered processors as data."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.processors.engine.changelog.names import filling_topic, shadow_group
from holdfast.processors.lifecycle.orphans.owned import Found, Known, Owner, Signed, StateEntry, find_orphans, in_use
from holdfast.processors.lifecycle.plans.facts.orphans import Orphan

FLEET = Owner(
    "fleet",
    frozenset({"counts"}),
    frozenset({"fleet-counts-changelog"}),
    frozenset({"0"}),
    frozenset({"flights-0", "flights-1"}),
)
SHADOW, FILLING = shadow_group("fleet", "counts"), filling_topic("fleet", "counts")


def known(**other: Any) -> Known:
    return Known(**{"owners": (FLEET,), "names": frozenset({"fleet", "gone"}), **other})


def names(found: Found, **other: Any) -> list[str]:
    return [each.name for each in find_orphans(known(**other), found)]


def entry(name: str, group: str = "fleet", slot: str = "0", *, in_use: bool = False) -> StateEntry:
    return StateEntry(group, slot, name, f"/state/{group}/{slot}/{name}", 10, in_use)


def test_what_is_registered_or_was_never_ours_has_an_owner() -> None:
    found = Found(
        topics=("fleet-counts-changelog", "fleet-orders", "flights", "streams-app-store-changelog", "gone-out"),
        groups=("fleet", "console-consumer-17"),
        state=(entry("flights-0"), entry("lock"), entry("identity.json"), entry("id")),
        checkpoints={("fleet", ""): 5, ("fleet", "flights-1"): 5},
        tables=(
            "holdfast.fleet.counts",
            "holdfast.fleet.counts_history",
            "holdfast.fleet._snapshots",
            "holdfast.hr.pay",
        ),
    )
    assert find_orphans(known(), found) == ()


def test_what_a_dropped_store_and_a_processor_that_is_gone_left_is_found_with_its_reason() -> None:
    found = Found(
        topics=("fleet-old-changelog", "gone-counts-changelog"),
        groups=("gone",),
        state=(entry("others-0"), entry("flights-0", "gone")),
        checkpoints={("fleet", "others-0"): 7, ("gone", ""): 5},
        tables=("holdfast.fleet.old", "holdfast.gone.counts"),
    )
    assert {(each.kind, each.name): each.why for each in find_orphans(known(), found)} == {
        ("topic", "fleet-old-changelog"): "no store of fleet has this changelog",
        ("topic", "gone-counts-changelog"): "gone is neither defined nor deployed",
        ("group", "gone"): "gone is neither defined nor deployed",
        ("state", "/state/fleet/0/others-0"): "fleet has no such task",
        ("state", "/state/gone/0/flights-0"): "gone is neither defined nor deployed",
        ("checkpoint", "fleet/others-0"): "fleet has no such task",
        ("checkpoint", "gone"): "gone is neither defined nor deployed",
        ("table", "holdfast.fleet.old"): "no store of fleet has this table",
        ("table", "holdfast.gone.counts"): "gone is neither defined nor deployed",
    }


def test_state_that_was_set_aside_and_a_slot_that_is_no_more_are_found() -> None:
    aside, slot = entry("flights-0.corrupt"), entry("flights-1", slot="7")
    found = find_orphans(known(), Found(state=(aside, slot)))
    assert {each.name: each.why for each in found} == {
        aside.path: "it was set aside, and flights-0 does not need it",
        slot.path: "fleet has no slot 7",
    }


def test_what_a_live_process_has_is_no_orphan() -> None:
    in_use = (entry("flights-0", "gone", in_use=True), entry("flights-1", slot="7", in_use=True))
    assert names(Found(state=in_use)) == []


LEFT = Found(
    topics=(f"{SHADOW}-counts-changelog", FILLING),
    groups=(SHADOW,),
    state=(entry("flights-0", SHADOW),),
)


def test_what_a_backfill_left_is_found_once_no_apply_is_open() -> None:
    assert names(LEFT, names=frozenset({"fleet", SHADOW})) == [
        SHADOW,
        f"/state/{SHADOW}/0/flights-0",
        FILLING,
        f"{SHADOW}-counts-changelog",
    ]
    assert names(LEFT, names=frozenset({"fleet", SHADOW}), busy=frozenset({"fleet"})) == []


def test_a_definition_that_cannot_be_imported_may_own_what_nobody_else_does() -> None:
    found = Found(topics=("gone-counts-changelog", "fleet-old-changelog"), groups=("gone",))
    assert names(found, doubtful=True) == ["fleet-old-changelog"]


@pytest.mark.parametrize("longer", ["fleet-old", "fleet-old-changelog"])
def test_a_longer_name_is_not_taken_for_a_store_of_a_shorter_one(longer: str) -> None:
    owner = Owner(longer, frozenset({"counts"}), frozenset({f"{longer}-counts-changelog"}))
    found = Found(topics=(f"{longer}-counts-changelog",), groups=(longer,))
    assert find_orphans(known(owners=(FLEET, owner)), found) == ()


def test_where_the_stores_of_a_deployed_processor_are_not_known_all_are_owned() -> None:
    vague = Owner("fleet", frozenset(), frozenset(), vague=True)
    found = Found(topics=("fleet-old-changelog",), groups=("fleet",), tables=("holdfast.fleet.old",))
    assert find_orphans(known(owners=(vague,)), found) == ()


def test_what_a_processor_left_that_is_gone_is_told_from_what_a_registered_one_dropped() -> None:
    found = find_orphans(known(), Found(topics=("fleet-old-changelog", "gone-counts-changelog")))
    assert {each.name: each.forsaken for each in found} == {
        "fleet-old-changelog": False,
        "gone-counts-changelog": True,
    }


def test_where_slots_and_tasks_are_not_known_all_are_owned() -> None:
    vague = Owner("fleet", frozenset(), frozenset())
    found = Found(state=(entry("anything", slot="9"),), checkpoints={("fleet", "anything"): 1})
    assert find_orphans(known(owners=(vague,)), found) == ()


TOTALS = "orders-eu-totals-changelog"


@pytest.mark.parametrize(
    ("writers", "expected"),
    [
        ((), [("orders", True)]),
        (("orders",), [("orders", False)]),
        (("orders-eu",), []),
        (("orders", "orders-eu"), []),
        (("orders--rebuild-eu-totals",), [("orders", False)]),
    ],
)
def test_the_records_of_a_changelog_say_whose_it_is(writers: tuple[str, ...], expected: list[tuple[str, bool]]) -> None:
    """The records of a changelog name the processor that wrote them. This name decides who owns the topic.

    Another installation runs ``orders-eu``. This installation had a processor ``orders``, and does not know
    ``orders-eu``.
    """
    found = Found(topics=(TOTALS,), signed={TOTALS: Signed(frozenset(writers))})
    orphans = find_orphans(known(owners=(), names=frozenset({"orders"})), found)
    assert [(each.processor, each.unsigned) for each in orphans] == expected


def test_a_changelog_belongs_to_the_processor_that_its_records_name_and_not_to_a_longer_name() -> None:
    found = Found(topics=(TOTALS,), signed={TOTALS: Signed(frozenset({"orders"}))})
    vague = Owner("orders", frozenset(), frozenset(), vague=True)
    assert find_orphans(known(owners=(vague,), names=frozenset({"orders-eu"})), found) == ()
    both = known(owners=(), names=frozenset({"orders", "orders-eu"}), busy=frozenset({"orders"}))
    assert find_orphans(both, found) == ()


def test_a_live_group_keeps_the_topics_that_it_reads_or_that_bear_its_name() -> None:
    orphan = Orphan("topic", TOTALS, "orders", "-")
    free: dict[str, frozenset[str]] = {"orders": frozenset({"placed"}), "orders-e": frozenset(), "billing": frozenset()}
    assert in_use(orphan, free) == ""
    assert "group orders-eu has members" in in_use(orphan, {**free, "orders-eu": frozenset()})
    assert "group billing reads it" in in_use(orphan, {**free, "billing": frozenset({TOTALS})})
    assert in_use(Orphan("group", "orders", "orders", "-"), {"orders-eu": frozenset()}) == ""


def test_members_of_a_processor_that_is_not_deployed_here_run_elsewhere() -> None:
    stopped = Owner("orders", frozenset({"a"}), frozenset({"orders-a-changelog"}), deployed=False)
    (orphan,) = find_orphans(known(owners=(stopped,)), Found(topics=("orders-b-changelog",)))
    assert orphan.forsaken
