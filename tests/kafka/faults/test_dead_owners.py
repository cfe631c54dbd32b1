"""An owner that dies in its commit leaves an open transaction and pending offsets; its heir aborts them.

Otherwise the heir would wait at least 15 s until the broker aborts the transaction. The records of that commit are
void: the heir continues from the group's committed offsets and processes those messages again.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kafka.faults.verification import verify

PROJECT = Path(__file__).resolve().parents[3]
KEYS = 50


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["between offsets and commit", "between flush and offsets"])
def test_an_heir_ends_the_open_transaction_of_an_owner_killed_in_mid_commit(on_site, workers, waiting, tmp_path, step):
    owner = start_dying(on_site, tmp_path, step, commit=12)
    try:
        on_site.feed_numbers(200, KEYS)
        waiting(lambda: committed(on_site) == 200, "the owner to run")
        heir = workers("1", home="heir")
        heir.environment.update(HOLDFAST_STANDBY_REPLICAS="1", HOLDFAST_LOG_FORMAT="json", TEST_INTERVAL="0.2")
        heir.start()
        waiting(lambda: told(heir, "standby has the whole changelog"), f"a standby; {heir.tail()}")
        waiting(lambda: fed(on_site) and owner.poll() is not None, "the owner to die in its commit")
    finally:
        owner.kill()
        owner.wait(30)
    killed_at = time.time()
    held = {number for number, end in ends(on_site, committed=False).items() if end > ends(on_site, True)[number]}
    assert held, "its transaction holds the changelog"
    waiting(lambda: running(heir) == on_site.partitions, f"the takeover; {heir.tail()}")
    took = time.time() - killed_at
    on_site.feed_numbers(100, KEYS)
    ended = [line["transactional_id"] for line in told(heir, "a former owner left a transaction open; it was ended")]
    assert ended, heir.tail()
    assert all(name.endswith("-0") for name in ended)
    total = sum(on_site.topics.end_offsets(on_site.source, committed=True).values())
    waiting(lambda: committed(on_site) == total, "all to be committed")
    assert heir.terminate() == 0
    print(f"killed {step}: the heir had its task {took:.1f} s later")
    verify(on_site, heir.paths.state)


def start_dying(stream, folder, step, commit):
    script = Path(__file__).with_name("dying_worker.py")
    arguments = [stream.bootstrap, stream.group, folder / "owner", folder / "home", "exactly-once", step, commit]
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT),
        "HOLDFAST_CHECKPOINTS__ENABLED": "false",
        "TEST_SESSION_MS": "8000",
    }
    with (folder / "dying.log").open("ab") as log:
        command = [sys.executable, str(script), *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def fed(stream):
    stream.feed_numbers(400, KEYS)
    return True


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def ends(stream, committed):
    return stream.topics.end_offsets(f"{stream.group}-counts-changelog", committed=committed)


def told(worker, event):
    lines = [line for line in worker.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in map(json.loads, lines) if line["event"] == event]


def running(worker):
    status = worker.client.status()
    return 0 if status is None else sum(task.phase == "running" for task in status.tasks)
