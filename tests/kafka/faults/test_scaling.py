"""Workers join and leave the group under load and during restores: no message is lost or counted twice."""

import threading
from collections import Counter

import pytest

from holdfast.processors.engine.runtime.ownership import changelog_replay as restore
from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer
from tests.kafka.faults.verification import verify


@pytest.mark.thorough
@pytest.mark.parametrize("on_site", [6], indirect=True, ids=["6 partitions"])
def test_scaling_from_one_to_three_to_two_under_load(on_site, workers, waiting):
    stop = threading.Event()

    def load():
        while not stop.wait(0.02):
            on_site.feed_numbers(50)

    feeding = threading.Thread(target=load)
    feeding.start()
    try:
        one = workers("0").start().wait_running()
        two, three = workers("1").start(), workers("2").start()
        waiting(lambda: [running(each) for each in (one, two, three)] == [2, 2, 2], "a share for each of three")
        before = committed(on_site)
        waiting(lambda: committed(on_site) > before + 500, "progress with three")
        assert one.terminate() == 0
        waiting(lambda: [running(each) for each in (two, three)] == [3, 3], "a share for each of two")
        before = committed(on_site)
        waiting(lambda: committed(on_site) > before + 500, "progress with two")
    finally:
        stop.set()
        feeding.join()
    total = sum(on_site.topics.end_offsets(on_site.source, committed=True).values())
    waiting(lambda: committed(on_site) == total, "all to be committed")
    assert two.terminate() == 0
    assert three.terminate() == 0
    verify(on_site, two.paths.state)


@pytest.mark.thorough
def test_rebalances_in_the_middle_of_restores_lose_and_double_nothing(stream, waiting, monkeypatch):
    messages = [(b"k%d" % (number % 3000), b"1") for number in range(6000)]
    # no checkpoints, because a restore from a checkpoint would have nothing left to replay
    monkeypatch.setenv("HOLDFAST_CHECKPOINTS__ENABLED", "false")
    stream.feed(messages)
    stream.application(slot="0").run(count=6000, timeout=60)
    stream.delete_local_state()
    half_way = threading.Event()  # let restores pause half-way until all members have joined
    monkeypatch.setattr(restore, "RECORDS_PER_STEP", 3)
    monkeypatch.setattr(Restorer, "step", _stopping(Restorer.step, half_way))
    apps = [stream.application(slot=str(number)) for number in range(3)]
    threads = [threading.Thread(target=app.run) for app in apps]
    try:
        for members, thread in enumerate(threads, start=1):
            thread.start()
            waiting(lambda: stream.topics.members(stream.group) == members, "the member to have joined")  # noqa: B023
            sharing = min(members, stream.partitions)
            waiting(lambda: sum(map(is_half_restored, apps)) == sharing, "a restore half done in each")  # noqa: B023
        half_way.set()
        stream.feed(messages)
        waiting(lambda: committed(stream) == 12_000, "all to be committed")
    finally:
        half_way.set()
        for app in apps:
            app.stop()
        for thread in threads:
            if thread.ident is not None:  # join only the threads that were started
                thread.join(60)
    assert stream.counts() == Counter(key for key, _ in messages + messages)
    verify(stream)


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def running(worker):
    """The number of tasks that run in this worker."""
    status = worker.client.status()
    return 0 if status is None else sum(task.phase == "running" for task in status.tasks)


def is_half_restored(app):
    """Whether a restore of this worker has read at least 500 records, but not all of them."""
    worker = app._worker
    restores = [] if worker is None else list(worker.assignment.restoring.values())
    return any(_has_half(each) for each in restores)


def _has_half(task_restore):
    return task_restore.records >= 500 and not task_restore.done


def _stopping(step, goes_on):
    """Wrap ``Restorer.step`` so that each restore pauses half-way until the event ``goes_on`` is set."""

    def stopping(restorer, timeout_s):
        if not goes_on.is_set() and any(_has_half(each) for each in restorer.active.values()):
            goes_on.wait(timeout_s)
            return []
        return step(restorer, timeout_s)

    return stopping
