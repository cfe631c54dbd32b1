"""Repair plans after an audit, which compares a store, its changelog and its table.

For each way in which these copies can differ, a plan has operator commands in an order that loses no data.
"""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from holdfast.orchestration.cli import app
from holdfast.processors.audits.comparison import Moment, Odd, Place, Side
from holdfast.processors.audits.repair import Subject, repair_plan
from holdfast.processors.audits.tables import subject_of
from holdfast.processors.engine.state.buckets import BucketPrints

SUBJECT: Subject = subject_of("fleet", "aircraft", "fleet-aircraft-changelog")
ALL_SIDES = tuple(Side)


def moment(odd: dict[Odd, int], partition: int = 0, sides: tuple[Side, ...] = ALL_SIDES) -> Moment:
    return Moment(partition, Place("id", 10), {side: BucketPrints() for side in sides}, odd)


def plan(*moments: Moment) -> str:
    return "\n".join(repair_plan(SUBJECT, moments))


def test_nothing_is_to_be_mended_where_nothing_differs() -> None:
    assert repair_plan(SUBJECT, [moment({}), moment({}, 1)]) == ()


@pytest.mark.parametrize(
    ("odd", "said", "unsaid"),
    [
        (Odd.STORE, "holdfast apply restore fleet --partition 3 --from changelog", "--from local"),
        (Odd.CHANGELOG, "holdfast apply backfill fleet --store aircraft --from local", "apply restore"),
        (Odd.WAREHOUSE, "materialise warehouse/fleet/aircraft_snapshot", "apply"),
        (Odd.ALL, "holdfast apply backfill fleet --store aircraft --from topic", "apply restore"),
        (Odd.STORE_CHANGELOG, "holdfast apply restore fleet --partition 3 --from changelog", "materialise"),
        (Odd.CHANGELOG_WAREHOUSE, "materialise warehouse/fleet/aircraft_snapshot", "apply"),
        (Odd.STORE_WAREHOUSE, "materialise warehouse/fleet/aircraft_snapshot", "apply"),
    ],
)
def test_each_of_the_seven_ways_has_its_verbs(odd: Odd, said: str, unsaid: str) -> None:
    found = plan(moment({odd: 5}, 3))
    assert found.startswith("5 keys of partition 3: ")
    assert said in found
    assert unsaid not in found
    assert "`holdfast audit fleet --store aircraft --warehouse`" in found


def test_a_wrong_changelog_is_mended_before_anybody_restores_from_it() -> None:
    found = repair_plan(SUBJECT, [moment({Odd.STORE: 1}), moment({Odd.CHANGELOG: 1, Odd.WAREHOUSE: 2}, 1)])
    assert ["the changelog is wrong" in found[0], "the store is wrong" in found[1]] == [True, True]
    assert "the warehouse is wrong" in found[2]


def test_a_table_that_differs_is_wrong_only_where_store_and_changelog_were_proved() -> None:
    two = (Side.STORE, Side.CHANGELOG)
    earlier = moment({Odd.CHANGELOG_WAREHOUSE: 1}, 1, (Side.CHANGELOG, Side.WAREHOUSE))
    assert "the warehouse is wrong" in plan(moment({}, 1, two), earlier)
    assert "were not compared, or differ" in plan(moment({}, 0, two), earlier)
    assert "were not compared, or differ" in plan(moment({Odd.STORE_CHANGELOG: 1}, 1, two), earlier)


def test_every_command_that_is_named_is_one_that_the_command_line_knows() -> None:
    text = plan(*(moment({odd: 1}, number) for number, odd in enumerate(Odd)))
    commands = set(re.findall(r"`(holdfast [^`]+)`", text))
    assert len(commands) > 5
    for command in commands:
        words = shlex.split(command)[1:]
        group = typer.main.get_command(app)
        while words and hasattr(group, "commands"):
            group = group.commands[words.pop(0)]
        group.make_context("holdfast", words)


def test_the_table_is_not_asked_twice() -> None:
    two = plan(moment({Odd.STORE_CHANGELOG: 1}, 0, (Side.STORE, Side.CHANGELOG)))
    assert "if there is a table, compare it, too: `holdfast audit fleet --store aircraft --warehouse`" in two
    assert "`holdfast apply clear fleet --store aircraft --key KEY`, then `holdfast apply backfill" in two
    assert two.endswith("Then audit again: `holdfast audit fleet --store aircraft`.")
    asked = plan(
        moment({Odd.STORE_CHANGELOG: 1}, 0, (Side.STORE, Side.CHANGELOG)),
        moment({}, 0, (Side.CHANGELOG, Side.WAREHOUSE)),
    )
    assert "is at other offsets, so it can't show which copy is wrong" in asked
    assert asked.count("--warehouse") == 1
