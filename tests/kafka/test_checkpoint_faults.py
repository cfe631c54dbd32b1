"""A real worker whose checkpoint store is damaged, slow or full, or whose uploads and downloads are interrupted.

These faults affect only checkpoints: the worker's state still counts each input message exactly once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.assets.state import judge_store
from holdfast.infra.storage import objects as storage
from holdfast.infra.storage.errors import ObjectOutside, ObjectTooLarge
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.engine.checkpoints.keeper import DOWNLOADS
from tests.kafka.checkpointing import (
    KEYS,
    MANY,
    expected,
    feed,
    held,
    lose_disk,
    restored,
    stored,
    told,
    with_store,
)
from tests.kafka.slow_link import SlowLink
from tests.kafka.test_bad_world import private_mounts, start_in_mounts
from tests.mechanics.tiers import variants

KEY = dg.AssetKey(["counts"])


# -- damaged or unusable checkpoints --------------------------------------------------------------------------------


def flip(place: Path) -> None:
    for file in place.rglob("*.sst"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


def lose_a_file(place: Path) -> None:
    for file in place.rglob("*.sst"):
        file.unlink()


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(place: Path) -> None:
        for manifest in place.glob("manifests/*.json"):
            fields = json.loads(manifest.read_text())
            change(fields)
            manifest.write_text(json.dumps(fields))

    return edit


def newer(fields: dict[str, Any]) -> None:
    fields["version"] += 1


def ahead(fields: dict[str, Any]) -> None:
    fields["inputs"] = {topic: offset + 1 for topic, offset in fields["inputs"].items()}


def old(fields: dict[str, Any]) -> None:
    """Make the checkpoint two days old.

    The changelog keeps tombstones for one day, so the checkpoint is too old to use.
    """
    fields["complete_at"] -= 2 * 86_400
    for at in fields["stores"].values():
        at["offset"] -= 100


def of_another_topic(fields: dict[str, Any]) -> None:
    for at in fields["stores"].values():
        at["topic_id"] = "another"


@pytest.mark.parametrize(
    ("damages", "words"),
    variants(
        [
            pytest.param(
                (flip, lose_a_file),
                ("checksum", "no such object"),
                id="flipped byte, missing file",
            ),
            pytest.param(
                (edited(newer), edited(ahead)),
                ("version 2", "the group has committed only up to"),
                id="newer format, newer than the offsets",
            ),
            pytest.param(
                (edited(old), edited(of_another_topic)),
                ("deletes older than", "with topic id another"),
                id="too old, another topic",
            ),
        ]
    ),
)
def test_a_checkpoint_that_may_not_be_used_is_refused_with_its_reason_and_replayed_over(
    stream, worker, waiting, tmp_path, damages, words
):
    """A checkpoint with a fault is refused with its reason, and the changelog is replayed instead.

    Each of the two partitions has a checkpoint with a different fault.
    """
    one = with_store(worker(), URL=str(tmp_path / "store")).start().wait_running()
    feed(stream, one, waiting, 0, MANY)
    tasks = sorted(stored(one, waiting)["tasks"])
    one.kill()
    lose_disk(one)
    for task, damage in zip(tasks, damages, strict=True):
        damage(tmp_path / "store" / stream.group / task)
    one.log.unlink()
    one.start().wait_running()
    refused = {line["task"]: line["why"] for line in told(one, "a checkpoint is not used")}
    for task, word in zip(tasks, words, strict=True):
        assert word in refused[task]
    assert [task.checkpoint["used"] for task in one.client.status().tasks] == [None] * stream.partitions
    assert restored(one) >= KEYS
    assert held(one) == expected(MANY)
    stream.outputs_are_exact(expected(MANY))


# -- a slow store, a full store ------------------------------------------------------------------------------------


@pytest.fixture
def link(s3) -> Iterator[SlowLink]:
    made = SlowLink(s3.port)
    yield made
    made.close()


@pytest.fixture
def place(s3, tmp_path) -> str:
    """The URL of a separate folder for this test in the S3 store."""
    return f"{s3.url}/{tmp_path.name}"


def by(port: int, s3: Any) -> str:
    """Return the options of the S3 store as JSON, with the endpoint at another port."""
    options = s3.options()
    options["client_kwargs"]["endpoint_url"] = f"http://127.0.0.1:{port}"
    return json.dumps(options)


def judged(worker: Any) -> dg.AssetCheckResult:
    """Return the result of the Dagster check of a worker's checkpoint store."""
    return judge_store(KEY, [worker.client.status()])


