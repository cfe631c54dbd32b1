"""The next step for an orphan (a resource without an owner), case by case and as properties.

Tests only the decisions.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.orphans import (
    Archived,
    Deletion,
    Kind,
    Look,
    Manifest,
    Orphan,
    OrphanFacts,
    Subject,
)
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Clean, PutBack
from holdfast.processors.lifecycle.plans.stages import ArchiveOrphan, DeleteOrphan
from holdfast.processors.lifecycle.verbs import clean, put_back
from holdfast.processors.lifecycle.verbs.clean import next_step, state_of

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
    return Subject(orphan, Look(facts, blocked), archived)


BEGUN = Deletion(begun_at=YESTERDAY, who="me")
ENDED = Deletion(begun_at=YESTERDAY, who="me", ended_at=YESTERDAY)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (subject(), "archive"),
        (subject(archived=copied()), "delete"),
        (subject(archived=copied(YESTERDAY)), "wait"),
        (subject(archived=copied(NOW + GRACE)), "wait"),  # archived in the future, because the clock was set back
        (subject(archived=copied(NOW - GRACE)), "delete"),
        (subject(OTHER, copied()), "archive again"),
        (subject(OTHER, copied(YESTERDAY)), "archive again"),
        (subject(None), "gone"),
        (subject(None, copied()), "gone"),
        (subject(archived=copied(), blocked="it has 1 member."), "blocked"),
        (subject(blocked="it has 1 member."), "blocked"),
        (subject(archived=copied(deletion=BEGUN)), "delete"),
        (subject(None, copied(deletion=BEGUN)), "finish"),
        (subject(OTHER, copied(deletion=BEGUN)), "finish"),
        (subject(archived=copied(deletion=BEGUN), blocked="a process has it."), "blocked"),
        # The deletion has ended, so this is a new resource, even if it looks the same as the deleted one.
        (subject(archived=copied(deletion=ENDED)), "archive again"),
    ],
)
def test_each_case_has_its_next_step(given_: Subject, expected: str) -> None:
    assert next_step(given_, facts_of(given_)) == expected


def facts_of(*subjects: Subject, grace: timedelta = GRACE) -> OrphanFacts:
    return OrphanFacts(NOW, grace, subjects)


def test_what_changed_is_archived_again_and_what_waits_says_until_when() -> None:
    (again,) = plan_of(subject(OTHER, copied())).stages
    assert isinstance(again, ArchiveOrphan)
    assert again.facts == OTHER
    assert "its grace period starts again" in again.says
    waits = subject(archived=copied(YESTERDAY))
    assert state_of(waits, facts_of(waits)).endswith("can be deleted from 2026-11-28 06:00 UTC")


facts = st.sampled_from([None, FACTS, OTHER])
ages = st.floats(min_value=-30, max_value=30).map(lambda days: NOW - timedelta(days=days))
copies = st.none() | st.builds(copied, ages, st.sampled_from([FACTS, OTHER]), st.sampled_from([None, BEGUN, ENDED]))
subjects = st.builds(subject, facts, copies, st.sampled_from(["", "it is in use."]))


@given(subjects, st.floats(min_value=0, max_value=20))
def test_deleted_is_only_what_is_archived_unchanged_free_and_old_enough(given_: Subject, days: float) -> None:
    grace = timedelta(days=days)
    if next_step(given_, facts_of(given_, grace=grace)) == "delete":
        copy = given_.archived
        assert copy is not None
        assert not given_.look.blocked
        assert given_.look.facts is not None
        assert given_.look.facts == copy.manifest.facts
        assert copy.manifest.archived_at + grace <= NOW
        assert not copy.original_deleted


@given(subjects)
def test_a_deletion_is_finished_only_where_one_was_begun_and_not_ended(given_: Subject) -> None:
    if next_step(given_, facts_of(given_)) == "finish":
        assert given_.archived is not None
        assert given_.archived.half_deleted


def plan_of(*subjects: Subject, only: tuple[str, ...] = ()) -> Plan:
    return clean.plan(Clean(only), facts_of(*subjects))


def names(plan: Plan) -> list[str]:
    return [stage.name for stage in plan.stages if isinstance(stage, ArchiveOrphan | DeleteOrphan)]


def test_a_plan_deletes_before_it_archives_and_groups_before_their_topics() -> None:
    plan = plan_of(
        subject(name="new"),
        subject(archived=copied(), name="topic-1"),
        subject(archived=copied(kind="group"), kind="group", name="group-1"),
        subject(archived=copied(YESTERDAY), name="later"),
        subject(name="busy", blocked="it is in use."),
        subject(None, copied(deletion=BEGUN)),
    )
    assert [stage.says.partition(",")[0] for stage in plan.stages] == [
        "finish the deletion of topic old",
        "delete group group-1",
        "delete topic topic-1",
        "archive topic new: copy it into the archive",
    ]
    assert plan.destructive
    text = explain(plan)
    for said in (
        "clean this installation: archive 1 orphan and delete 3 orphans. This deletes data permanently.",
        "topic later: -; archived 2026-11-21 06:00 UTC, can be deleted from 2026-11-28",
        "topic busy: -; not touched: it is in use.",
        "group group-1; its archived copy stays",
    ):
        assert said in text


def test_a_plan_without_work_says_what_waits() -> None:
    plan = plan_of(subject(archived=copied(YESTERDAY)))
    assert plan.verdict == NothingToDo("No orphan is due.")
    assert "can be deleted from" in explain(plan)


def test_the_hash_is_of_the_steps_and_their_facts() -> None:
    plan = plan_of(subject(archived=copied()))
    assert plan.hash == plan_of(subject(archived=copied(), size_bytes=7), subject(None, name="gone")).hash
    assert plan.hash == plans.decode(plans.encode(plan)).hash
    assert plan.hash != plan_of(subject(OTHER, copied(facts=OTHER))).hash
    assert plan.hash != plan_of(subject()).hash


def test_a_stale_plan_names_what_changed() -> None:
    shown = plans.decode(plans.encode(plan_of(subject(archived=copied()))))
    changes = plans.what_changed(shown, plan_of(subject(OTHER, copied())))
    assert "orphan topic old next_step was delete, now archive again" in changes
    assert "orphan topic old ends 0 was 5, now 6" in changes


def test_single_ones_can_be_named_by_kind_name_or_both() -> None:
    everything = (subject(), subject(name="other"), subject(name="a-group", kind="group"))
    assert names(plan_of(*everything, only=("topic/other",))) == ["other"]
    assert names(plan_of(*everything, only=("group", "old"))) == ["a-group", "old"]
    refused = plan_of(*everything, only=("no-such",)).verdict
    assert isinstance(refused, Refused)
    assert "no-such names no orphan" in refused.sentence


def test_a_topic_whose_records_name_no_processor_is_archived_but_deleted_only_by_its_full_name() -> None:
    assert names(plan_of(subject(unsigned=True))) == ["old"]
    due = subject(archived=copied(), unsigned=True)
    for only in ((), ("topic",)):
        plan = plan_of(due, only=only)
        assert plan.stages == ()
        assert "its records name no processor, so only `--only topic/old` deletes it" in explain(plan)
    for word in ("old", "topic/old"):
        (stage,) = plan_of(due, only=(word,)).stages
        assert isinstance(stage, DeleteOrphan)
        assert stage.by_name
    (stage,) = plan_of(subject(archived=copied()), only=("topic",)).stages
    assert isinstance(stage, DeleteOrphan)
    assert not stage.by_name


def test_an_archive_among_the_orphans_is_refused() -> None:
    facts = OrphanFacts(NOW, GRACE, (subject(),), inside=Path("/data/state"))
    refused = clean.plan(Clean(), facts).verdict
    assert isinstance(refused, Refused)
    assert "/data/state, which is searched for orphans" in refused.sentence


def test_a_topic_is_put_back_from_a_copy_and_where_none_is() -> None:
    copy = copied()
    copy.manifest.about.update(partitions=2, records={"0": 3, "1": 4})
    plan = put_back.plan(PutBack("old"), copy, exists=False)
    assert [stage.says for stage in plan.stages] == ["create old with 2 partitions, and write 7 records"]
    assert not plan.destructive
    for refused in (
        put_back.plan(PutBack("old"), copy, exists=True),
        put_back.plan(PutBack("old"), None, exists=False),
    ):
        assert isinstance(refused.verdict, Refused)
