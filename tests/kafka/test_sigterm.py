"""A stop under load leaves no message to process again.

A kill during a transaction blocks readers for a limited time.
"""

import json
import signal
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.infra.kafka.topics.reader import read_range
from tests.mechanics.tiers import variants

#: The time within which a worker must stop after SIGTERM, in seconds.
STOP_WITHIN_S = 10.0
#: The longest time that an open transaction may block readers: the engine's transaction timeout plus a margin, in
#: seconds.
TRANSACTION_TIMEOUT_S = 15.0
READERS_WAIT_MAX_S = TRANSACTION_TIMEOUT_S + 15.0


class Load(threading.Thread):
    """Feeds thousands of numbers per second until the block ends."""

    def __init__(self, stream):
        super().__init__()
        self._stream, self._stop_asked, self.fed = stream, threading.Event(), 0

    def run(self):
        producer = Producer({"bootstrap.servers": self._stream.bootstrap, "partitioner": "murmur2_random"})
        while not self._stop_asked.wait(0.02):
            for _ in range(60):
                producer.produce(self._stream.source, json.dumps(self.fed).encode(), b"k%d" % (self.fed % 10))
                self.fed += 1
            producer.poll(0)
        assert producer.flush(60) == 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_asked.set()
        self.join()

    @property
    def expected(self):
        return {b"k%d" % key: (self.fed - key + 9) // 10 for key in range(10)}


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def sent(stream, *, also_aborted):
    """Return the number of outputs, with or without the outputs of aborted transactions."""
    ends = stream.topics.settled_end_offsets(stream.sink)
    return sum(
        1
        for number, end in ends.items()
        for _ in read_range(stream.bootstrap, stream.sink, number, 0, end, committed=not also_aborted)
    )


def terminate(workers):
    """Send SIGTERM to all workers. Returns for each worker the seconds until it exited with code 0."""
    began = time.monotonic()
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
    took = []
    for worker in workers:
        code = worker.process.wait(max(0.1, began + STOP_WITHIN_S - time.monotonic()))
        took.append(time.monotonic() - began)
        assert code == 0, worker.tail()
    return took


def has_nothing_to_do_again(stream):
    """Assert that no input would be processed again. No output was aborted, and each output's input is committed.

    Returns the number of outputs.
    """
    done = committed(stream)
    assert sent(stream, also_aborted=True) == sent(stream, also_aborted=False) == done
    assert sum(stream.counts().values()) == done
    return done


@pytest.mark.parametrize("guarantee", variants(["exactly-once", "at-least-once"]))
def test_a_worker_that_is_told_to_stop_under_load_ends_in_time_with_nothing_to_do_again(
    stream, worker, waiting, guarantee
):
    one = worker()
    one.environment["TEST_GUARANTEE"] = guarantee
    with Load(stream) as load:
        one.start()
        waiting(lambda: committed(stream) > 2000, "some progress")
        (took,) = terminate([one])
        done = has_nothing_to_do_again(stream)
        print(f"{guarantee}: 0 after {took:.2f} s, {done} processed and committed")
    one.start()
    waiting(lambda: committed(stream) == load.fed, "all to be committed")
    one.wait_running()
    terminate([one])
    assert stream.counts() == load.expected
    stream.outputs_are_exact(load.expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "together", [pytest.param(True, id="both at once"), pytest.param(False, id="one after the other")]
)
def test_two_workers_that_are_told_to_stop_under_load_leave_nothing_to_do_again(stream, worker, waiting, together):
    both = [worker("0"), worker("1")]
    with Load(stream) as load:
        for one in both:
            one.start()
        waiting(
            lambda: [len(status.tasks) for one in both if (status := one.client.status())] == [1, 1], "a share each"
        )
        before = committed(stream)
        waiting(lambda: committed(stream) > before + 2000, "some progress")
        took = terminate(both) if together else terminate(both[:1]) + terminate(both[1:])
        done = has_nothing_to_do_again(stream)
        print(f"0 after {', '.join(f'{seconds:.2f} s' for seconds in took)}, {done} processed and committed")
    both[0].start()
    waiting(lambda: committed(stream) == load.fed, "all to be committed")
    both[0].wait_running()
    terminate(both[:1])
    assert stream.counts() == load.expected
    stream.outputs_are_exact(load.expected)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "restarted",
    [pytest.param(True, id="restarted in its slot"), pytest.param(False, id="never restarted")],
)
def test_a_worker_killed_in_mid_transaction_holds_readers_back_for_a_bounded_time(stream, worker, waiting, restarted):
    """The open transaction of a killed worker blocks readers of its partition for a limited time.

    Until the transaction ends, readers cannot read later records of another producer.
    """
    one = worker()
    one.environment["TEST_INTERVAL"] = "10"
    one.start().wait_running()
    waiting(
        lambda: len(stream.topics.committed_offsets(stream.group)) == stream.partitions, "where it begins to be noted"
    )
    stream.feed([(b"k", b"%d" % number) for number in range(100)])
    (number,) = waiting(lambda: open_partitions(stream), "an open transaction")
    one.kill()
    killed = time.monotonic()
    behind = Producer({"bootstrap.servers": stream.bootstrap})
    behind.produce(stream.sink, b"behind it", partition=number)
    assert behind.flush(30) == 0
    assert open_partitions(stream) == [number], "the transaction is open, and holds the record back"
    one.environment["TEST_INTERVAL"] = "0.2"
    if restarted:
        one.start()
    seen = first_record(stream, number, killed + READERS_WAIT_MAX_S)
    waited = time.monotonic() - killed
    print(f"readers passed {waited:.1f} s after the kill, {'restarted' if restarted else 'never restarted'}")
    assert seen is not None, f"readers are held back for longer than {READERS_WAIT_MAX_S:g} s"
    assert seen == b"behind it"
    if restarted:
        assert waited < TRANSACTION_TIMEOUT_S, "its successor ends the transaction, not the broker's clock"
    else:
        one.start()
    waiting(lambda: committed(stream) == 100, "all to be committed")
    assert one.terminate() == 0
    assert stream.counts() == {b"k": 100}
    values = [record.value for record in stream.read(stream.sink) if record.value != b"behind it"]
    assert values == [b"%d" % total for total in range(1, 101)]


def open_partitions(stream):
    """Return the partitions of the output topic with an open transaction, which keeps the last stable offset low."""
    stable = stream.topics.end_offsets(stream.sink, committed=True)
    ends = stream.topics.end_offsets(stream.sink, committed=False)
    return [number for number, end in ends.items() if stable[number] < end]


def first_record(stream, number, deadline):
    """Return the first record that a read_committed reader gets, or None if no record arrives before the deadline."""
    consumer = Consumer(
        {
            "bootstrap.servers": stream.bootstrap,
            "group.id": stream.group + "-reader",
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(stream.sink, number, 0)])
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                return message.value()
        return None
    finally:
        consumer.close()
