"""State is restored from the warehouse after each kind of loss.

Every message counts once, even if processes are killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import PROJECT, load_settings
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.lifecycle.plans.apply import PlanStale
from holdfast.processors.lifecycle.plans.holding import Hold
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Deploy, Restore, Stop
from holdfast.processors.lifecycle.plans.stages import MakeRelease, SetPositions
from holdfast.processors.lifecycle.rebuild.from_tables import PositionsUnset
from holdfast.processors.lifecycle.rebuild.table_rows import Loader, TableDamaged, TableUnfit
from holdfast.processors.snapshots.manifest import HISTORY, SnapshotManifest
from tests.mechanics.tiers import variants
from tests.parts.brokers import TrackedBroker
from tests.parts.operated import PARTITIONS, Killed, Operated, killing_at_stages
from tests.parts.warehouse_tables import take_snapshot

KEYS = 30


def snapshot(operated: Operated, **changes: Any) -> SnapshotManifest:
    manifests = [operated.client.checkpoint()]
    return take_snapshot(operated.settings.paths, manifests, operated.group, "counts", **changes)


def begun(operated: Operated) -> SnapshotManifest:
    """Run the processor with 25 messages of each key.

    Returns a snapshot that was taken after 20 messages of each key.
    """
    operated.bring_up()
    operated.feed(KEYS, 20)
    operated.processed(KEYS * 20)
    taken = snapshot(operated)
    operated.feed(KEYS, 5)
    operated.processed(KEYS * 25)
    return taken


def counted(each: int) -> dict[str, int]:
    return {f"key-{number}": each for number in range(KEYS)}


def wipe(operated: Operated) -> None:
    """Stop the processor and delete its changelog, group and state. Its input topics and its deployment stay."""
    operated.do(Stop(operated.group))
    operated.wait_for(lambda: operated.topics.members(operated.group) == 0, "the group is empty")
    operated.topics.delete(operated.changelog)
    operated.topics.delete_group(operated.group)
    shutil.rmtree(operated.settings.paths.state / operated.group)


def counts_on(operated: Operated) -> None:
    """Assert that every message was counted once, before and after new input. State must equal the changelog."""
    operated.processed(KEYS * 25)
    assert operated.logged() == counted(25)
    operated.feed(KEYS, 2)
    operated.processed(KEYS * 27)
    assert operated.logged() == counted(27)
    assert operated.verbs.audit(operated.group, ())[0].differences == ()


def restored(operated: Operated, **asked: Any) -> Any:
    return operated.do(Restore(operated.group, at=asked.pop("at", "latest"), **asked))


def refusal(operated: Operated, **asked: Any) -> Refused:
    verdict = operated.verbs.plan(Restore(operated.group, at=asked.pop("at", "latest"), **asked)).verdict
    assert isinstance(verdict, Refused), verdict
    return verdict


@pytest.mark.thorough
def test_a_running_processor_goes_back_to_a_point_in_time_and_counts_on_from_there(operated: Operated) -> None:
    taken = begun(operated)
    plan = operated.verbs.plan(Restore(operated.group, at=f"snap-{taken.snapshot_id}"))
    assert plan.destructive
    assert plan.keys == KEYS
    said = operated.verbs.explain(plan)
    again = f"{KEYS * 5} of them were processed before, and their outputs are published again to {operated.group}-out"
    assert again in said
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    assert "match their manifests" in done.text
    counts_on(operated)


def test_after_all_was_wiped_it_goes_on_as_if_nothing_had_happened(operated: Operated) -> None:
    begun(operated)
    wipe(operated)
    restored(operated)
    assert operated.logged() == counted(20)  # the processor was stopped before the restore, so it stays stopped
    operated.do(Deploy(operated.group))
    counts_on(operated)


@pytest.mark.thorough
def test_a_lost_changelog_comes_back_although_local_state_is_there(operated: Operated) -> None:
    taken = begun(operated)
    operated.do(Stop(operated.group))
    operated.topics.delete(operated.changelog)
    restored(operated, at=taken.snapshot_id)
    operated.do(Deploy(operated.group))
    counts_on(operated)


@pytest.mark.thorough
def test_content_alone_comes_back_where_input_stays(operated: Operated) -> None:
    taken = begun(operated)
    done = restored(operated, at=taken.snapshot_id, stores=("counts",), inputs="stay")
    assert "will lack the input between" in operated.verbs.explain(done.plan)
    assert operated.logged() == counted(20)
    operated.feed(KEYS, 1)
    operated.processed(KEYS * 26)
    operated.wait_for(lambda: operated.logged() == counted(21), "what came since is counted, and nothing twice")


def of_the_history(manifest: SnapshotManifest) -> SnapshotManifest:
    """The manifest of a table version with past state.

    It has no input offsets, because the history table does not record them.
    """
    parts = tuple(replace(part, inputs={}, sources={}) for part in manifest.partitions)
    return replace(manifest, source=HISTORY, partitions=parts)


@pytest.mark.parametrize("choice", variants(["content alone", "another snapshot", "newer inputs"], tested=0))
def test_a_version_without_input_offsets_is_refused_and_each_choice_that_is_named_works(
    operated: Operated, choice: str
) -> None:
    taken = begun(operated)
    made = snapshot(operated, changed=of_the_history)
    refused = refusal(operated, at=made.snapshot_id)
    assert f"Snapshot {made.snapshot_id}" in refused.sentence
    assert "has no input offset" in refused.sentence
    assert "published from the store after `--at`" in refused.action
    assert "`--store counts --input stay`" in refused.action
    assert "`--input earliest`" in refused.action
    if choice == "another snapshot":
        assert taken.snapshot_id in refused.action
        restored(operated, at=taken.snapshot_id)
    elif choice == "content alone":
        restored(operated, at=made.snapshot_id, stores=("counts",), inputs="stay")
    else:
        source = f"{operated.group}-in"
        wipe(operated)
        operated.topics.delete(source)
        operated.topics.create(TopicSpec(source, PARTITIONS, 1))
        restored(operated, at=made.snapshot_id, inputs="earliest")
        operated.do(Deploy(operated.group))
        operated.feed(KEYS, 2)
        operated.processed(KEYS * 2)
        assert operated.logged() == counted(27)
        return
    counts_on(operated)


@pytest.mark.thorough
def test_positions_are_not_kept_where_the_group_has_lost_one_since_the_plan(operated: Operated) -> None:
    taken = begun(operated)
    operated.do(Stop(operated.group))
    operated.wait_for(lambda: operated.topics.members(operated.group) == 0, "the group is empty")
    request = Restore(operated.group, at=taken.snapshot_id, stores=("counts",), inputs="stay")
    plan = operated.verbs.plan(request)
    sets = next(number for number, stage in enumerate(plan.stages, 1) if isinstance(stage, SetPositions))

    def strike(text: str) -> None:
        if text.startswith(f"stage {sets} of"):
            raise Killed(text)

    with pytest.raises(Killed):
        operated.verbs.apply(plan, confirmed=plan.hash, tell=strike)
    topic = f"{operated.group}-in"
    left = TopicPartition(topic, 0, operated.topics.end_offsets(topic, committed=True)[0])
    operated.topics.delete_group(operated.group)
    admin = AdminClient({"bootstrap.servers": operated.topics.bootstrap})
    for answer in admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(operated.group, [left])]).values():
        answer.result(30)
    record = operated.verbs.begun(request)
    assert record is not None
    with pytest.raises(PositionsUnset, match=rf"no committed offset of {topic}\[1\]"):
        operated.verbs.resume(record.id)
    operated.verbs.abandon(record.id, reason="an offset is gone")
    restored(operated)
    operated.do(Deploy(operated.group))
    counts_on(operated)


@pytest.mark.thorough
def test_killed_before_in_and_after_every_stage_it_ends_right(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(operated)
    # Start new processes first. Then only processes that the restore starts are killed.
    operated.do(Stop(operated.group))
    operated.do(Deploy(operated.group))
    plan = operated.verbs.plan(Restore(operated.group, at="latest"))
    struck: set[str] = set()
    strike_within(operated, monkeypatch, struck)

    def broken_off(done: tuple[str, ...]) -> None:
        if "load_changelog" in done:
            nobody_starts_on_half(operated, struck)

    done = operated.do_although_killed(plan, killing_at_stages(struck), broken_off)
    assert len(done.notes) == len(plan.stages)
    assert len([mark for mark in struck if mark.startswith("stage ")]) == len(plan.stages)
    assert {"after check_table", "after load_changelog", "after set_positions", "in load_changelog"} <= struck
    counts_on(operated)


def strike_within(operated: Operated, monkeypatch: pytest.MonkeyPatch, struck: set[str]) -> None:
    """Kill the restore once in each stage (step of its plan): after the stage took effect, and before it is recorded.

    The restore is also killed once while it sends rows to the changelogs.
    """
    execution = operated.verbs._execution
    send = Loader.send

    def killing_execution(hold: Hold) -> Callable[..., Any]:
        execute = execution(hold)

        def once(processor: str, stage: Any, tell: Any) -> Any:
            done = execute(processor, stage, tell)
            mark = f"after {type(stage).__struct_config__.tag}"
            if mark not in struck:
                struck.add(mark)
                raise Killed(mark)
            return done

        return once

    def killing_send(self: Loader, topic: str, partition: int, rows: Any) -> None:
        send(self, topic, partition, rows)
        if partition == PARTITIONS - 1 and "in load_changelog" not in struck:
            struck.add("in load_changelog")
            raise Killed("in load_changelog")

    monkeypatch.setattr(operated.verbs, "_execution", killing_execution)
    monkeypatch.setattr(Loader, "send", killing_send)


def nobody_starts_on_half(operated: Operated, struck: set[str]) -> None:
    """A worker that somebody starts by hand on an incomplete changelog refuses to run."""
    if "by hand" in struck or "after set_positions" in struck:
        return
    struck.add("by hand")
    words = [sys.executable, "-m", "holdfast.processors", "--processor", operated.group, "--slot", "7"]
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"}
    ended = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert b"is being written from the warehouse, and is not complete yet" in ended.stdout + ended.stderr


@pytest.mark.thorough
def test_a_command_that_was_killed_while_it_loads_is_gone_on_with_by_the_same_words(operated: Operated) -> None:
    begun(operated)
    words = ["apply", "restore", operated.group, "--at", "latest", "--yes"]

    before = operated.topics.describe([operated.changelog])[operated.changelog].topic_id

    def made_anew() -> bool:
        now = operated.topics.describe([operated.changelog]).get(operated.changelog)
        return process.poll() is not None or (now is not None and now.topic_id != before)

    process = operated.command(*words)
    operated.wait_for(made_anew, "the new changelog")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    process = operated.command(*words)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    counts_on(operated)


@pytest.mark.thorough
def test_a_plan_is_refused_when_the_world_changed_since_it_was_shown(operated: Operated) -> None:
    begun(operated)
    plan = operated.verbs.plan(Restore(operated.group, at="latest"))
    newer = snapshot(operated)
    with pytest.raises(PlanStale, match=f"snapshots counts was .* now {newer.snapshot_id}"):
        operated.verbs.apply(plan, confirmed=plan.hash)
    assert operated.logged() == counted(25)


@pytest.mark.thorough
def test_damage_is_found_before_anything_is_changed(operated: Operated) -> None:
    begun(operated)
    kept = snapshot(operated, changed=lambda manifest: manifest)
    before = operated.topics.describe([operated.changelog])

    def other_print(manifest: SnapshotManifest) -> SnapshotManifest:
        first, *rest = manifest.partitions
        return replace(manifest, partitions=(replace(first, fingerprint=replace(first.fingerprint, xor=1)), *rest))

    damaged = snapshot(operated, changed=other_print)
    with pytest.raises(TableDamaged, match=r"differs from its manifest in partition 0"):
        restored(operated, at=damaged.snapshot_id)
    snapshot(operated, raw='{"version": 1, "snapshot_id"')
    assert "there is no snapshot" in refusal(operated, at="no-such-tag").sentence
    unreadable = operated.verbs.plan(Restore(operated.group, at="latest"))
    # the plan uses this snapshot, the newest with a readable manifest
    assert damaged.snapshot_id in unreadable.verdict.sentence
    files = list((operated.settings.paths.warehouse / "data").rglob("*.parquet"))
    for file in files:
        file.unlink()
    with pytest.raises(TableUnfit, match="can't be read"):
        restored(operated, at=kept.snapshot_id)
    assert operated.topics.describe([operated.changelog]) == before
    assert operated.client.status() is not None
    counts_on(operated)


@pytest.mark.thorough
def test_input_that_is_gone_or_another_topic_is_refused_saying_from_where_on(operated: Operated) -> None:
    begun(operated)
    topic = f"{operated.group}-in"
    admin = AdminClient({"bootstrap.servers": operated.topics.bootstrap})
    ends = operated.topics.end_offsets(topic, committed=True)
    for future in admin.delete_records([TopicPartition(topic, 0, ends[0] - 1)]).values():
        future.result(30)
    said = refusal(operated)
    assert f"that topic begins at {ends[0] - 1:,}".replace(",", "") in said.sentence
    assert "records are gone" in said.sentence
    operated.do(Stop(operated.group))
    operated.topics.delete(topic)
    assert f"Input topic {topic} does not exist" in refusal(operated).sentence
    operated.topics.create(TopicSpec(topic, PARTITIONS, 1))
    said = refusal(operated)
    assert "was taken from another one" in said.sentence
    assert "--input copied" in said.action
    assert "that topic ends at 0" in refusal(operated, inputs="copied").sentence
    operated.feed(KEYS, 3)
    restored(operated, inputs="earliest")
    operated.do(Deploy(operated.group))
    operated.processed(KEYS * 3)
    assert operated.logged() == counted(23)


@pytest.mark.thorough
def test_on_a_new_broker_with_the_inputs_copied_it_goes_on_as_if_nothing_had_happened(
    operated: Operated, own_broker: TrackedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(operated)
    operated.do(Stop(operated.group))
    topic = f"{operated.group}-in"
    bootstrap = own_broker.address.bootstrap
    home = tmp_path / "other-home"
    (home / "warehouse").mkdir(parents=True)
    shutil.copy(operated.settings.paths.catalog, home / "warehouse")
    try:
        copy_topic(operated.topics, topic, Topics(bootstrap))
        monkeypatch.setenv("HOLDFAST_HOME", str(home))
        monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", bootstrap)
        settings = load_settings()
        with open_verbs(settings, who="a test") as verbs:
            there = Operated(operated.group, settings, verbs, Topics(bootstrap))
            said = refusal(there)
            assert "is unknown" in said.sentence
            plan = verbs.plan(Restore(there.group, at="latest", inputs="copied"))
            assert isinstance(plan.verdict, Ready)
            assert any(isinstance(stage, MakeRelease) for stage in plan.stages)
            assert "you assert that" in verbs.explain(plan)
            verbs.apply(plan, confirmed=plan.hash)
            counts_on(there)
            assert isinstance(verbs.plan(Deploy(there.group)).verdict, NothingToDo)
    finally:
        Supervisord(load_settings().paths).stop()


def copy_topic(source: Topics, topic: str, target: Topics) -> None:
    """Copy a topic to another broker. Each record keeps its offset."""
    target.create(TopicSpec(topic, PARTITIONS, 1))
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number, end in source.end_offsets(topic, committed=True).items():
        for record in read_range(source.bootstrap, topic, number, 0, end):
            producer.produce(topic, record.value, record.key, number, timestamp=record.timestamp_ms)
    assert producer.flush(30) == 0
    assert target.end_offsets(topic, committed=True) == source.end_offsets(topic, committed=True)
