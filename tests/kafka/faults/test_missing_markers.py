"""The worker writes the transaction markers that a restarted broker omits.

A broker that leads no partition yet writes no markers (KAFKA-20734).
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from holdfast.infra.kafka.errors import BrokerUnreachable
from holdfast.processors.engine.runtime.ownership.unfinished import open_transactions
from tests.kafka.test_bad_world import committed, is_exact, restarted
from tests.parts.brokers import HASTE

KILLS = int(os.environ.get("HOLDFAST_TEST_KILLS", "20"))
#: Many partitions, so that they stay without a leader for longer after the restart.
PARTITIONS, KEYS, EACH = 60, 200, 20_000


def committed_so_far(stream):
    """The sum of the group's committed offsets; None while no broker answers."""
    with suppress(BrokerUnreachable):
        return committed(stream)
    return None


@pytest.mark.thorough
@pytest.mark.timeout(90 * KILLS)
def test_a_bare_broker_that_is_killed_in_open_transactions_doubles_nothing(
    own_broker, monkeypatch, tmp_path, unique, worker_class, stream_class, waiting
):
    # Without Holdfast's handling, the broker restarts with its former registration, like brokers that other programs
    # start. At first the broker still believes that it leads its former partitions. So it completes ending transactions
    # and aborts those that timed out. Then it learns that it leads no partition yet, so it writes no marker.
    monkeypatch.setattr(type(own_broker), "_decides_alone", False)
    monkeypatch.setitem(HASTE, "transaction.abort.timed.out.transaction.cleanup.interval.ms", 20)
    address = own_broker.address
    stream = stream_class(address.bootstrap, unique("bare"), tmp_path / "state", partitions=PARTITIONS)
    one = worker_class(stream, tmp_path / "home")
    one.environment["TEST_INTERVAL"] = "0.05"  # commit often, so that most kills hit a commit
    one.environment["TEST_TRANSACTION_MS"] = "2000"
    chance = random.Random(20734)
    stream.create_source()
    fed = 0
    stream.provision()
    try:
        one.start().wait_running()
        for kill in range(1, KILLS + 1):

            def met_open() -> bool:
                """Whether the worker has an open transaction.

                If all input is already committed, also feed more messages.
                """
                nonlocal fed
                if committed_so_far(stream) == fed * EACH:
                    stream.feed_numbers(EACH, KEYS)
                    fed += 1
                return bool(open_transactions(stream.topics, [stream.sink]))

            one.waiting(met_open, "a transaction to be open")
            # Wait for a random time, so that the kill hits a random moment within a series of commits.
            time.sleep(chance.uniform(0.0, 0.3))
            os.kill(own_broker.address.pid, signal.SIGKILL)
            waiting(lambda: own_broker.running() is None, "the broker to be gone")
            assert own_broker.start().bootstrap == address.bootstrap
            # On a busy machine, the broker may need longer than the worker waits. Then the worker exits and is
            # restarted, and the test's own query may time out.
            waiting(
                lambda: restarted([one], "cause=broker-away") and committed_so_far(stream) == fed * EACH,
                f"all to be committed after kill {kill}",
            )
        assert one.terminate() == 0
        is_exact(stream, fed * EACH // KEYS, KEYS)
        logs = own_broker.log.parent.glob(f"{own_broker.log.name}*")
        left_out = sum(log.read_text(errors="replace").count("find leader endpoint for partitions") for log in logs)
        written = one.log.read_text().count("its marker is written now")
        print(f"{KILLS} kills; markers left out {left_out} times; written by the worker: {written}")
        assert left_out or KILLS < 10, "nothing was shown: no kill met the end of a transaction"
    finally:
        if one.process is not None and one.process.poll() is None:
            one.kill()
