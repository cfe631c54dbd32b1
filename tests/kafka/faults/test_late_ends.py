"""Requests of a commit arrive late: during a later transaction, or after a rebalance."""

import os
import re
import signal

import pytest
from confluent_kafka import KafkaError

from tests.kafka.faults.proxy import END_TXN, OFFSET_FETCH, REFUSED, TXN_OFFSET_COMMIT, Fate
from tests.kafka.faults.verification import finish, verify

#: A client waits for an answer twice the transaction timeout. A short timeout keeps the test short.
QUICK = {"transaction.timeout.ms": 4000}


@pytest.mark.thorough
def test_an_end_that_arrives_late_does_not_end_the_transaction_that_is_open_then(site, on_site, waiting):
    """An EndTxn request that arrives late must not end the transaction that is open at that moment.

    The client library silently resends EndTxn. The late request therefore has an older producer epoch than the open
    transaction.
    """
    on_site.feed_numbers(2000)
    late = site.proxy.on(END_TXN, Fate.HOLD, nth=3)
    # Release the held EndTxn when the next transaction has sent its records, but not yet its offsets.
    meets = site.proxy.on(TXN_OFFSET_COMMIT, Fate.CALL, nth=4, call=lambda: arrive(late))
    finish(on_site.through, waiting, commit_every=200, commit_interval=2.0, producer_extra_config=QUICK, slot="0")
    assert meets.struck.is_set()
    assert late.error in REFUSED
    on_site.feed_numbers(1000)
    finish(on_site.through, waiting, producer_extra_config=QUICK, slot="0")
    verify(on_site, on_site.state_dir)


@pytest.mark.thorough
def test_offsets_that_arrive_late_do_not_set_the_group_back(site, on_site, waiting):
    """A late request with offsets must not set the group back.

    The request gets no answer, so its transaction is aborted and retried. The request arrives during the next
    transaction.
    """
    # all messages are in one partition, so that late offsets would overwrite newer offsets
    on_site.feed([(b"k", b"1")] * 6000)
    seen = []
    late = site.proxy.on(TXN_OFFSET_COMMIT, Fate.HOLD, nth=3)
    for nth in (5, 6):
        site.proxy.on(TXN_OFFSET_COMMIT, Fate.CALL, nth=nth, call=lambda: seen.append(committed(on_site)))
    # The third EndTxn is the abort, the fourth ends the retry, the fifth ends the next transaction.
    meets = site.proxy.on(END_TXN, Fate.CALL, nth=5, call=lambda: arrive(late))
    finish(on_site.through, waiting, commit_every=200, commit_interval=2.0, producer_extra_config=QUICK, slot="0")
    assert meets.struck.is_set()
    assert late.answered.is_set()
    before, after = seen
    assert after > before
    on_site.feed_numbers(1000)
    finish(on_site.through, waiting, producer_extra_config=QUICK, slot="0")
    verify(on_site, on_site.state_dir)


@pytest.mark.thorough
def test_a_zombies_end_that_arrives_after_the_rebalance_counts_and_its_successor_waits_for_it(
    site, on_site, workers, waiting
):
    on_site.feed_numbers(1000)
    zombie = workers("0").start().wait_running()
    waiting(lambda: committed(on_site) == 1000, "the first thousand")
    end = site.proxy.on(END_TXN, Fate.HOLD)
    on_site.feed_numbers(1000)
    waiting(end.struck.is_set, "its end to be on its way")
    os.kill(zombie.process.pid, signal.SIGSTOP)
    # From here on, only the successor fetches offsets. It repeats the request, because the group has pending offsets.
    site.proxy.on(OFFSET_FETCH, Fate.CALL, nth=3, call=end.release.set)
    successor = workers("1").start()
    waiting(end.answered.is_set, f"the end to have arrived; the successor's log ends: {successor.tail()}")
    assert end.error == KafkaError.NO_ERROR
    successor.wait_running()
    waiting(lambda: committed(on_site) == 2000, "the successor to have done the rest")
    os.kill(zombie.process.pid, signal.SIGCONT)
    on_site.feed_numbers(1000)
    waiting(lambda: committed(on_site) == 3000, "all to be committed")
    assert zombie.terminate() == 0
    assert successor.terminate() == 0
    assert began_at(successor) > 1000, "the zombie's last transaction was committed, and is in the successor's state"
    verify(on_site, successor.paths.state)


def arrive(late):
    assert late.struck.is_set()
    late.release.set()
    assert late.answered.wait(30)


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def began_at(worker):
    """Return the sum of the committed offsets from which a worker's tasks started.

    For each task, the first start counts.
    """
    began = {}
    for line in worker.log.read_text().splitlines():
        if "task runs" in line:
            task, offset = re.search(r"task=(\S+)", line)[1], re.search(r"committed={'[^']+': (\d+)}", line)[1]
            began.setdefault(task, int(offset))
    return sum(began.values())