def manifests_of(s3: Any, place: str) -> dict[str, dict[str, Any]]:
    """Return all manifests in a store. Asserts that every file in a manifest exists with its full size."""
    import s3fs

    files = s3fs.S3FileSystem(**s3.options(), skip_instance_cache=True, use_listings_cache=False)
    root = place.removeprefix("s3://")
    found = {name: json.loads(files.cat_file(name)) for name in files.find(root) if "/manifests/" in name}
    for name, fields in found.items():
        for file in fields["files"]:
            content = files.cat_file(f"{root}/{file['object']}")
            assert hashlib.sha256(content).hexdigest() == file["sha256"], f"{name} names a damaged {file['object']}"
    return found


def marks_of(s3: Any, place: str) -> list[str]:
    import s3fs

    files = s3fs.S3FileSystem(**s3.options(), skip_instance_cache=True, use_listings_cache=False)
    return [name for name in files.find(place.removeprefix("s3://")) if "/uploads/" in name]


@pytest.mark.thorough
def test_on_s3_too_no_name_leads_out_and_a_read_ends_at_its_limit(s3, monkeypatch):
    store = FsspecObjects(f"{s3.url}/limits", s3.options())
    store.write("exact", [b"x" * 10])
    store.write("large", [b"x" * 11])
    store.write("empty", [])
    monkeypatch.setattr(storage, "READ_BYTES_MAX", 10)
    assert (store.read("exact"), store.read("empty")) == (b"x" * 10, b"")
    with pytest.raises(ObjectTooLarge, match="more than 10 bytes"):
        store.read("large")
    for name in ("../outside", "a/../../outside", "/outside", "a//b", ".."):
        with pytest.raises(ObjectOutside):
            store.write(name, [b"hostile"])
        with pytest.raises(ObjectOutside):
            store.read(name)
    above = FsspecObjects(s3.url, s3.options())
    assert set(above.sizes("limits/")) == {"limits/exact", "limits/large", "limits/empty"}


@pytest.mark.thorough
def test_a_store_that_is_slow_and_drops_connections_holds_nothing_up_and_is_told(
    stream, worker, waiting, s3, link, place
):
    one = with_store(worker(), URL=place, OPTIONS=by(link.port, s3), EVERY_S="0.5").start().wait_running()
    link.stall("up", 20_000)
    feed(stream, one, waiting, 0, MANY)
    waiting(link.stalled.is_set, "an upload to stand still")
    feed(stream, one, waiting, MANY, MANY + 1_000)
    waiting(lambda: not one.client.status().checkpoints["ok"], "the store to be told as slow")
    assert one.client.status().checkpoints["uploads"] == 0
    assert not judged(one).passed
    assert told(one, "the checkpoint store is slow; processing continues")
    link.drop()
    waiting(lambda: len(one.client.status().checkpoints["tasks"]) == stream.partitions, "checkpoints to be stored")
    waiting(lambda: judged(one).passed, "all to be well again")
    stream.outputs_are_exact(expected(MANY + 1_000))
    one.kill()
    assert len(manifests_of(s3, place)) >= stream.partitions


@pytest.mark.thorough
@pytest.mark.skipif(not private_mounts(), reason="no process here may mount; the simulated store is full elsewhere")
def test_a_store_that_is_full_costs_nothing_but_checkpoints_and_is_used_when_there_is_room(
    stream, worker, waiting, tmp_path
):
    store = tmp_path / "store"
    store.mkdir()
    one = with_store(worker(), URL=str(store), EVERY_S="0.5")
    start_in_mounts(one, f"mount -t tmpfs -o size=256k tmpfs {store} && head -c 249856 /dev/zero >{store}/ballast")
    one.wait_running()
    feed(stream, one, waiting, 0, 2_000)
    waiting(lambda: not one.client.status().checkpoints["ok"], "the failure to be told")
    assert "No space left on device" in one.client.status().checkpoints["error"]
    assert not judged(one).passed
    assert "No space left on device" in judged(one).description
    feed(stream, one, waiting, 2_000, 3_000)
    seen = Path(f"/proc/{one.process.pid}/root{store}")
    waiting(lambda: one.client.status().checkpoints["failures"] >= 2, "a second failure")
    waiting(lambda: not list(seen.rglob("*.sst*")), "what was written of them to take no room")
    (seen / "ballast").unlink()
    waiting(lambda: one.client.status().checkpoints["ok"], "checkpoints to be stored again")
    assert judged(one).passed
    stream.outputs_are_exact(expected(3_000))


