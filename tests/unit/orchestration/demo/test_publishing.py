"""A failed or interrupted demo ends those of its Dagster runs that write tables."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.orchestration.demo.publishing import SIDE_BY_SIDE, DemoFailed, Publishing


@pytest.fixture
def publishing() -> Iterator[Publishing]:
    """A `Publishing` object (it starts the runs that write tables) without a Dagster instance."""
    nothing: Any = SimpleNamespace()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        yield Publishing(nothing, nothing, threads)


def test_an_interrupted_demo_begins_no_run_and_ends_those_under_way(publishing: Publishing) -> None:
    waiting, ended = Event(), Event()

    def ready(definition: object) -> None:
        waiting.set()
        assert publishing.given_up.wait(60.0)

    def interrupted() -> None:
        definitions: list[Any] = [SimpleNamespace(name=name) for name in "abcdef"]
        with publishing.needed(ended.set):
            publishing.begin(definitions, ready)
            assert len(definitions) > SIDE_BY_SIDE  # more runs than may run at the same time, so the last run is queued
            assert waiting.wait(60.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended.is_set()
    with pytest.raises((DemoFailed, CancelledError)):
        publishing.tables()
    assert publishing.run_ids == set()


def test_a_demo_that_goes_on_gives_nothing_up(publishing: Publishing) -> None:
    ended = Event()
    with publishing.needed(ended.set):
        assert publishing.tables() == {}
    assert not publishing.given_up.is_set()
    assert not ended.is_set()
