"""What becomes of an orphan: a pure decision, case by case and in general."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.lifecycle.orphans.archive import Archived, Deletion, Manifest
from holdfast.processors.lifecycle.orphans.owned import Kind, Orphan
from holdfast.processors.lifecycle.orphans.plan import (
    Archive,
    Blocked,
    Delete,
    Finish,
    Gone,
    OrphanUnknown,
    Subject,
    Wait,
    decide,
    explain,
    is_within,
    make_plan,
)

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
GRACE = timedelta(days=7)
FACTS: dict[str, Any] = {"topic_id": "a", "ends": {"0": 5}}
OTHER: dict[str, Any] = {"topic_id": "a", "ends": {"0": 6}}
LONG_AGO, YESTERDAY = NOW - 2 * GRACE, NOW - timedelta(days=1)


def copied(
    at: datetime = LONG_AGO, facts: dict[str, Any] = FACTS, deletion: Deletion | None = None, *, kind: Kind = "topic"
) -> Archived:
    manifest = Manifest(
        kind=kind, name="old", processor="gone", why="-", archived_at=at, who="me", facts=facts, about={}, files={}
    )
    return Archived(Path("/archive/topic/old/1"), manifest, deletion)


def subject(
    facts: dict[str, Any] | None = FACTS, archived: Archived | None = None, blocked: str = "", **named: Any
) -> Subject:
    orphan = Orphan(**{"kind": "topic", "name": "old", "processor": "gone", "why": "-", **named})
    return Subject(orphan, facts, blocked, "", archived)


BEGUN = Deletion(begun_at=YESTERDAY, who="me")
ENDED = Deletion(begun_at=YESTERDAY, who="me", ended_at=YESTERDAY)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (subject(), Archive),
        (subject(archived=copied()), Delete),
        (subject(archived=copied(YESTERDAY)), Wait),
        (subject(archived=copied(NOW + GRACE)), Wait),  # a clock that went back
        (subject(archived=copied(NOW - GRACE)), Delete),
        (subject(OTHER, copied()), Archive),
        (subject(OTHER, copied(YESTERDAY)), Archive),
        (subject(None), Gone),
        (subject(None, copied()), Gone),
        (subject(archived=copied(), blocked="it has 1 member."), Blocked),
        (subject(blocked="it has 1 member."), Blocked),
        (subject(archived=copied(deletion=BEGUN)), Delete),
        (subject(None, copied(deletion=BEGUN)), Finish),
        (subject(OTHER, copied(deletion=BEGUN)), Finish),
        (subject(archived=copied(deletion=BEGUN), blocked="a process has it."), Blocked),
        (subject(archived=copied(deletion=ENDED)), Archive),  # it came back, however alike it is
    ],
)
def test_each_case_has_its_decision(given_: Subject, expected: type[object]) -> None:
    assert isinstance(decide(given_, NOW, GRACE), expected)


def test_what_changed_is_archived_again_and_what_waits_says_until_when() -> None:
    again = decide(subject(OTHER, copied()), NOW, GRACE)
    assert isinstance(again, Archive)
    assert (again.again, again.facts) == (True, OTHER)
    assert "its grace period starts again" in again.says
    assert decide(subject(archived=copied(YESTERDAY)), NOW, GRACE) == Wait(YESTERDAY + GRACE)


facts = st.sampled_from([None, FACTS, OTHER])
ages = st.floats(min_value=-30, max_value=30).map(lambda days: NOW - timedelta(days=days))
copies = st.none() | st.builds(copied, ages, st.sampled_from([FACTS, OTHER]), st.sampled_from([None, BEGUN, ENDED]))
subjects = st.builds(subject, facts, copies, st.sampled_from(["", "it is in use."]))


@given(subjects, st.floats(min_value=0, max_value=20))
def test_deleted_is_only_what_is_archived_unchanged_free_and_old_enough(given_: Subject, days: float) -> None:
    grace = timedelta(days=days)
    if isinstance(decide(given_, NOW, grace), Delete):
        copy = given_.archived
        assert copy is not None
        assert not given_.blocked
        assert given_.facts is not None
        assert given_.facts == copy.manifest.facts
        assert copy.manifest.archived_at + grace <= NOW
        assert not copy.original_deleted


@given(subjects)
def test_a_deletion_is_finished_only_where_one_was_begun_and_not_ended(given_: Subject) -> None:
    if isinstance(decide(given_, NOW, GRACE), Finish):
        assert given_.archived is not None
        assert given_.archived.half_deleted


def plan_of(*subjects: Subject, broken_off: tuple[Archived, ...] = (), only: tuple[str, ...] = ()) -> Any:
    return make_plan(subjects, broken_off, NOW, GRACE, only)


def test_a_plan_deletes_before_it_archives_and_groups_before_their_topics() -> None:
    plan = plan_of(
        subject(name="new"),
        subject(archived=copied(), name="topic-1"),
        subject(archived=copied(kind="group"), kind="group", name="group-1"),
        subject(archived=copied(YESTERDAY), name="later"),
        subject(name="busy", blocked="it is in use."),
        broken_off=(copied(deletion=BEGUN),),
    )
    assert [(type(step), step.name) for step in plan.steps] == [
        (Finish, "old"),
        (Delete, "group-1"),
        (Delete, "topic-1"),
        (Archive, "new"),
    ]
    assert plan.destructive
    assert len(plan.waiting) == len(plan.blocked) == 1
    text = explain(plan)
    for said in ("later is archived, and can be deleted from 2026-11-28", "busy is not touched: it is in use."):
        assert said in text


def test_the_hash_is_of_the_steps_and_their_facts() -> None:
    plan = plan_of(subject(archived=copied()))
    assert plan.hash == plan_of(subject(archived=copied(), size_bytes=7), subject(None, name="gone")).hash
    assert plan.hash != plan_of(subject(OTHER, copied(facts=OTHER))).hash
    assert plan.hash != plan_of(subject()).hash


def test_single_ones_can_be_named_by_kind_name_or_both() -> None:
    everything = (subject(), subject(name="other"), subject(name="a-group", kind="group"))
    assert [step.name for step in plan_of(*everything, only=("topic/other",)).steps] == ["other"]
    assert [step.name for step in plan_of(*everything, only=("group", "old")).steps] == ["a-group", "old"]
    with pytest.raises(OrphanUnknown, match="no-such names no orphan"):
        plan_of(*everything, only=("no-such",))


def test_what_is_left_of_a_confirmed_plan_is_within_it_and_nothing_more() -> None:
    confirmed = plan_of(subject(archived=copied()), subject(name="new")).steps
    delete, archive = confirmed
    finish = plan_of(subject(None, copied(deletion=BEGUN))).steps[0]
    assert all(is_within(step, confirmed) for step in (delete, archive, finish))
    assert not is_within(archive, [delete])
    assert not is_within(plan_of(subject(OTHER, name="new")).steps[0], confirmed)
    assert not is_within(plan_of(subject(archived=copied(), name="new")).steps[0], confirmed), "only to be archived"
