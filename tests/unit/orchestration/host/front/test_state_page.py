"""The page of the webserver that reads one key of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from holdfast.infra.settings import ServingSettings
from holdfast.infra.system.process import own_identity, start_mark
from holdfast.orchestration.host.front.state_page import WithStatePage, shown_answer
from holdfast.processors.engine.queries.figures import QueryFigures
from holdfast.processors.engine.serving.connections import RequestServer
from holdfast.processors.engine.serving.endpoint_file import Endpoint, running_workers, write_endpoint
from holdfast.processors.engine.serving.guard import Guard
from holdfast.processors.engine.serving.requests import Answer, Head, Later

POSITION = {
    "partition": 1,
    "inputs": {"orders": 1200},
    "committed_at": 0.0,
    "age_s": 0.5,
    "source": "owner",
    "worker": "0",
}


class Stated:
    """Routes of state with one answer. They note what was asked for."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer, self.heads = answer, list[Head]()

    def serves(self, page: str) -> bool:
        return page.startswith("/stores")

    def at_once(self, head: Head) -> Answer | Later | None:
        self.heads.append(head)
        return Answer(200 if self.answer.get("found") else 404, self.answer)

    def on_thread(self, head: Head) -> Answer | Later:
        raise AssertionError(head)

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        return {}

    def counted(self, head: Head, answer: Answer) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], tuple[TestClient, Stated]]]:
    made = []

    def start(answer: dict[str, Any]) -> tuple[TestClient, Stated]:
        serving, routes = ServingSettings(), Stated(answer)
        guard = Guard(serving)
        server = RequestServer(serving, guard, lambda *_: Answer(200, {}), [], queries=routes)
        server.start()
        made.append(server)
        mark, identity = start_mark(os.getpid()) or "", str(own_identity())
        worker = "holdfast-orders-totals-0123456789ab-0"
        known = Endpoint(os.getpid(), server.url, guard.token, mark, False, identity, guard.state_token, worker)
        write_endpoint(tmp_path / "orders-totals-0.json", known)
        return TestClient(WithStatePage(Starlette(), tmp_path, "/dagster")), routes

    yield start
    for each in made:
        each.close()


ASKED = "/dagster/state?processor=orders-totals&store=totals&key=a%20%2Fb"


def test_the_values_of_a_key_are_shown_with_their_position(page: Any) -> None:
    client, routes = page({"found": True, "state": {"n": 3, "<b>": "<i>"}, "position": POSITION})
    shown = client.get(ASKED)
    assert shown.status_code == 200
    assert "&lt;b&gt;</td><td><pre>&quot;&lt;i&gt;&quot;" in shown.text
    assert "Partition 1, up to orders offset 1,200" in shown.text
    assert 'value="a /b"' in shown.text
    assert shown.headers["content-security-policy"].startswith("default-src 'none'")
    (head,) = routes.heads
    assert (head.page, head.authorization.split()[0]) == ("/stores/totals/keys/a%20%2Fb", "Bearer")


def test_an_absent_key_and_a_refusal_are_told(page: Any) -> None:
    client, _ = page({"found": False, "positions": [POSITION]})
    assert "does not have this key" in client.get(ASKED).text
    client, _ = page({"error": "Task t-1 is not ready.", "action": "Send the query again after 2 s."})
    assert "Task t-1 is not ready. Send the query again after 2 s." in client.get(ASKED).text


def test_the_empty_form_asks_nobody(page: Any) -> None:
    client, routes = page({"found": True})
    assert 'name="key" value=""' in client.get("/dagster/state").text
    assert routes.heads == []
    assert client.get("/dagster/statements").status_code == 404


def test_without_a_worker_the_page_says_where_to_look(tmp_path: Path) -> None:
    client = TestClient(WithStatePage(Starlette(), tmp_path))
    text = client.get("/state?processor=orders&store=totals&key=a").text
    assert "No worker of orders runs on this machine. `holdfast status` shows the workers." in text


def test_a_worker_of_a_processor_with_a_longer_name_is_not_asked(page: Any, tmp_path: Path) -> None:
    page({"found": True})
    assert not running_workers(tmp_path, "orders")
    assert len(running_workers(tmp_path, "orders-totals")) == 1


def test_rows_and_windows_are_shown() -> None:
    assert "row" in shown_answer(200, {"found": True, "row": {"a": 1}, "position": POSITION})
    windows = [{"start": 0, "end": 60_000, "value": {"count": 2}}]
    shown = shown_answer(200, {"found": True, "windows": windows, "position": POSITION})
    assert "1970-01-01 00:00:00 UTC to 1970-01-01 00:01:00 UTC" in shown
