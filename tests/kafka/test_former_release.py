"""Workers of the former and the present release of Holdfast run in one group, as during a rolling deploy.

Then the deploy is rolled back.
"""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from tests.kafka.test_bad_world import committed, is_exact
from tests.parts.former_release import unpack

ROUND, KEYS = 600, 20


@pytest.fixture
def pair(stream, worker_class, tmp_path):
    """A worker of the former release in slot (place) 0, and one of this release in slot 1. Both are stopped later."""
    stream.provision()
    former, present = (worker_class(stream, tmp_path / "home", slot) for slot in ("0", "1"))
    home = tmp_path / "home"
    former.environment["PYTHONPATH"] = f"{unpack(tmp_path / 'former')}{os.pathsep}{home}"
    yield former, present
    for each in (former, present):
        if each.process is not None and each.process.poll() is None:
            each.kill()


def feed(stream, rounds, *workers):
    stream.feed_numbers(ROUND, KEYS)
    workers[0].waiting(lambda: committed(stream) == rounds * ROUND, f"round {rounds}")


@pytest.mark.thorough
def test_a_rolling_deploy_and_its_rollback_between_releases_lose_and_double_nothing(stream, pair, waiting):
    former, present = pair
    former.start().wait_running()
    assert (former.paths.state / stream.group / "0").exists()
    assert not (former.paths.state / stream.group / "0" / "id").exists(), "slot 0 runs the code of the former release"
    feed(stream, 1, former)

    present.start().wait_running()
    waiting(lambda: shares(former, present) == [1, 1], "both releases to have a partition")
    feed(stream, 2, former, present)
    # kill a worker of one release: the other release takes over its state
    os.kill(present.process.pid, signal.SIGKILL)
    present.process.wait(30)
    feed(stream, 3, former)
    present.start().wait_running()
    waiting(lambda: shares(former, present) == [1, 1], "both releases to have a partition again")
    former.kill()
    feed(stream, 4, present)

    # rollback: the former release restores its state from changelogs and checkpoints that the present release wrote
    shutil.rmtree(former.paths.state / stream.group / "0")
    former.start().wait_running()
    assert present.terminate() == 0
    feed(stream, 5, former)
    shutil.rmtree(present.paths.state / stream.group / "1")
    present.start().wait_running()
    waiting(lambda: shares(former, present) == [1, 1], "both releases to have a partition at the end")
    assert former.terminate() == 0
    feed(stream, 6, present)
    assert present.terminate() == 0
    is_exact(stream, 6 * ROUND // KEYS, KEYS)


def shares(*workers):
    """The number of tasks in each worker."""
    states = [worker.client.status() for worker in workers]
    return [0 if status is None else len(status.tasks) for status in states]