# -- interrupted uploads and downloads -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_uploads_killed_at_several_places_leave_a_store_that_the_next_one_completes(
    stream, worker, waiting, s3, link, place
):
    one = with_store(worker(), URL=place, OPTIONS=by(link.port, s3))
    fed = 0
    for after in (3_000, 40_000):
        one.start().wait_running()
        feed(stream, one, waiting, fed, fed + 4_000)
        fed += 4_000
        link.stall("up", after)
        one.client.checkpoint()
        waiting(link.stalled.is_set, "an upload to stand still")
        one.kill()
        link.drop()
        manifests_of(s3, place)
    one.start().wait_running()
    feed(stream, one, waiting, fed, fed + 1_000)
    last = stored(one, waiting)
    found = manifests_of(s3, place)
    assert {f"{each['checkpoint']}.json" for each in last["tasks"].values()} <= {
        name.rpartition("/")[2] for name in found
    }
    assert marks_of(s3, place) == []
    one.kill()
    lose_disk(one)
    one.log.unlink()
    one.start().wait_running()
    assert len(told(one, "state begins with a checkpoint")) == stream.partitions
    assert held(one) == expected(fed + 1_000)
    stream.outputs_are_exact(expected(fed + 1_000))


@pytest.mark.thorough
def test_a_worker_frozen_in_its_upload_and_its_successor_leave_whole_checkpoints_only(
    stream, worker, waiting, s3, link, place
):
    zombie = with_store(worker("0", home="zombie"), URL=place, OPTIONS=by(link.port, s3)).start().wait_running()
    feed(stream, zombie, waiting, 0, MANY)
    link.stall("up", 20_000)
    zombie.client.checkpoint()
    waiting(link.stalled.is_set, "an upload to stand still")
    os.kill(zombie.process.pid, signal.SIGSTOP)
    try:
        successor = with_store(worker("1", home="successor"), URL=place, OPTIONS=by(s3.port, s3)).start()
        waiting(lambda: running(successor) == stream.partitions, f"the successor to have all; {successor.tail()}")
        for number in range(3):
            feed(stream, successor, waiting, MANY + 500 * number, MANY + 500 * (number + 1))
            stored(successor, waiting)
    finally:
        link.flow()
        os.kill(zombie.process.pid, signal.SIGCONT)
    waiting(lambda: told(zombie, "checkpoint stored"), f"the late upload; {zombie.tail()}")
    waiting(lambda: running(zombie) == running(successor) == 1, "both to share the partitions")
    assert len(manifests_of(s3, place)) >= 2 * stream.partitions
    for each in (zombie, successor):
        each.kill()
    lose_disk(successor)
    successor.log.unlink()
    successor.start()
    waiting(lambda: running(successor) == stream.partitions, f"the successor to have all again; {successor.tail()}")
    assert restored(successor) < MANY / 4, "the newest is used, not the last that was written"
    assert held(successor) == expected(MANY + 1_500)
    stream.outputs_are_exact(expected(MANY + 1_500))


@pytest.mark.thorough
def test_a_download_that_is_broken_off_begins_anew_without_harm(stream, worker, waiting, s3, link, place):
    one = with_store(worker(), URL=place, OPTIONS=by(link.port, s3)).start().wait_running()
    feed(stream, one, waiting, 0, MANY)
    stored(one, waiting)
    for broken_by in (one.kill, link.drop):
        if one.process.poll() is None:
            one.kill()
        lose_disk(one)
        one.log.unlink()
        link.stall("down", 30_000)
        one.start()
        waiting(link.stalled.is_set, "a download to stand still")
        broken_by()
        link.drop()
        if one.process.poll() is not None:
            one.log.unlink()
            one.start()
        one.wait_running()
        used = len(told(one, "state begins with a checkpoint"))
        assert used == stream.partitions or told(one, "a checkpoint is not used")
        assert held(one) == expected(MANY)
        assert [left for folder in one.paths.state.rglob(DOWNLOADS) for left in folder.iterdir()] == []
    stream.outputs_are_exact(expected(MANY))


def running(worker: Any) -> int:
    status = worker.client.status()
    ours = status is not None and status.pid == worker.process.pid
    return sum(task.phase == "running" for task in status.tasks) if ours else 0
