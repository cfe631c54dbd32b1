"""The page of the example counts words live in a real browser. The state comes from workers without a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Page, expect

from tests.browser.conftest import picture
from tests.docs.examples.loaded import example
from tests.parts.state_workers import StateWorker, state_workers

COUNTS = {"the": 42, "sea": 31, "and": 24, "of": 17, "kelp": 9, "anchor": 5, "rock": 3}


@contextmanager
def served(service: Any) -> Iterator[str]:
    """A web server with the service, in a thread."""
    server = uvicorn.Server(uvicorn.Config(service, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def test_the_page_shows_counts_as_they_change(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    with state_workers(1) as (worker,):
        worker.world.store, worker.world.processor = "counts", "word-count"
        for word, n in COUNTS.items():
            worker.world.put(word, {"n": n})
        worker.announce(tmp_path / "run")
        with served(example("word_count_page").service) as url:
            page.set_viewport_size({"width": 760, "height": 380})
            page.goto(url)
            rows = page.locator("#words tr")
            expect(rows).to_have_count(len(COUNTS))
            expect(rows.first).to_contain_text("the42")
            picture(page, "word-count.png")
            worker.world.put("<b>sea</b>", {"n": 99})
            expect(rows.first).to_contain_text("<b>sea</b>99")
            worker.fault = lambda target: StateWorker.away("Task counts-0 is being restored.")
            expect(page.locator("#away")).to_contain_text("is being restored")
            expect(rows).to_have_count(len(COUNTS) + 1)
            page.goto("about:blank")
    assert faults == []
