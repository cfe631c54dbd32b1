"""Faults between the engine and a real broker: aborted commits, commits without an answer, refused records."""

import json
import random

import pytest

from holdfast.infra.kafka.clients.producer import EngineProducer
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.errors import KafkaFailed, OutcomeUnknown, TransactionAborted
from holdfast.infra.settings import load_settings


class FaultyProducer(EngineProducer):
    """A producer on the real broker whose chosen commits fail, by number, before or after they take effect.

    It can also fail when the chosen transaction begins, or when the producer is created again after the failed commit.
    """

    faults: dict[int, tuple[str, type[KafkaFailed]]]
    commits: list[int]

    def init(self, timeout_s):
        self._fail("made", len(self.commits))
        super().init(timeout_s)

    def begin(self):
        self._fail("begin", len(self.commits) + 1)
        super().begin()

    def _fail(self, when, number):
        if self.faults.get(number, (None, None))[0] == when:
            raise self.faults.pop(number)[1]("a planted fault", action="Nothing; it is a test.")

    def commit(self):
        self.commits.append(1)
        when, error = self.faults.pop(len(self.commits), (None, None))
        if when == "after":
            super().commit()
        if error is not None:
            raise error("a planted fault", action="Nothing; it is a test.")
        super().commit()


class FaultyCluster(KafkaCluster):
    def __init__(self, bootstrap, faults):
        super().__init__(bootstrap, consumer_config={"session.timeout.ms": 6000})
        self._faults, self._commits = dict(faults), []

    def producer(self, transactional_id, batch_bytes_max):
        made = FaultyProducer(self.bootstrap, transactional_id)
        made.faults, made.commits = self._faults, self._commits
        return made


@pytest.mark.thorough
@pytest.mark.parametrize(
    "faults",
    [
        {1: ("after", OutcomeUnknown), 2: ("before", TransactionAborted), 4: ("after", OutcomeUnknown)},
        {0: ("made", OutcomeUnknown), 2: ("begin", OutcomeUnknown), 3: ("before", OutcomeUnknown)},
        {1: ("before", TransactionAborted)},
        {2: ("before", TransactionAborted), 3: ("before", TransactionAborted), 6: ("before", TransactionAborted)},
        {2: ("before", OutcomeUnknown), 5: ("after", OutcomeUnknown)},
        {1: ("begin", OutcomeUnknown), 4: ("begin", OutcomeUnknown)},
        {2: ("before", OutcomeUnknown), 1: ("begin", TransactionAborted)},
    ],
)
def test_commits_that_fail_in_the_middle_of_a_batch_lose_and_double_nothing(stream, tmp_path, faults):
    stream.feed_numbers(4000)
    app = stream.application(commit_every=300, commit_interval=5.0)
    app.run_on(FaultyCluster(stream.bootstrap, faults), load_settings(home=tmp_path), count=4000, timeout=20)
    expected = {b"k%d" % number: 400 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


def growing(limit):
    def count(value, state):
        total = state.get("n", 0) + 1
        state.set("n", total)
        return random.Random(7).randbytes(2_000_000).hex() if value == limit else total

    return count


@pytest.mark.thorough
def test_an_output_that_only_the_broker_refuses_takes_its_whole_slice_back(stream):
    stream.feed([(b"k%d" % (number % 10), json.dumps(number).encode()) for number in range(1000)])
    app = stream.application(growing(700), producer_extra_config={"message.max.bytes": 10_000_000})
    with pytest.raises(KafkaFailed, match="MSG_SIZE_TOO_LARGE"):
        app.run(count=1000, timeout=30)
    left = 1000 - sum(stream.topics.committed_offsets(stream.group).values())
    stream.application().run(count=left, timeout=60)
    expected = {b"k%d" % number: 100 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)
