"""Uploads and downloads of checkpoints: shared files, deletion of old files, and failures at every operation."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from random import Random

import pytest

from holdfast.infra.storage.errors import StorageFailed
from holdfast.processors.engine.checkpoints.decision import Patience
from holdfast.processors.engine.checkpoints.fetch import Fetcher
from holdfast.processors.engine.checkpoints.manifest import Place
from holdfast.processors.engine.checkpoints.ports import Job
from holdfast.processors.engine.checkpoints.retention import MARK_ABANDONED_S
from holdfast.processors.engine.checkpoints.threads import ThreadedWork, step
from tests.mechanics.tiers import variants

SOURCE = "orders"


def test_a_checkpoint_that_was_fetched_is_the_store_that_was_checkpointed(bench):
    bench.write()
    expected = bench.expected()
    uploaded = bench.upload()
    bench.write(salt="later")
    found = bench.fetch()
    assert found.manifest is not None
    assert found.manifest.meta == uploaded.manifest.meta
    assert bench.holds(found.path) == expected
    assert uploaded.manifest.size == uploaded.bytes_new > 0


def test_without_any_checkpoint_there_is_nothing_to_refuse(bench):
    bench.write()
    found = bench.fetch()
    assert (found.manifest, found.refused) == (None, ())
    assert not found.path.exists()


def test_only_new_files_are_uploaded_also_by_another_process(bench):
    bench.write(20_000)
    first = bench.upload()
    bench.write(3)
    second = bench.upload()
    assert second.files_shared >= 1
    assert second.bytes_new < first.bytes_new / 3
    third = bench.upload(bench.uploader("other"))
    assert third.files_shared >= 2
    found = bench.fetch()
    assert bench.holds(found.path) == bench.expected()


def test_old_checkpoints_and_their_files_are_collected(bench):
    for _ in range(6):
        bench.write()
        bench.store.compact(lambda: None)
        bench.upload()
    assert len(bench.manifests()) == 2
    named = {file.object for name in bench.manifests() for file in bench.manifest(name).files}
    assert set(bench.objects.sizes("group/orders-0/files/")) == named
    assert bench.objects.sizes("group/orders-0/uploads/") == {}
    bench.everything_is_whole()


def test_local_copies_are_gone_after_an_upload_and_after_a_failed_one(bench, breaking):
    bench.write()
    taken = bench.take()
    bench.upload(taken=taken)
    assert not taken.path.exists()
    taken = bench.take()
    breaking.at = 5
    with pytest.raises(StorageFailed):
        bench.upload(bench.uploader(objects=breaking), taken)
    assert not taken.path.exists()


def test_an_upload_that_fails_in_its_files_takes_back_what_it_wrote(bench, breaking):
    """An upload that fails deletes the files that it has written. Otherwise repeated failures would fill the store."""
    bench.write()
    breaking.at = 8
    with pytest.raises(StorageFailed):
        bench.upload(bench.uploader(objects=breaking))
    assert breaking.operations[:8].count("write") > 3, "some files were written"
    assert bench.objects.sizes("group/orders-0/files/") == {}
    assert not list(bench.object("group/orders-0/files").glob("*")), "no empty folder is left, either"
    bench.upload()
    assert bench.holds(bench.fetch().path) == bench.expected()


@pytest.mark.parametrize("dies", [True, False], ids=["the process dies", "the store fails"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_upload_that_is_broken_off_anywhere_leaves_what_can_be_restored(bench, breaking, dies, after):
    """After a failure at any operation, the former or the new checkpoint can be restored.

    The next upload then succeeds.
    """
    bench.write()
    bench.upload()
    for at in itertools.count():
        former = bench.fetch()
        assert former.manifest is not None
        bench.write(salt=str(at))
        breaking.operations.clear()
        breaking.at, breaking.after, breaking.dies = at, after, dies
        try:
            bench.upload(bench.uploader(objects=breaking))
        except Exception:
            done = False
        else:
            done = True
        breaking.at = None
        bench.everything_is_whole()
        found = bench.fetch()
        assert found.manifest is not None
        assert found.refused == ()
        assert found.manifest.meta in (bench.meta, former.manifest.meta)
        if found.manifest.meta == bench.meta:
            assert bench.holds(found.path) == bench.expected()
        if done:
            assert at > 10
            break
        bench.upload()
        assert bench.fetch().manifest.meta == bench.meta
        assert bench.objects.sizes("group/orders-0/uploads/") == {}


@pytest.mark.parametrize("seed", variants(range(20), tested=4, quick=1))
def test_two_processes_that_upload_one_task_leave_only_whole_checkpoints(bench, seed):
    """The uploads of three processes are interleaved at random. A process may pause for long or die.

    The checkpoints of the processes share files.
    """
    random = Random(seed)
    bench.write(300)
    bench.upload()
    running = {}
    for turn in range(400):
        for holder in ("one", "two", "three"):
            if holder not in running and random.random() < 0.2:
                bench.write(50, salt=f"{holder}{turn}")
                running[holder] = bench.uploader(holder).run(bench.take(), Job())
        for holder in list(running):
            for _ in range(random.choice([0, 0, 1, 2, 9])):
                try:
                    next(running[holder])
                except StopIteration:
                    del running[holder]
                    break
                if random.random() < 0.003:
                    running.pop(holder).close()
                    break
        if turn % 20 == 0:
            bench.everything_is_whole()
    for steps in running.values():
        for _ in steps:
            pass
    bench.everything_is_whole()
    found = bench.fetch()
    assert found.manifest is not None
    assert found.refused == ()


def test_nothing_is_collected_while_another_process_uploads(bench):
    bench.write()
    bench.upload()
    other = bench.uploader("other").run(bench.take(), Job())
    next(other)
    next(other)
    for _ in range(4):
        bench.write()
        bench.upload()
    assert len(bench.manifests()) == 5
    for _ in other:
        pass
    bench.everything_is_whole()
    assert len(bench.manifests()) == 2


def test_the_mark_of_an_upload_that_died_holds_the_collection_back_for_a_day_only(bench):
    bench.write()
    bench.upload()
    dead = bench.uploader("dead").run(bench.take(), Job())
    next(dead)
    next(dead)
    for _ in range(3):
        bench.write()
        bench.upload()
    assert len(bench.manifests()) == 4
    bench.now += MARK_ABANDONED_S + 1
    bench.upload()
    assert len(bench.manifests()) == 2
    assert bench.objects.sizes("group/orders-0/uploads/") == {}


def newest_sst(bench):
    return max(
        (file for file in bench.manifest(bench.manifests()[-1]).files if file.name.endswith(".sst")),
        key=lambda file: file.size,
    )


def test_a_flipped_byte_is_found_and_the_checkpoint_before_is_used(bench):
    bench.write()
    before = bench.upload().manifest
    bench.write(salt="x")
    damaged = bench.upload().manifest
    upload = damaged.checkpoint_id.partition("-")[2]
    path = bench.object(next(file.object for file in damaged.files if f"/{upload}/" in file.object))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = bench.fetch()
    assert found.manifest is not None
    assert found.manifest.checkpoint_id == before.checkpoint_id
    assert [refused.checkpoint_id for refused in found.refused] == [damaged.checkpoint_id]
    assert "checksum" in found.refused[0].why


def test_a_damaged_file_that_later_checkpoints_share_is_written_anew_once_it_was_found(bench):
    bench.write(20_000)
    bench.upload()
    shared = bench.object(newest_sst(bench).object)
    shared.write_bytes(shared.read_bytes()[:-1] + b"!")
    bench.write(3)
    assert bench.upload().files_shared
    found = bench.fetch()
    assert found.manifest is None
    assert len(found.refused) == 2
    bench.write(3)
    bench.upload()
    found = bench.fetch()
    assert found.manifest is not None
    assert bench.holds(found.path) == bench.expected()


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_missing_or_short_file_is_found_and_not_shared_again(bench, damage):
    bench.write(20_000)
    bench.upload()
    path = bench.object(newest_sst(bench).object)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-10])
    found = bench.fetch()
    assert found.manifest is None
    assert ("no such object" if damage == "gone" else "bytes") in found.refused[0].why
    assert not found.path.exists()
    bench.write(3)
    bench.upload()
    assert bench.holds(bench.fetch().path) == bench.expected()


def test_a_manifest_of_a_newer_format_is_refused_and_keeps_its_files(bench):
    bench.write()
    bench.upload()
    name = bench.manifests()[-1]
    fields = json.loads(bench.objects.read(name))
    bench.objects.write(name, [json.dumps({**fields, "version": 2}).encode()])
    found = bench.fetch()
    assert found.manifest is None
    assert "version 2" in found.refused[0].why
    files = set(bench.objects.sizes("group/orders-0/files/"))
    bench.write()
    bench.upload()
    assert files < set(bench.objects.sizes("group/orders-0/files/"))
    assert bench.fetch().manifest is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "files": 3}'])
def test_a_torn_manifest_is_refused(bench, content):
    bench.write()
    bench.upload()
    bench.objects.write(bench.manifests()[-1], [content])
    found = bench.fetch()
    assert found.manifest is None
    assert len(found.refused) == 1
    bench.write()
    bench.upload()
    assert bench.fetch().manifest is not None


@pytest.mark.parametrize("name", ["../../escape", "/etc/x", "a/b", ""])
def test_a_manifest_can_never_write_outside_of_the_scratch_folder(bench, name):
    bench.write()
    bench.upload()
    manifest = bench.manifests()[-1]
    fields = json.loads(bench.objects.read(manifest))
    fields["files"][0]["name"] = name
    bench.objects.write(manifest, [json.dumps(fields).encode()])
    assert bench.fetch().manifest is None


@pytest.mark.parametrize("name", ["../other/files/1", "a/../../b", "/etc/passwd", "a//b", "a/./b", "a\\..\\b", ""])
def test_a_manifest_can_never_name_what_is_outside_of_the_store(bench, name):
    bench.write()
    bench.upload()
    manifest = bench.manifests()[-1]
    fields = json.loads(bench.objects.read(manifest))
    fields["files"][0]["object"] = name
    bench.objects.write(manifest, [json.dumps(fields).encode()])
    found = bench.fetch()
    assert found.manifest is None
    assert "is named" in found.refused[0].why


def test_a_store_that_is_away_is_a_reason_and_no_failure(bench, breaking):
    bench.write()
    bench.upload()
    for at in range(20):
        breaking.operations.clear()
        breaking.at = at
        found = bench.fetch(breaking)
        if found.manifest is not None:
            break
        assert found.refused
        assert not found.path.exists()
    assert at > 3


def test_a_download_that_is_broken_off_starts_again(bench):
    bench.write(5_000)
    bench.upload()
    for steps_done in range(1, 7):
        path = bench.folder / f"scratch{steps_done}"
        fetcher = Fetcher(bench.objects, bench.databases, set())
        steps = fetcher.run(Place("group", "orders-0"), bench.wanted(), path, Job())
        for _ in range(steps_done):
            next(steps)
        del steps
    assert bench.holds(bench.fetch().path) == bench.expected()


def test_a_checkpoint_newer_than_the_committed_offsets_is_refused(bench):
    bench.write()
    bench.upload()
    held = bench.meta.inputs[SOURCE]
    assert bench.fetch(committed={SOURCE: held}).manifest is not None
    found = bench.fetch(committed={SOURCE: held - 1})
    assert found.manifest is None
    assert "committed only up to" in found.refused[0].why
    assert "committed nothing" in bench.fetch(committed={SOURCE: None}).refused[0].why


def test_a_checkpoint_older_than_deletes_are_retained_is_refused(bench):
    bench.write()
    bench.upload()
    wanted = bench.wanted()
    margin = 86_400 * 0.75
    assert bench.fetch(now=wanted.now - 10 + margin - 1).manifest is not None
    found = bench.fetch(now=wanted.now - 10 + margin + 1)
    assert found.manifest is None
    assert "deletes older than" in found.refused[0].why


def test_a_checkpoint_of_another_topic_task_format_or_store_is_refused(bench):
    bench.write()
    bench.upload()
    wanted = bench.wanted()
    facts = wanted.changelogs["counts"]
    for why, changes in {
        "topic id": {"changelogs": {"counts": replace(facts, topic_id="other")}},
        "offsets": {"changelogs": {"counts": replace(facts, end=bench.offset - 1)}},
        "the stores": {"changelogs": {"counts": facts, "more": facts}},
        "source": {"sources": {SOURCE: "other"}},
        "files are of": {"database": "memory"},
        "of task": {"task": "orders-1"},
        "save too little": {"replay": 150},
    }.items():
        found = bench.fetch(**changes)
        assert found.manifest is None
        assert why in found.refused[0].why


def test_a_download_that_nobody_wants_any_more_leaves_nothing_on_the_disk(bench, tmp_path):
    bench.write(20_000)
    bench.upload()
    path, job = tmp_path / "unwanted", Job()
    steps = Fetcher(bench.objects, bench.databases, set()).run(Place("group", "orders-0"), bench.wanted(), path, job)
    while not path.exists():
        step(steps, job)
        assert not job.done
    job.cancel()
    step(steps, job)
    assert job.done
    assert not path.exists()


class DriverCancelled(BaseException):
    """An error of a storage driver that is not an ``Exception``, like asyncio's CancelledError."""


def test_what_a_driver_raises_ends_the_job_whatever_it_is():
    def work(job):
        yield
        raise DriverCancelled

    threads = ThreadedWork()
    job = threads.start(work)
    deadline = time.monotonic() + 60
    while not job.done:
        threads.wait(0.1)
        assert time.monotonic() < deadline
    assert isinstance(job.failure, DriverCancelled)


def test_a_download_is_waited_for_as_long_as_a_replay_would_take_and_never_in_silence():
    long = Patience(replay=10_000_000, began_at=0.0)
    assert [long.spent(at, int(at)) for at in (0.0, 59.0, 118.0, 177.0, 199.0)] == [None] * 5
    assert "longer than a replay" in long.spent(201.0, 201)
    silent = Patience(replay=10_000_000, began_at=0.0)
    assert silent.spent(1.0, 7) is None
    assert "nothing for 60 s" in silent.spent(62.0, 7)
    hangs = Patience(replay=10_000_000, began_at=0.0)
    assert hangs.spent(14.0, 0) is None
    assert "gave no answer for 15 s" in hangs.spent(16.0, 0)
    short = Patience(replay=1_000, began_at=0.0)
    assert short.spent(59.0, 1) is None
    assert short.spent(61.0, 2) is not None
