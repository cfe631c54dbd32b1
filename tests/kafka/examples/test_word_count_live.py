"""The page of word counts follows the workers on a real broker, with the commands that the page of the docs names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.system.ports import free_port
from tests.kafka.conftest import PROJECT, wait_for

EXAMPLES = PROJECT / "docs" / "examples"


class Programs:
    """The processor and the web service, as processes."""

    def __init__(self, broker: str, home: Path) -> None:
        self._home = home
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": broker,
        }

    @contextmanager
    def run(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program in the block, and end it at the end."""
        with (self._home / "log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, *command], env=self._environment, stdout=log, stderr=log, cwd=self._home
            )
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait(30)

    def log(self) -> str:
        return (self._home / "log").read_text()[-3000:]


class Browser:
    """Listens to the events of the page, as a browser does."""

    def __init__(self, url: str) -> None:
        self._url, self._ends = url, threading.Event()
        self.newest: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Browser:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()

    def _listen(self) -> None:
        while not self._ends.is_set():
            try:
                with httpx.stream("GET", f"{self._url}/events", timeout=120, trust_env=False) as events:
                    for line in events.iter_lines():
                        if line:
                            self.newest = json.loads(line.removeprefix("data: "))
            except httpx.HTTPError:  # the service starts, or ends
                self._ends.wait(0.1)

    def shows(self, **counts: int) -> Callable[[], bool]:
        """A condition: the browser shows exactly these counts, and no reason why they are old."""
        return lambda: not self.newest.get("away") and dict(self.newest.get("words", [])) == counts


def send(broker: str, *lines: str) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for line in lines:
        producer.produce("lines", line)
    assert producer.flush(60) == 0


def test_the_page_shows_counts_while_the_worker_stops_and_starts(broker: str, tmp_path: Path) -> None:
    Topics(broker).create(TopicSpec("lines", 2, 1))
    programs, port = Programs(broker, tmp_path), free_port()
    service = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port), "--timeout-graceful-shutdown", "1")
    processor = str(EXAMPLES / "word_count.py")
    with ExitStack() as stack:
        stack.enter_context(programs.run(*service, "word_count_page:service"))
        browser = stack.enter_context(Browser(f"http://127.0.0.1:{port}"))
        wait_for(lambda: browser.newest.get("away"), "the page to say that no worker answers")
        assert "`app.run(serve=True)`" in browser.newest["away"], "what the program below does"
        send(broker, "the sea", "The Sea and the sky")
        with programs.run(processor):
            wait_for(browser.shows(the=3, sea=2, sky=1, **{"and": 1}), f"the counts: {programs.log()}")
        wait_for(lambda: browser.newest["away"], "the page to say that no worker answers")
        assert dict(browser.newest["words"])["the"] == 3, "the last counts stay"
        send(broker, "sky")
        with programs.run(processor):
            wait_for(browser.shows(the=3, sea=2, sky=2, **{"and": 1}), f"the newer counts: {programs.log()}")
            word = httpx.get(f"http://127.0.0.1:{port}/words/sky", timeout=60, trust_env=False).json()
            assert (word["word"], word["count"]) == ("sky", 2)
