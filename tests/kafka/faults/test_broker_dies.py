"""The broker is killed (SIGKILL) in the middle of a commit, and is restarted. No message is lost or counted twice."""

import os
import signal
import time

import pytest

from tests.kafka.faults.proxy import ADD_OFFSETS, END_TXN, PRODUCE, TXN_OFFSET_COMMIT, Fate
from tests.kafka.faults.verification import verify
from tests.mechanics.tiers import variants

#: The longest time that read_committed readers may wait, in seconds: the engine's transaction timeout plus a margin.
READERS_WAIT_MAX_S = 15.0 + 15.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "api_key",
    variants(
        [
            pytest.param(END_TXN, id="ending"),
            pytest.param(PRODUCE, id="sending"),
            pytest.param(ADD_OFFSETS, id="adding"),
            pytest.param(TXN_OFFSET_COMMIT, id="offsets"),
        ]
    ),
)
def test_a_broker_killed_in_mid_commit_loses_and_doubles_nothing(site, on_site, workers, waiting, api_key, capsys):
    on_site.feed_numbers(1000)
    one = workers("0").start().wait_running()
    waiting(lambda: committed(on_site) == 1000, "the first thousand")
    pid = site.broker.running().pid
    one.client.pause()
    on_site.feed_numbers(1000)
    rule = site.proxy.on(api_key, Fate.CALL, call=lambda: os.kill(pid, signal.SIGKILL))
    one.client.resume()
    waiting(rule.struck.is_set, "the point to be reached")
    waiting(lambda: site.broker.running() is None, "the broker to be gone")
    assert site.broker.start().bootstrap == site.address.bootstrap
    back = time.monotonic()
    on_site.topics.settled_end_offsets(on_site.sink, READERS_WAIT_MAX_S)
    with capsys.disabled():
        print(f" readers were held back for {time.monotonic() - back:.1f} s ", end="")
    waiting(lambda: committed(on_site) == 2000, f"the rest; the worker's log ends: {one.tail()}")
    assert one.terminate() == 0
    verify(on_site, one.paths.state)


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())
