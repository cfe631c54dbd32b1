"""The engine on a real broker counts each message exactly once: restarts, cold restores, crashes, rebalances."""

import json
import threading

import pytest

from holdfast.infra.kafka.records import Partition
from tests.mechanics.tiers import variants


def test_the_documented_example_counts_exactly_and_starts_again_where_it_was(stream):
    stream.feed_numbers(1000)
    stream.application().run(count=600, timeout=60)
    stream.application().run(count=400, timeout=60)
    expected = {b"k%d" % number: 100 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


@pytest.mark.thorough
def test_a_lost_disk_is_restored_from_the_changelog(stream):
    stream.feed_numbers(500)
    stream.application().run(count=500, timeout=60)
    stream.delete_local_state()
    stream.feed_numbers(500)
    stream.application().run(count=500, timeout=60)
    expected = {b"k%d" % number: 100 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


def test_at_least_once_counts_right_when_nothing_crashes(stream):
    stream.options["processing_guarantee"] = "at-least-once"
    stream.feed_numbers(300)
    stream.application().run(count=150, timeout=60)
    stream.delete_local_state()
    stream.application().run(count=150, timeout=60)
    assert stream.counts() == {b"k%d" % number: 30 for number in range(10)}


@pytest.mark.thorough
@pytest.mark.parametrize("cold", variants([True, False]))
def test_kill_9_loses_and_doubles_nothing(stream, worker, waiting, cold):
    stream.feed_numbers(2000)
    one = worker()
    for round_ in range(3):
        one.start()
        one.wait_running()
        stream.feed_numbers(3000)
        waiting(lambda seen=round_: one.client.status().records["processed"] > 500, "some progress")
        one.kill()
        if cold:
            import shutil

            shutil.rmtree(one.paths.state)
    one.start().wait_running()
    waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 11_000, "all to be committed")
    assert one.terminate() == 0
    expected = {b"k%d" % number: 1100 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


@pytest.mark.thorough
def test_partitions_move_between_two_members_without_loss(stream, worker, waiting):
    one, two = worker("0"), worker("1")
    stream.feed_numbers(1000)
    one.start().wait_running()
    two.start().wait_running()
    waiting(lambda: len(one.client.status().tasks) == len(two.client.status().tasks) == 1, "a shared assignment")
    stream.feed_numbers(1000)
    waiting(lambda: _processed(one) + _processed(two) >= 2000, "both to be done")
    assert two.terminate() == 0
    stream.feed_numbers(1000)
    before_the_move = sum(stream.topics.committed_offsets(stream.group).values())
    assert before_the_move >= 2000
    waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 3000, "one to have done all")
    assert one.terminate() == 0
    expected = {b"k%d" % number: 300 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


def _processed(worker):
    status = worker.client.status()
    return status.records["processed"] if status is not None else 0


@pytest.mark.thorough
def test_sigterm_commits_and_leaves_nothing_to_do_again(stream, worker, waiting):
    stream.feed_numbers(1000)
    one = worker().start().wait_running()
    waiting(lambda: one.client.status().records["processed"] == 1000, "all processed")
    assert one.terminate() == 0
    committed = stream.topics.committed_offsets(stream.group)
    ends = stream.topics.end_offsets(stream.source, committed=True)
    assert committed == {Partition(stream.source, number): end for number, end in ends.items()}
    assert one.client.status() is None


@pytest.mark.thorough
def test_a_checkpoint_is_the_changelog_at_its_offsets(stream, worker, waiting):
    from pathlib import Path

    from holdfast.infra.kafka.topics.reader import read_range
    from holdfast.processors.engine.changelog.format import META_KEY
    from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint

    stream.feed_numbers(1000)
    one = worker().start().wait_running()
    waiting(lambda: one.client.status().records["processed"] == 1000, "all processed")
    manifest = one.client.checkpoint()
    assert len(manifest["tasks"]) == 2
    for task in manifest["tasks"]:
        at = task["stores"]["counts"]
        folded = {}
        for record in read_range(stream.bootstrap, at["changelog"], task["partition"], 0, at["offset"]):
            if record.key != META_KEY:
                folded[record.key] = record.value
        assert dict(iterate_checkpoint(Path(task["path"]), "counts")) == folded
    assert one.terminate() == 0


def test_stop_from_another_thread(stream):
    stream.feed_numbers(10)
    app = stream.application()
    thread = threading.Thread(target=app.run)
    thread.start()
    app.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert json.dumps(sorted(stream.counts().values())) in ("[]", "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]")
