"""Orphans on a real broker: archived, kept for their grace, deleted, and a topic put back with every record."""

from __future__ import annotations

import csv
import fcntl
import json
import os
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.orphans.archive import ArchiveBusy
from holdfast.processors.lifecycle.orphans.cleaning import OrphanOwned, said_of
from holdfast.processors.lifecycle.orphans.plan import OrphanPlan
from holdfast.processors.lifecycle.orphans.put_back import NotArchived, TopicThere, put_back
from holdfast.processors.lifecycle.plans.apply import NotConfirmed, PlanStale
from tests.kafka.orphans.leaving import ALL, CONFIG, Left, same


def test_archived_then_kept_then_deleted_and_the_topic_comes_back_as_it_was(left: Left) -> None:
    records = left.read()
    assert sum(map(len, records.values())) == 202
    assert left.steps() == [("Archive", kind) for kind in ("group", "topic", "checkpoint", "state")]
    left.apply()
    assert left.kinds() == ALL, "archiving changes nothing of the originals"
    assert same(left.read(), records)

    left.now += timedelta(days=6, hours=23)
    plan = left.cleaning.plan()
    assert plan.steps == ()
    assert len(plan.waiting) == 4
    assert left.cleaning.apply(plan.hash) == ()
    assert left.kinds() == ALL
    assert {said_of(each) for each in left.cleaning.survey().listed} == {
        "archived 2026-11-22 06:00 UTC, can be deleted from 2026-11-29 06:00 UTC"
    }

    left.now += timedelta(hours=1)
    assert left.steps() == [("Delete", kind) for kind in ("group", "topic", "checkpoint", "state")]
    with pytest.raises(NotConfirmed):
        left.cleaning.apply("")
    with pytest.raises(PlanStale, match="Nothing was done"):
        left.cleaning.apply("0" * 12)
    left.apply()
    assert left.kinds() == []
    assert left.topics.describe([left.topic]) == {}
    assert left.group not in left.topics.listed()[1]
    assert not left.state.exists()
    assert not left.settings.paths.checkpoints(left.group).exists()
    assert [(each.verb, each.outcome) for each in left.registry.actions()] == [("clean orphans", "done")] * 2

    assert "202 records in 2 partition(s)" in put_back(left.archive, left.topics, left.topic)
    assert same(left.read(), records)
    facts = left.topics.describe([left.topic])[left.topic]
    assert (facts.partitions, facts.config["retention.ms"]) == (2, "-1")
    assert facts.config["max.message.bytes"] == CONFIG["max.message.bytes"]
    with pytest.raises(TopicThere):
        put_back(left.archive, left.topics, left.topic)
    with pytest.raises(NotArchived):
        put_back(left.archive, left.topics, "never-there")
    assert left.steps() == [("Archive", "topic")], "it is another topic now, whose grace begins anew"


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


def test_what_changed_since_it_was_archived_is_archived_anew(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    left.write([(0, b"k", b"one more")])
    (left.state / "CURRENT").write_bytes(b"MANIFEST-2")
    assert sorted(left.steps()) == [
        ("Archive", "state"),
        ("Archive", "topic"),
        ("Delete", "checkpoint"),
        ("Delete", "group"),
    ]
    left.apply()
    assert left.kinds() == ["state", "topic"]
    assert left.cleaning.plan().steps == ()
    copies, _ = left.archive.newest()
    assert copies["topic", left.topic].manifest.about["records"]["0"] == 102


def test_a_plan_is_stale_once_a_fact_of_it_is(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.cleaning.plan(["topic"])
    left.write([(0, b"k", b"one more")])
    with pytest.raises(PlanStale):
        left.cleaning.apply(plan.hash, ["topic"])
    assert left.topics.describe([left.topic])


def test_what_somebody_has_is_left_alone(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.cleaning.plan(["state"])
    member = Consumer({"bootstrap.servers": left.topics.bootstrap, "group.id": left.group})
    member.subscribe([left.topic])
    lock = os.open(left.state.parent / "lock", os.O_RDWR | os.O_CREAT)
    try:
        while not left.topics.members(left.group):
            member.poll(0.1)
        found = left.cleaning.plan()
        assert found.steps == ()
        assert len(found.blocked) == 4
        assert all("runs: its group has 1 member" in sentence for sentence in found.blocked)
        assert [step.kind for step in plan.steps] == ["state"]
        with pytest.raises(PlanStale):
            left.cleaning.apply(plan.hash, ["state"])
        member.close()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(HoldfastError, match="is held by the live process"):
            left.cleaning.apply(plan.hash, ["state"])
        assert (left.state / "CURRENT").exists()
    finally:
        os.close(lock)
    with left.archive.held(), pytest.raises(ArchiveBusy):
        left.cleaning.apply(plan.hash, ["state"])
    left.cleaning.apply(plan.hash, ["state"])
    assert not left.state.exists()


def test_what_got_an_owner_meanwhile_is_not_deleted(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.cleaning.plan(["topic"])
    cleaning = left.cleaning
    planned = cleaning.plan

    def then_deployed(only: Any = ()) -> OrphanPlan:
        found = planned(only)
        left.registry.record_deployment(left.group, "1", ("0",), left.now)
        return found

    monkeypatch.setattr(cleaning, "plan", then_deployed)
    with pytest.raises(OrphanOwned, match="has an owner again"):
        cleaning.apply(plan.hash, ["topic"])
    assert left.topics.describe([left.topic])
