"""Words are counted, and the page shows the counts as workers have them, also while no worker answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast import InMemoryCluster
from tests.docs.examples.loaded import example
from tests.parts.state_workers import StateWorker, state_workers


def test_words_of_lines_are_counted() -> None:
    build, cluster = example("word_count").application, InMemoryCluster()
    cluster.create_topic("lines", partitions=2)
    for line in ("The sea, the sea!", "", "Über the Sea"):
        cluster.produce("lines", line.encode(), None)
    cluster.run(build())
    counts = {key.decode(): n for (key, name), n in cluster.state(build(), "counts").items() if name == "n"}
    assert counts == {"the": 3, "sea": 3, "über": 1}
    assert {record.key for _, record in cluster.read("word-counts")} == {b"the", b"sea", "über".encode()}


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setattr(example("word_count_page"), "EVERY_S", 0.01)
    with state_workers(1) as (made,):
        made.world.store, made.world.processor = "counts", "word-count"
        made.announce(tmp_path / "run")
        yield made


def shown(event: str) -> dict[str, Any]:
    """The data of a server-sent event."""
    assert event.startswith("data: ")
    assert event.endswith("\n\n")
    document: dict[str, Any] = json.loads(event.removeprefix("data: "))
    return document


async def until(events: AsyncIterator[str], condition: Any) -> dict[str, Any]:
    async with asyncio.timeout(30):
        async for event in events:
            if condition(shown(event)):
                return shown(event)
    raise AssertionError("the events ended")


def test_events_have_the_newest_counts_and_say_when_none_can_be_read(
    worker: StateWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("word_count_page")
    # The service gives up on a reading after 2 s. The test does not wait for that.
    client = module.AsyncStateClient
    monkeypatch.setattr(module, "AsyncStateClient", lambda name, **_: client(name, timeout_s=0.05))
    worker.world.put("sea", {"n": 2})

    async def watch() -> None:
        async with module.lifespan(module.service) as state:
            events = state["counts"].events()
            await until(events, lambda seen: seen["words"] == [["sea", 2]])
            worker.world.put("the", {"n": 3})
            await until(events, lambda seen: seen["words"] == [["the", 3], ["sea", 2]] and seen["away"] is None)
            worker.fault = lambda target: StateWorker.away("Task counts-0 is being restored.")
            away = await until(events, lambda seen: seen["away"])
            assert "is being restored" in away["away"]
            assert away["words"] == [["the", 3], ["sea", 2]], "the last counts stay"
            worker.fault = lambda target: None
            await until(events, lambda seen: seen["away"] is None)

    asyncio.run(watch())


def test_only_the_highest_counts_are_shown(worker: StateWorker) -> None:
    module = example("word_count_page")
    for number in range(module.SHOWN + 5):
        worker.world.put(f"w{number:02d}", {"n": number})

    async def watch() -> dict[str, Any]:
        async with module.lifespan(module.service) as state:
            return await until(state["counts"].events(), lambda seen: seen["words"])

    words = asyncio.run(watch())["words"]
    assert words[0] == [f"w{module.SHOWN + 4}", module.SHOWN + 4]
    assert len(words) == module.SHOWN


def test_the_page_and_one_word(worker: StateWorker) -> None:
    worker.world.put("sea", {"n": 2})
    with TestClient(example("word_count_page").service) as service:
        page = service.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert 'new EventSource("events")' in page.text
        assert "://" not in page.text, "the page loads nothing from a network"
        found = service.get("/words/Sea").json()
        assert (found["word"], found["count"]) == ("sea", 2)
        assert service.get("/words/nobody").json()["count"] == 0
        worker.fault = lambda target: StateWorker.away("Task counts-0 is being restored.", "7")
        away = service.get("/words/sea")
        assert (away.status_code, away.headers["Retry-After"]) == (503, "7")
