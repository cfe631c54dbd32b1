"""Orphans on a real broker: archived, kept for their grace, deleted, and a topic put back with every record."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from infra.database.registry import Registry
from infra.errors import HoldfastError
from infra.kafka.reader import read_range
from infra.kafka.records import Partition, Record, TopicSpec
from infra.kafka.topic_copies import CopyUnreadable
from infra.kafka.topics import Topics
from infra.settings import Settings, load_settings
from infra.storage.objects import FsspecObjects
from infra.warehouse.catalog import open_catalog
from processors.lifecycle import orphan_cleaning, orphan_things, topic_return
from processors.lifecycle.apply import NotConfirmed, PlanStale
from processors.lifecycle.orphan_archive import Archive, ArchiveBusy, ArchiveFailed
from processors.lifecycle.orphan_cleaning import OrphanCleaning, OrphanOwned, said_of
from processors.lifecycle.orphan_plan import OrphanPlan
from processors.lifecycle.orphan_things import OrphanChanged
from processors.lifecycle.orphans import Orphan
from processors.lifecycle.topic_return import NotArchived, TopicThere, put_back
from tests.kafka.conftest import PROJECT, Stream, wait_for

CONFIG = {"retention.ms": "-1", "max.message.bytes": "2000000"}


class Killed(BaseException):
    """As if the process had died here."""


@dataclass
class Left:
    """What a processor that is neither defined nor deployed left: a changelog, a group, state and a checkpoint."""

    group: str
    settings: Settings
    topics: Topics
    registry: Registry
    now: datetime = field(default_factory=lambda: datetime(2026, 11, 22, 6, 0, tzinfo=UTC))

    @property
    def topic(self) -> str:
        return f"{self.group}-counts-changelog"

    @property
    def state(self) -> Path:
        return self.settings.paths.state / self.group / "0" / "in-0"

    @property
    def cleaning(self) -> OrphanCleaning:
        return OrphanCleaning(self.settings, self.registry, self.topics, "a test", lambda: self.now)

    @property
    def archive(self) -> Archive:
        return Archive(self.settings.archive_folder)

    def write(self, values: list[tuple[int, bytes | None, bytes | None]]) -> None:
        """Records: partition, key, value; each with a timestamp and a header of its own."""
        producer = Producer({"bootstrap.servers": self.topics.bootstrap})
        for number, (partition, key, value) in enumerate(values):
            headers: Any = [("n", b"%d" % number), ("none", None)] if number % 2 else None
            producer.produce(self.topic, value, key, partition, timestamp=1_700_000_000_000 + number, headers=headers)
        assert producer.flush(30) == 0

    def read(self) -> dict[int, list[Record]]:
        ends = self.topics.end_offsets(self.topic, committed=True)
        return {
            number: list(read_range(self.topics.bootstrap, self.topic, number, 0, end))
            for number, end in sorted(ends.items())
        }

    def apply(self) -> OrphanPlan:
        """Plan, and carry out exactly that."""
        plan = self.cleaning.plan()
        self.cleaning.apply(plan.hash)
        return plan

    def steps(self) -> list[tuple[str, str]]:
        return [(type(step).__name__, step.kind) for step in self.cleaning.plan().steps]

    def kinds(self) -> list[str]:
        return [each.subject.orphan.kind for each in self.cleaning.survey().listed]


ALL = ["checkpoint", "group", "state", "topic"]


@pytest.fixture
def left(broker: str, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    settings = load_settings(home=tmp_path / "home")
    settings.home.mkdir()
    registry = Registry(settings.registry)
    registry.migrate()
    made = Left(unique("gone"), settings, Topics(broker), registry)
    made.topics.create(TopicSpec(made.topic, 2, 1, CONFIG))
    made.write([(number % 2, b"k%d" % number, None if number == 7 else b"v%d" % number) for number in range(200)])
    made.write([(0, None, b"\x00\xff binary"), (1, b"", b"")])
    consumer = Consumer({"bootstrap.servers": broker, "group.id": made.group})
    consumer.commit(offsets=[TopicPartition(made.topic, 0, 17), TopicPartition(made.topic, 1, 4)], asynchronous=False)
    consumer.close()
    for folder in (made.state, settings.paths.checkpoints(made.group) / "1"):
        folder.mkdir(parents=True)
        (folder / "000004.sst").write_bytes(b"s" * 5000)
        (folder / "CURRENT").write_bytes(b"MANIFEST-1")
    yield made
    registry.close()


def same(records: dict[int, list[Record]], others: dict[int, list[Record]]) -> bool:
    def plain(found: dict[int, list[Record]]) -> Any:
        return {
            number: [(each.key, each.value, each.timestamp_ms, each.headers or None) for each in part]
            for number, part in found.items()
        }

    return bool(plain(records) == plain(others))


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
        "archived 2026-11-22 06:00 UTC, may be deleted from 2026-11-29 06:00 UTC on"
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
    member = Consumer({"bootstrap.servers": left.topics.bootstrap, "group.id": left.group})
    member.subscribe([left.topic])
    lock = os.open(left.state.parent / "lock", os.O_RDWR | os.O_CREAT)
    plan = left.cleaning.plan(["state"])
    try:
        while not left.topics.members(left.group):
            member.poll(0.1)
        found = left.cleaning.plan()
        assert found.steps == ()
        assert len(found.blocked) == 4
        assert all("runs: its group has 1 member" in sentence for sentence in found.blocked)
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


@pytest.mark.parametrize("step", range(12))
def test_killed_anywhere_it_converges_when_it_is_asked_for_again(
    left: Left, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Each write of a small file, and each copy that gets its name, is a place to die right after."""
    for name in ("archive", "delete"):
        plan = left.cleaning.plan()
        places = 0
        real = orphan_cleaning.ArchiveFolder.note_deletion, orphan_cleaning.ArchiveFolder.finish

        def dying(original: Callable[..., Any]) -> Callable[..., Any]:
            def and_die(*arguments: Any) -> Any:
                nonlocal places
                places += 1
                if places == step + 1:
                    if step % 2:
                        original(*arguments)
                    raise Killed
                return original(*arguments)

            return and_die

        with monkeypatch.context() as patch:
            patch.setattr(orphan_cleaning.ArchiveFolder, "note_deletion", dying(real[0]))
            patch.setattr(orphan_cleaning.ArchiveFolder, "finish", dying(real[1]))
            try:
                left.cleaning.apply(plan.hash)
            except Killed:
                left.cleaning.apply(plan.hash)
        assert left.cleaning.plan().steps == (), name
        assert left.kinds() == (ALL if name == "archive" else [])
        left.now += timedelta(days=8)
    assert left.topics.describe([left.topic]) == {}
    assert not any(path.name.startswith(".deleted-") for path in left.settings.home.rglob("*"))
    assert put_back(left.archive, left.topics, left.topic)


