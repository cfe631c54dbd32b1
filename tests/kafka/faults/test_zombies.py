"""A worker is frozen for longer than its session timeout.

A successor takes over its tasks, and the worker rejoins later.
"""

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.kafka.faults.proxy import END_TXN, PRODUCE, TXN_OFFSET_COMMIT, Fate
from tests.kafka.faults.verification import verify
from tests.mechanics.tiers import variants


@pytest.mark.parametrize(
    ("api_key", "fate"),
    variants(
        [
            pytest.param(END_TXN, Fate.CALL, id="ending"),
            pytest.param(PRODUCE, Fate.CALL, id="while sending"),
            pytest.param(TXN_OFFSET_COMMIT, Fate.CALL, id="sending offsets"),
            pytest.param(END_TXN, Fate.HOLD, id="its end arrives late"),
        ]
    ),
)
def test_a_zombie_changes_nothing(site, on_site, workers, waiting, api_key, fate):
    on_site.feed_numbers(1000)
    zombie = workers("0").start().wait_running()
    waiting(lambda: committed(on_site) == 1000, "the first thousand")

    def freeze():
        os.kill(zombie.process.pid, signal.SIGSTOP)

    rule = site.proxy.on(api_key, fate, call=freeze)
    on_site.feed_numbers(1000)
    waiting(rule.struck.is_set, "the point to be reached")
    if fate is Fate.HOLD:
        freeze()
    successor = workers("1").start().wait_running()
    waiting(lambda: committed(on_site) == 2000, "the successor to have done all")
    rule.release.set()
    os.kill(zombie.process.pid, signal.SIGCONT)
    waiting(lambda: tasks(zombie) == 1 and tasks(successor) == 1, "both to share the partitions")
    on_site.feed_numbers(1000)
    waiting(lambda: committed(on_site) == 3000, "both to have done all")
    assert zombie.terminate() == 0
    assert successor.terminate() == 0
    verify(on_site, successor.paths.state)


FREEZES = """
import os, signal

def freezing(value, state):
    if value == int(os.environ.get("TEST_FREEZE_AT", "-1")):
        os.kill(os.getpid(), signal.SIGSTOP)
    return count(value, state)

"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("at", "guarantee"),
    variants(
        [
            pytest.param(1999, "exactly-once", id="last message-exactly-once"),
            pytest.param(1999, "at-least-once", id="last message-at-least-once"),
            pytest.param(1000, "exactly-once", id="first message-exactly-once"),
            pytest.param(1000, "at-least-once", id="first message-at-least-once"),
        ]
    ),
)
def test_a_worker_frozen_in_its_function_changes_nothing(on_site, workers, waiting, at, guarantee):
    """A worker that is frozen inside the user's function changes nothing when it continues.

    It freezes at the first message, when it has sent nothing, or at the last one, when it has sent all earlier outputs.
    """
    workers = partial(workers, guarantee=guarantee)
    on_site.feed_numbers(1000)
    zombie = workers("0", home="zombie")
    definition = zombie.paths.home / "counting_definition.py"
    above, below = definition.read_text().split("frame = ", 1)
    definition.write_text(f"{above}{FREEZES}frame = {below}".replace(".apply(count,", ".apply(freezing,"))
    zombie.environment["TEST_FREEZE_AT"] = str(at)
    zombie.start().wait_running()
    waiting(lambda: committed(on_site) == 1000, "the first thousand")
    on_site.feed([(b"k%d" % (number % 10), b"%d" % number) for number in range(1000, 2000)])
    waiting(lambda: is_frozen(zombie), "the worker to freeze itself")
    successor = workers("1", home="successor").start().wait_running()
    waiting(lambda: committed(on_site) == 2000, "the successor to have done all")
    os.kill(zombie.process.pid, signal.SIGCONT)
    waiting(lambda: tasks(zombie) == 1 and tasks(successor) == 1, "both to share the partitions")
    on_site.feed_numbers(1000)
    waiting(lambda: committed(on_site) == 3000, "both to have done all")
    assert zombie.terminate() == 0
    assert successor.terminate() == 0
    if guarantee == "exactly-once":
        verify(on_site)
    else:  # the successor sends again what the frozen worker had already sent
        expected = Counter(record.key for record in on_site.read(on_site.source))
        assert on_site.counts() == expected
        outputs = Counter((record.key, record.value) for record in on_site.read(on_site.sink))
        wanted = {(key, b"%d" % number) for key, many in expected.items() for number in range(1, many + 1)}
        assert set(outputs) == wanted


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def tasks(worker):
    status = worker.client.status()
    return 0 if status is None else sum(task.phase == "running" for task in status.tasks)


def is_frozen(worker):
    state = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
