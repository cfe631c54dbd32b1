"""A task names exactly the message that raised an error.

Its three offsets stay consistent: where the task began, what is committed, and where it continues.
"""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.commit import prepare, write_local
from holdfast.processors.engine.runtime.task.failed_message import FailedMessage
from holdfast.processors.engine.runtime.task.task import RECORDS_AT_ONCE, Task
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.topology import Topology

COUNT = RECORDS_AT_ONCE + 20
#: Consecutive messages are two offsets apart, so that an index can never equal an offset.
OFFSETS = [1000 + 2 * index for index in range(COUNT)]


class Stopped(Exception):
    """Raised like the error of a worker without a dead-letter topic."""


def started(bad: set[int], committed: dict[str, int]) -> Task:
    """A running task whose function fails with a division by zero for the messages at these indices."""

    def divide(value: int) -> int:
        return value // (0 if value in bad else 1)

    task = Task("in-0", "in", 0, ("in",))
    task.open(None, ())
    frame = StreamingDataFrame(Topic("in")).apply(divide).to_topic(Topic("out"))
    task.start({"in": frame}, committed, {"in": OFFSETS[0], **committed})
    return task


def batch() -> Batch:
    values = [b"%d" % index for index in range(COUNT)]
    return Batch(Partition("in", 0), [b"k"] * COUNT, list(values), [7] * COUNT, list(OFFSETS), [None] * COUNT)


@pytest.mark.parametrize(
    "bad",
    [{0}, {5}, {5, 6}, {COUNT - 1}, {RECORDS_AT_ONCE - 1, RECORDS_AT_ONCE}, set(range(COUNT))],
    ids=["first", "middle", "neighbours", "last", "both sides of a read", "all"],
)
def test_the_failed_message_is_named_and_all_others_are_processed_once(bad: set[int]) -> None:
    task, failed = started(bad, {}), list[FailedMessage]()
    assert task.process(batch(), 0, COUNT, failed.append) == COUNT
    assert [each.offset for each in failed] == [OFFSETS[index] for index in sorted(bad)]
    assert [each.value for each in failed] == [b"%d" % index for index in sorted(bad)]
    assert task.outboxes["out"].values == [b"%d" % index for index in range(COUNT) if index not in bad]
    assert task.positions == {"in": OFFSETS[-1] + 1}


def test_a_worker_that_stops_at_a_message_stands_in_front_of_it() -> None:
    def stop(failed: FailedMessage) -> None:
        raise Stopped(failed.offset)

    task = started({5}, {})
    with pytest.raises(Stopped, match=str(OFFSETS[5])):
        task.process(batch(), 0, COUNT, stop)
    assert task.positions == {"in": OFFSETS[4] + 1}
    assert task.outboxes["out"].values == [b"0", b"1", b"2", b"3", b"4"]


def test_positions_go_back_to_what_was_committed_and_before_a_first_commit_to_where_the_task_began() -> None:
    task = started(set(), {})
    assert (task.began, task.committed, task.positions) == ({"in": 1000}, {}, {"in": 1000})
    task.process(batch(), 0, 10, lambda failed: None)
    assert task.positions == {"in": OFFSETS[9] + 1}
    assert task.drop() == {"in": 1000}
    task.process(batch(), 0, 10, lambda failed: None)
    write_local(prepare([task]), Topology("p", (), (), None, (), (), ()), {"in": "id"}, 0.0)
    assert (task.began, task.committed, task.positions) == ({"in": 1000}, {"in": 1019}, {"in": 1019})
    task.process(batch(), 0, COUNT, lambda failed: None)
    assert task.positions == {"in": OFFSETS[-1] + 1}
    assert task.drop() == {"in": 1019}