def killed_once(left: Left, plan_hash: str, trace: str) -> None:
    """Run the command line's apply, and kill it as soon as the archive has a file or folder of that name."""
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(left.settings.home),
        "HOLDFAST_ORPHAN_GRACE_DAYS": str(left.settings.orphan_grace_days),
    }
    command = [sys.executable, "-m", "orchestration.cli", "orphans", "apply", "--confirm", plan_hash]
    with subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: process.poll() is not None or list(left.archive.root.glob(f"**/{trace}")), trace)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"


def test_the_command_killed_by_the_system_goes_on_when_it_is_given_again(left: Left) -> None:
    left.settings = left.settings.model_copy(update={"orphan_grace_days": 0.0})
    left.now = datetime.now(UTC)
    left.write([(number % 2, b"k", b"v" * 1000) for number in range(20_000)])
    records = left.read()
    confirmed = left.cleaning.plan().hash
    killed_once(left, confirmed, "*.part")
    left.cleaning.apply(confirmed)
    assert not list(left.archive.root.glob("**/*.part"))
    assert left.kinds() == ALL
    assert same(left.read(), records)

    left.now = datetime.now(UTC)
    confirmed = left.cleaning.plan().hash
    assert {kind for kind, _ in left.steps()} == {"Delete"}
    killed_once(left, confirmed, "deletion.json")
    left.cleaning.apply(confirmed)
    assert left.kinds() == []
    put_back(left.archive, left.topics, left.topic)
    assert same(left.read(), records)


