"""A worker waits for a frozen broker. If the broker is gone, the worker exits with a dedicated exit code."""

import os
import signal
import threading

import pytest

from holdfast.infra.exit_codes import EXIT_BROKER_UNAVAILABLE
from tests.kafka.test_bad_world import committed, is_exact

#: How long the broker is frozen, in seconds; longer than the session timeout.
AWAY_S = float(os.environ.get("HOLDFAST_TEST_AWAY_S", "8"))


@pytest.mark.thorough
def test_a_broker_that_freezes_is_waited_for_and_one_that_is_gone_ends_the_worker(
    own_broker, tmp_path, unique, worker_class, stream_class, waiting
):
    address = own_broker.address
    stream = stream_class(address.bootstrap, unique("away"), tmp_path / "state")
    one = worker_class(stream, tmp_path / "home")
    try:
        stream.create_source()
        stream.provision()
        one.environment["TEST_BROKER_TIMEOUT"] = str(AWAY_S + 60)
        stream.feed_numbers(500)
        one.start()
        one.waiting(lambda: committed(stream) == 500, "the first half")
        _freeze(address.pid, lambda: feed_later(stream, 500))
        one.waiting(lambda: committed(stream) == 1000, "the second half")
        one.wait_running()
        assert one.terminate() == 0
        is_exact(stream, 100, 10)

        one.environment["TEST_BROKER_TIMEOUT"] = "8"
        one.start().wait_running()
        os.kill(address.pid, signal.SIGKILL)
        assert one.wait() == EXIT_BROKER_UNAVAILABLE, one.tail()
        assert "Check" in one.tail()
        failure = one.client.last_failure()
        assert failure is not None
        assert failure.error["type"] == "BrokerUnreachable"
        waiting(lambda: own_broker.running() is None, "the broker to be gone")
        assert own_broker.start().bootstrap == address.bootstrap
        stream.feed_numbers(500)
        one.environment["TEST_BROKER_TIMEOUT"] = "60"
        one.start()
        one.waiting(lambda: committed(stream) == 1500, "the rest")
        one.wait_running()
        assert one.terminate() == 0
        is_exact(stream, 150, 10)
    finally:
        if one.process is not None and one.process.poll() is None:
            one.kill()


def _freeze(pid, meanwhile):
    """Freeze the broker for ``AWAY_S``. The thread that ``meanwhile`` returns runs during this time and is joined."""
    os.kill(pid, signal.SIGSTOP)
    try:
        beside = meanwhile()
        threading.Event().wait(AWAY_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    beside.join(60)
    assert not beside.is_alive()


def feed_later(stream, count):
    """Feed on a thread while the broker is frozen; the messages arrive when the broker continues."""
    beside = threading.Thread(target=stream.feed_numbers, args=(count,))
    beside.start()
    return beside
