"""A real worker with checkpoints: a lost disk costs a replay of the tail, a failing store costs only checkpoints."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.checkpointing import (
    KEYS,
    MANY,
    expected,
    feed,
    held,
    lose_disk,
    metrics,
    restored,
    stored,
    told,
    with_store,
)
from tests.kafka.object_store import READER, S3Server
from tests.mechanics.tiers import variants

TAIL = 200


@pytest.fixture(params=variants(["s3", "folder"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The settings of a checkpoint store, in a folder or on S3."""
    if request.param == "folder":
        return {"URL": str(tmp_path / "store")}
    server = request.getfixturevalue("s3")
    return {"URL": f"{server.url}/{tmp_path.name}", "OPTIONS": json.dumps(server.options())}


def test_a_lost_disk_is_restored_from_checkpoints_and_the_tail(stream, worker, waiting, store):
    one = with_store(worker(), **store).start().wait_running()
    feed(stream, one, waiting, 0, MANY)
    before = stored(one, waiting)
    assert before["ok"]
    assert before["uploads"] == stream.partitions
    feed(stream, one, waiting, MANY, MANY + TAIL)
    one.kill()
    lose_disk(one)
    one.log.unlink()
    one.start().wait_running()
    status = one.client.status()
    assert [task.checkpoint["used"] for task in status.tasks] == [
        last["checkpoint"] for _, last in sorted(before["tasks"].items())
    ]
    assert len(told(one, "state begins with a checkpoint")) == stream.partitions
    assert 0 < restored(one) < MANY / 4
    assert held(one) == expected(MANY + TAIL)
    feed(stream, one, waiting, MANY + TAIL, MANY + 2 * TAIL)
    assert held(one) == expected(MANY + 2 * TAIL)
    assert stream.counts() == expected(MANY + 2 * TAIL)
    stream.outputs_are_exact(expected(MANY + 2 * TAIL))


@pytest.mark.thorough
def test_a_restart_with_a_warm_disk_replays_the_tail_only_and_looks_for_no_checkpoint(stream, worker, waiting):
    one = worker().start().wait_running()
    feed(stream, one, waiting, 0, MANY)
    one.kill()
    one.log.unlink()
    with_store(one).start().wait_running()
    assert restored(one) < 100
    assert told(one, "looking for a checkpoint") == []
    assert held(one) == expected(MANY)


def test_a_clean_stop_commits_leaves_the_group_and_leaves_checkpoints_of_everything(stream, worker, waiting, tmp_path):
    one = with_store(worker(), URL=str(tmp_path / "store"), STOP_WAIT_S="60").start().wait_running()
    feed(stream, one, waiting, 0, MANY)
    assert one.terminate() == 0
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    assert admin.describe_consumer_groups([stream.group])[stream.group].result(30).members == [], "it left at once"
    assert sum(stream.topics.committed_offsets(stream.group).values()) == MANY
    one.log.unlink()
    one.start().wait_running()
    assert [task.restored for task in one.client.status().tasks] == [0] * stream.partitions, "a warm disk has it all"
    one.kill()
    lose_disk(one)
    one.log.unlink()
    one.start().wait_running()
    assert restored(one) < 100
    assert len(told(one, "state begins with a checkpoint")) == stream.partitions
    assert held(one) == expected(MANY)


@pytest.mark.thorough
def test_checkpoints_come_on_a_timer(stream, worker, waiting, tmp_path):
    one = with_store(worker(), URL=str(tmp_path / "store"), EVERY_S="0.5").start().wait_running()
    feed(stream, one, waiting, 0, 2_000)
    waiting(lambda: len(one.client.status().checkpoints["tasks"]) == stream.partitions, "checkpoints to be stored")
    waiting(lambda: "holdfast_checkpoint_store_ok" in metrics(one), "metrics")
    assert metrics(one)["holdfast_checkpoint_store_ok"] == 1.0
    assert metrics(one)["holdfast_checkpoints_stored_total"] >= stream.partitions


@contextmanager
def silent_server() -> Iterator[int]:
    """A TCP server that accepts connections but never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for one in taken:
            one.close()


@pytest.mark.thorough
def test_a_store_that_can_not_be_written_costs_nothing_but_checkpoints_and_is_tried_again(
    stream, worker, waiting, tmp_path
):
    (tmp_path / "store").write_text("a file where the folder should be")
    one = with_store(worker(), URL=str(tmp_path / "store"), EVERY_S="0.5").start().wait_running()
    feed(stream, one, waiting, 0, 2_000)
    waiting(lambda: not one.client.status().checkpoints["ok"], "the failure to be told")
    assert one.client.status().checkpoints["retry_in_s"] is not None
    waiting(lambda: metrics(one).get("holdfast_checkpoint_store_ok") == 0.0, "the metric")
    assert metrics(one)["holdfast_checkpoint_failures_total"] >= 1
    assert told(one, "a checkpoint could not be stored; processing continues")
    feed(stream, one, waiting, 2_000, 4_000)
    (tmp_path / "store").unlink()
    waiting(lambda: one.client.status().checkpoints["ok"], "checkpoints to be stored again")
    assert told(one, "checkpoints are stored again")
    stream.outputs_are_exact(expected(4_000))


@pytest.mark.thorough
def test_a_store_without_rights_to_write_says_so(stream, worker, waiting, s3, tmp_path):
    options = json.dumps(s3.options(READER))
    one = with_store(worker(), URL=f"{s3.url}/{tmp_path.name}", OPTIONS=options, EVERY_S="0.5").start().wait_running()
    feed(stream, one, waiting, 0, 2_000)
    found = waiting(lambda: one.client.status().checkpoints["error"], "the refusal to be told")
    assert re.search("denied|Forbidden|403", found, re.I)
    assert READER[1] not in one.log.read_text()
    feed(stream, one, waiting, 2_000, 3_000)


def test_a_store_that_never_answers_holds_nothing_up_and_not_the_end_either(stream, worker, waiting, s3, tmp_path):
    with silent_server() as port:
        options = {**s3.options(), "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
        settings = {"URL": "s3://bucket/state", "OPTIONS": json.dumps(options), "EVERY_S": "0.5", "STOP_WAIT_S": "0.5"}
        one = with_store(worker(), **settings).start().wait_running()
        feed(stream, one, waiting, 0, 2_000)
        waiting(lambda: one.client.status().checkpoints["uploading"], "an upload to be under way")
        feed(stream, one, waiting, 2_000, 3_000)
        assert one.client.status().checkpoints["uploads"] == 0
        assert one.terminate() == 0
        assert told(
            one, "the worker ends without its last checkpoint; an older one, or the changelog, restores its state"
        )
        stream.outputs_are_exact(expected(3_000))


@pytest.mark.thorough
def test_a_store_that_went_away_is_a_reason_for_a_full_replay(stream, worker, waiting, tmp_path):
    server = S3Server(tmp_path / "s3").start()
    try:
        store = {"URL": server.url, "OPTIONS": json.dumps(server.options())}
        one = with_store(worker(), **store).start().wait_running()
        feed(stream, one, waiting, 0, MANY)
        stored(one, waiting)
    finally:
        server.stop()
    one.kill()
    lose_disk(one)
    one.log.unlink()
    one.start().wait_running()
    assert all("could not list" in line["why"] for line in told(one, "a checkpoint is not used"))
    assert restored(one) >= KEYS
    assert held(one) == expected(MANY)