def test_a_folder_half_deleted_goes_with_the_next_apply(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    left.apply()
    left.now += timedelta(days=8)
    plan = left.cleaning.plan()

    def half(path: Path) -> None:
        next(path.rglob("*.sst")).unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(orphan_things, "_remove", half)
        with pytest.raises(Killed):
            left.cleaning.apply(plan.hash)
    assert ("Finish", "checkpoint") in left.steps()
    left.cleaning.apply(plan.hash)
    assert left.kinds() == []
    assert not list(left.settings.home.glob("**/.deleted-*"))


@pytest.mark.parametrize("where", ["before it is made", "once it is made", "in the middle", "at the end"])
def test_putting_back_goes_on_where_it_was_broken_off(left: Left, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    records = left.read()
    left.apply()
    left.now += timedelta(days=8)
    left.apply()

    def killed(*_: Any) -> None:
        raise Killed

    def some(topics: Topics, topic: str, parts: dict[int, Any], size: int) -> None:
        write_records(topics, topic, {0: [record for record, _ in zip(parts[0], range(40), strict=False)]}, size)
        raise Killed

    write_records = topic_return.write_records
    with monkeypatch.context() as patch:
        if where == "before it is made":
            patch.setattr(Topics, "create", killed)
        elif where == "once it is made":
            create = Topics.create
            patch.setattr(Topics, "create", lambda *arguments: (create(*arguments), killed()))
        elif where == "in the middle":
            patch.setattr(topic_return, "write_records", some)
        else:
            patch.setattr(topic_return, "_check_ends", killed)
        with pytest.raises(Killed):
            put_back(left.archive, left.topics, left.topic)
    put_back(left.archive, left.topics, left.topic)
    assert same(left.read(), records)


def test_a_table_stays_for_its_grace_then_goes_with_its_files(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{left.group}.counts"
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    catalog = open_catalog(left.settings)
    catalog.create_namespace(left.group)
    table = catalog.create_table(name, rows.schema)
    table.append(rows)
    only = ["table"]
    left.cleaning.apply(left.cleaning.plan(only).hash, only)
    manifest = left.archive.newest()[0]["table", f"holdfast.{name}"].manifest
    assert manifest.about["rows"] == 3
    assert manifest.about["metadata"] == table.metadata_location
    left.now += timedelta(days=8)
    table.append(rows)
    assert [type(step).__name__ for step in left.cleaning.plan(only).steps] == ["Archive"], "it changed"
    left.cleaning.apply(left.cleaning.plan(only).hash, only)

    left.now += timedelta(days=8)
    plan = left.cleaning.plan(only)
    assert "its rows can't be had again" in plan.steps[0].says

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(orphan_things, "delete_files", killed)
        with pytest.raises(Killed):
            left.cleaning.apply(plan.hash, only)
    assert not catalog.table_exists(name)
    data = left.settings.paths.warehouse / "data" / left.group / "counts"
    assert any(data.rglob("*.parquet"))
    left.cleaning.apply(plan.hash, only)
    assert not data.exists()
    assert "table" not in left.kinds()


def test_checkpoints_in_the_store_are_copied_and_go_also_when_half_of_them_went(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FsspecObjects(left.settings.checkpoint_store)
    names = [f"{left.group}/in-0/files/{number}" for number in range(3)]
    others = f"{left.group}/in-1/files/0"
    for name in (*names, others):
        objects.write(name, [name.encode()])
    only = [f"checkpoint/{left.group}/in-0"]
    left.cleaning.apply(left.cleaning.plan(only).hash, only)
    copy = left.archive.newest()[0]["checkpoint", f"{left.group}/in-0"]
    assert {name: (copy.folder / name).read_bytes() for name in names} == {name: name.encode() for name in names}
    left.now += timedelta(days=8)
    plan = left.cleaning.plan(only)

    def half(store: FsspecObjects, listed: list[str]) -> None:
        delete(store, listed[:1])
        raise Killed

    delete = FsspecObjects.delete
    with monkeypatch.context() as patch:
        patch.setattr(FsspecObjects, "delete", half)
        with pytest.raises(Killed):
            left.cleaning.apply(plan.hash, only)
    left.cleaning.apply(plan.hash, only)
    assert list(objects.sizes(f"{left.group}/")) == [others]


def test_a_copy_that_fails_leaves_nothing_and_no_archive_is_made_among_the_orphans(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = left.cleaning.plan()

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(orphan_things, "sha256_of", no_room)
        with pytest.raises(ArchiveFailed, match="No space left on device"):
            left.cleaning.apply(plan.hash)
    assert not list(left.archive.root.glob("**/*.part"))
    assert [kind for kind, _ in left.archive.newest()[0]] == ["group"]
    assert left.registry.actions()[0].outcome.startswith("failed after 1 step(s)")
    left.cleaning.apply(plan.hash)
    assert left.cleaning.plan().steps == ()

    within = left.settings.model_copy(update={"archive": left.settings.paths.state / "archive"})
    inside = OrphanCleaning(within, left.registry, left.topics, "a test")
    with pytest.raises(ArchiveFailed, match="where orphans are looked for"):
        inside.apply(inside.plan().hash)
    assert not within.archive_folder.exists()


def test_what_was_set_aside_goes_also_while_the_slot_is_held(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has the slot; nobody opens what was set aside beside its task."""
    orphan = Orphan("state", str(left.state), left.group, "it was set aside", 1, aside=True)
    thing = orphan_things.things(left.settings, left.topics)["state"]
    (left.state.parent / "lock").write_text(f"{os.getpid()}\n")
    look = thing.look(orphan)
    assert look.facts is not None
    assert not look.blocked
    in_use = thing.look(replace(orphan, aside=False))
    assert "a live process has the slot" in in_use.blocked
    (left.state / "CURRENT").write_bytes(b"changed")
    with pytest.raises(OrphanChanged):
        thing.delete(orphan, look.facts, thing.leftovers(orphan, look.facts))
    assert (left.state / "CURRENT").exists()
    now = thing.look(orphan).facts
    assert now is not None
    thing.delete(orphan, now, thing.leftovers(orphan, now))
    assert not left.state.exists()


def test_a_damaged_archive_is_not_put_back(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    left.apply()
    file = left.archive.newest()[0]["topic", left.topic].folder / "partition-1.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CopyUnreadable, match="nothing was put back"):
        put_back(left.archive, left.topics, left.topic)
    assert left.topics.describe([left.topic]) == {}


def test_a_dropped_processor_comes_back_with_its_topic_and_offsets(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State is what the changelog folds to: put back, with the group's offsets, counting goes on."""
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", stream.bootstrap)
    stream.feed_numbers(100)
    stream.application().run(count=100, timeout=30)
    before = stream.counts()
    shutil.rmtree(stream.state_dir)
    settings = load_settings(home=tmp_path / "home")
    settings.home.mkdir()
    (settings.paths.exports(stream.group)).mkdir(parents=True)  # it is known by name
    registry = Registry(settings.registry)
    registry.migrate()
    now = datetime.now(UTC)
    left = Left(stream.group, settings, stream.topics, registry, now)
    try:
        left.apply()
        left.now += timedelta(days=8)
        left.apply()
        assert left.kinds() == []
    finally:
        registry.close()
    assert stream.topics.describe([left.topic]) == {}

    put_back(left.archive, stream.topics, left.topic)
    offsets = left.archive.newest()[0]["group", stream.group].folder / "offsets.csv"
    with offsets.open(newline="") as file:
        places = [TopicPartition(topic, int(number), int(at)) for topic, number, at in csv.reader(file)]
    assert {Partition(each.topic, each.partition) for each in places} >= {Partition(stream.source, 0)}
    consumer = Consumer({"bootstrap.servers": stream.bootstrap, "group.id": stream.group})
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    assert stream.counts() == before
    stream.feed_numbers(50)
    stream.application().run(count=50, timeout=30)
    stream.outputs_are_exact({b"k%d" % number: 15 for number in range(10)})
