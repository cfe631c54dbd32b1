"""Orphans (resources without an owner) on a real broker are archived, kept for a grace period, and deleted.

An archived topic can be written back.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, Producer

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicSpec
from holdfast.orchestration.verbs import Verbs
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.lifecycle.orphans.archive import ArchiveBusy
from holdfast.processors.lifecycle.orphans.cleaning import OrphanOwned
from holdfast.processors.lifecycle.orphans.kinds import OrphanChanged, thing_of
from holdfast.processors.lifecycle.plans.apply import NotConfirmed, PlanRefused, PlanStale
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan
from holdfast.processors.lifecycle.plans.requests import Request
from holdfast.processors.lifecycle.plans.stages import DeleteOrphan
from holdfast.processors.lifecycle.verbs.clean import state_of
from tests.kafka.conftest import wait_for
from tests.kafka.orphans.leaving import ALL, CONFIG, Left, same, signed_by


def test_archived_then_kept_then_deleted_and_the_topic_comes_back_as_it_was(left: Left) -> None:
    records = left.read()
    assert sum(map(len, records.values())) == 202
    assert left.steps() == [("archive", kind) for kind in ("group", "topic", "checkpoint", "state")]
    left.apply()
    assert left.kinds() == ALL, "archiving changes nothing of the originals"
    assert same(left.read(), records)

    left.now += timedelta(days=6, hours=23)
    plan = left.apply()
    assert isinstance(plan.verdict, NothingToDo)
    assert len(plan.findings) == 4
    assert left.kinds() == ALL
    facts = left.verbs.orphans()
    assert {state_of(each, facts) for each in facts.subjects} == {
        "archived 2026-11-22 06:00 UTC, can be deleted from 2026-11-29 06:00 UTC"
    }

    left.now += timedelta(hours=1)
    assert left.steps() == [("delete", kind) for kind in ("group", "topic", "checkpoint", "state")]
    with pytest.raises(NotConfirmed):
        left.verbs.apply(left.plan())
    with pytest.raises(PlanStale, match="was not shown by this installation"):
        left.verbs.apply(left.plan(), confirmed="0" * 12)
    left.apply()
    assert left.kinds() == []
    assert left.topics.describe([left.topic]) == {}
    assert left.group not in left.topics.listed()[1]
    assert not left.state.exists()
    assert not left.settings.paths.checkpoints(left.group).exists()
    assert [(each.verb, each.outcome) for each in left.verbs.applies()] == [("clean", "done")] * 2

    assert "202 records in 2 partition(s)" in left.put_back()
    assert same(left.read(), records)
    facts = left.topics.describe([left.topic])[left.topic]
    assert (facts.partitions, facts.config["retention.ms"]) == (2, "-1")
    assert facts.config["max.message.bytes"] == CONFIG["max.message.bytes"]
    with pytest.raises(PlanRefused, match="exists; its records would mix"):
        left.put_back()
    with pytest.raises(PlanRefused, match="has no copy of topic never-there"):
        left.put_back("never-there")
    assert left.steps() == [("archive", "topic")], "another topic has this name now, so its grace period starts again"


def test_what_is_in_the_archive_is_of_use_without_holdfast(left: Left) -> None:
    left.apply()
    copies, unread = left.archive.newest()
    assert not unread
    offsets = copies["group", left.group].folder / "offsets.csv"
    with offsets.open(newline="") as file:
        assert list(csv.reader(file)) == [[left.topic, "0", "17"], [left.topic, "1", "4"]]
    state = copies["state", str(left.state)]
    assert (state.folder / "in-0" / "CURRENT").read_bytes() == b"MANIFEST-1"
    assert state.manifest.files == {"in-0/000004.sst": 5000, "in-0/CURRENT": 10}
    manifest = json.loads((copies["topic", left.topic].folder / "manifest.json").read_text())
    assert manifest["about"]["config"] == CONFIG
    assert manifest["about"]["records"] == {"0": 101, "1": 101}
    assert manifest["facts"]["ends"] == {"0": 101, "1": 101}


@pytest.mark.thorough
def test_what_changed_since_it_was_archived_is_archived_anew(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    left.write([(0, b"k", b"one more")])
    (left.state / "CURRENT").write_bytes(b"MANIFEST-2")
    assert sorted(left.steps()) == [
        ("archive", "state"),
        ("archive", "topic"),
        ("delete", "checkpoint"),
        ("delete", "group"),
    ]
    left.apply()
    assert left.kinds() == ["state", "topic"]
    assert left.steps() == []
    copies, _ = left.archive.newest()
    assert copies["topic", left.topic].manifest.about["records"]["0"] == 102


def test_a_plan_is_stale_once_a_fact_of_it_is(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.plan("topic")
    left.write([(0, b"k", b"one more")])
    with pytest.raises(PlanStale, match="next_step was delete, now archive again"):
        left.apply(plan)
    assert left.topics.describe([left.topic])


def test_what_somebody_has_is_left_alone(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.plan("state")
    member = Consumer({"bootstrap.servers": left.topics.bootstrap, "group.id": left.group})
    member.subscribe([left.topic])
    lock = os.open(left.state.parent / "lock", os.O_RDWR | os.O_CREAT)
    try:
        while not left.topics.members(left.group):
            member.poll(0.1)
        found = left.plan()
        assert found.stages == ()
        assert len(found.findings) == 4
        assert all("runs: its group has 1 member" in sentence for sentence in found.findings)
        with pytest.raises(PlanStale):
            left.apply(plan)
        member.close()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(HoldfastError, match="is held by the live process"):
            left.apply(plan)
        assert (left.state / "CURRENT").exists()
    finally:
        os.close(lock)
    with left.archive.held(), pytest.raises(ArchiveBusy):
        left.apply(plan)
    left.apply(plan)
    assert not left.state.exists()


def test_what_got_an_owner_meanwhile_is_not_deleted(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.plan("topic")
    planned = Verbs.plan

    def then_deployed(verbs: Verbs, request: Request) -> Plan:
        found = planned(verbs, request)
        left.registry.record_deployment(left.group, "1", ("0",), left.now)
        return found

    monkeypatch.setattr(Verbs, "plan", then_deployed)
    with pytest.raises(OrphanOwned, match="has an owner again"):
        left.verbs.apply(plan, confirmed=plan.hash)
    assert left.topics.describe([left.topic])
    assert left.verbs.applies()[0].outcome == "failed", "the next plan is made anew"


def test_what_is_gone_between_plan_and_stage_is_done(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """The apply (the execution of a plan) succeeds although a resource was already gone.

    After the plan was made, another process deleted a topic, offsets or a folder that the plan would delete.
    """
    left.apply()
    left.now += timedelta(days=8)
    plan = left.plan()
    planned = Verbs.plan

    def then_gone(verbs: Verbs, request: Request) -> Plan:
        found = planned(verbs, request)
        left.topics.delete_group(left.group)
        left.topics.delete(left.topic)
        shutil.rmtree(left.state)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Verbs, "plan", then_gone)
        done = left.verbs.apply(plan, confirmed=plan.hash)
    for title in (f"group {left.group}", f"topic {left.topic}", f"state {left.state}"):
        assert f"{title} is gone" in done.text
    assert left.kinds() == []


def test_the_changelogs_of_another_installation_are_not_deleted(left: Left) -> None:
    """The other installation's group is ``<group>-eu``.

    So the name pattern of the removed processor also matches the changelogs of the other installation.
    """
    signed, older = (f"{left.group}-eu-{store}-changelog" for store in ("totals", "seen"))
    for topic, writer in ((signed, f"{left.group}-eu"), (older, "")):
        left.topics.create(TopicSpec(topic, 2, 1))
        producer = Producer({"bootstrap.servers": left.topics.bootstrap})
        producer.produce(topic, signed_by(writer), META_KEY, 1)
        assert producer.flush(30) == 0
    left.apply(left.plan("topic"))
    left.now += timedelta(days=8)
    assert {each.orphan.name for each in left.verbs.orphans().subjects if each.orphan.kind == "topic"} == {
        left.topic,
        older,
    }, "the records of the other name their processor"

    named = left.plan(f"topic/{older}")
    assert [type(stage) for stage in named.stages] == [DeleteOrphan]
    settings = {"bootstrap.servers": left.topics.bootstrap, "group.id": f"{left.group}-eu"}
    member = Consumer({**settings, "auto.offset.reset": "earliest"})
    member.subscribe([signed])
    try:
        wait_for(lambda: member.poll(0.1) or left.topics.members(f"{left.group}-eu"), "the other group is live")
        found = left.plan(f"topic/{older}")
        assert found.stages == ()
        assert f"group {left.group}-eu has members, and the topic may be its changelog" in found.findings[0]
        with pytest.raises(PlanStale):
            left.apply(named)
        cleaning = left.verbs._orphans()
        with pytest.raises(OrphanChanged, match="may be its changelog"):
            cleaning(named.stages[0])
    finally:
        member.close()
    wait_for(lambda: not left.topics.members(f"{left.group}-eu"), "the other group is empty")

    left.apply(left.plan("topic"))
    assert not left.topics.describe([left.topic])
    assert len(left.topics.describe([signed, older])) == 2, "records that name no processor: only by the full name"
    left.apply(left.plan(f"topic/{older}"))
    assert set(left.topics.describe([signed, older])) == {signed}


def test_a_topic_that_is_read_or_written_now_is_left_alone(left: Left) -> None:
    reader = Consumer({"bootstrap.servers": left.topics.bootstrap, "group.id": f"reads-{left.group}"})
    reader.subscribe([left.topic])
    try:
        wait_for(lambda: reader.poll(0.1) or reader.assignment(), "it reads")
        (finding,) = left.plan("topic").findings
        assert f"group reads-{left.group} reads it" in finding
    finally:
        reader.close()
    wait_for(lambda: not left.topics.live_groups().get(f"reads-{left.group}"), "it reads no more")
    (subject,) = (each for each in left.verbs.orphans().subjects if each.orphan.kind == "topic")
    assert not subject.look.blocked
    left.write([(0, b"k", b"one more")])
    thing = thing_of("topic", left.topic, left.settings, left.topics)
    assert "its end moved between two looks" in thing.look(subject.orphan).blocked
