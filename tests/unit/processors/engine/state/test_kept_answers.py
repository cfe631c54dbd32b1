"""The answers of durable calls: found only after their commit, and only for the message that was asked about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.engine.state.databases.memory import MemoryDatabases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.kept_answers import WAITS, Asked, KeptAnswers
from holdfast.processors.engine.state.store import StoreState

TTL_MS = 1_000
FIRST = Asked(5, b"k", b"v", 10)


class Bench:
    """Answers over one database, with the commit and the abort of a task."""

    def __init__(self) -> None:
        self.backend = TaskStore(MemoryDatabases(lambda path, items: None), Path("unused"))
        self.state = StoreState("calls", self.backend)
        self.now_ms = 0
        self.answers = self.opened()

    def opened(self, topic: str = "in", partition: int = 0) -> KeptAnswers:
        return KeptAnswers(topic, partition, self.state, self.backend, TTL_MS, lambda: self.now_ms)

    def commit(self) -> None:
        self.backend.write(self.state.rocks_changes(self.state.writes()), TaskMeta())
        self.state.committed()
        self.answers.committed()

    def abort(self) -> None:
        self.state.drop()
        self.answers.restore()

    def stored(self) -> list[tuple[bytes, str]]:
        return [split_key(key) for key, _ in self.backend.items("calls")]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.backend.close()


def test_an_answer_is_found_after_its_commit_only(bench: Bench) -> None:
    assert bench.answers.find(FIRST) is None
    bench.answers.put(FIRST, {"a": 1}, "ask")
    assert bench.answers.find(FIRST) is WAITS
    assert bench.answers.dirty
    bench.commit()
    assert bench.answers.find(FIRST) == ({"a": 1},)
    assert not bench.answers.dirty
    assert bench.opened().find(FIRST) == ({"a": 1},), "a new owner of the task finds the answer"


def test_after_an_abort_the_answer_is_put_again_without_a_call(bench: Bench) -> None:
    bench.answers.put(FIRST, None, "ask")
    bench.abort()
    assert bench.stored() == []
    assert not bench.answers.dirty
    assert bench.answers.find(FIRST) is WAITS
    bench.commit()
    assert bench.answers.find(FIRST) == (None,), "None is an answer"


@pytest.mark.parametrize(
    "other",
    [
        FIRST._replace(value=b"w"),
        FIRST._replace(value=None),
        FIRST._replace(key=b"l"),
        FIRST._replace(key=None, value=b"kv"),
        FIRST._replace(timestamp_ms=11),
    ],
)
def test_an_answer_is_not_used_for_another_message_of_the_same_offset(bench: Bench, other: Asked) -> None:
    bench.answers.put(FIRST, 1, "ask")
    bench.commit()
    assert bench.answers.find(other) is None
    bench.answers.put(other, 2, "ask")
    bench.commit()
    assert bench.answers.find(other) == (2,)
    assert bench.stored() == [(other.key or b"", "in/5")], "the answer of the former message is replaced"


def test_an_answer_of_another_topic_or_partition_is_not_used(bench: Bench) -> None:
    bench.answers.put(FIRST, 1, "ask")
    bench.commit()
    assert bench.opened("other").find(FIRST) is None
    assert bench.opened(partition=1).find(FIRST) is None


def test_an_answer_is_not_used_once_it_is_as_old_as_its_ttl(bench: Bench) -> None:
    bench.answers.put(FIRST, 1, "ask")
    bench.commit()
    bench.now_ms = TTL_MS - 1
    assert bench.answers.find(FIRST) == (1,)
    bench.now_ms = TTL_MS
    assert bench.answers.find(FIRST) is None


def test_answers_before_the_position_are_deleted_also_those_that_a_former_owner_left(bench: Bench) -> None:
    for offset in (3, 5, 8):
        bench.answers.put(FIRST._replace(offset=offset), offset, "ask")
    bench.commit()
    again = bench.opened()
    again.settle(8)
    bench.commit()
    assert bench.stored() == [(b"k", "in/8")]


def test_an_abort_brings_back_what_it_had_deleted(bench: Bench) -> None:
    bench.answers.put(FIRST, 1, "ask")
    bench.commit()
    bench.answers.settle(6)
    bench.abort()
    assert bench.answers.find(FIRST) == (1,)


def test_an_error_is_kept_until_the_position_passes_its_message_or_an_abort(bench: Bench) -> None:
    error = ValueError("no")
    bench.answers.failed(FIRST, error)
    assert bench.answers.find(FIRST) is error
    bench.abort()
    assert bench.answers.find(FIRST) is None
    bench.answers.failed(FIRST, error)
    bench.answers.settle(6)
    assert bench.answers.find(FIRST) is None
