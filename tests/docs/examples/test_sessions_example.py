"""Visits end by time, late clicks become dead letters, and programs read visits that are under way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast import InMemoryCluster, StateClient
from tests.docs.examples.loaded import example
from tests.parts.state_in_memory import Asked, ask_worker
from tests.parts.state_workers import state_workers

MINUTE = 60_000


def click(cluster: InMemoryCluster, visitor: bytes, at: int, page: str) -> None:
    cluster.produce("clicks", json.dumps({"page": page}).encode(), visitor, timestamp_ms=at)


def clicked() -> tuple[InMemoryCluster, int]:
    """Ann's visit of 50 minutes, a click of Bob that ends it, and a click of Ann that is too late for her visit."""
    cluster = InMemoryCluster()
    cluster.create_topic("clicks")
    start = int(cluster.clock.time() * 1000) - 24 * 60 * MINUTE
    for minutes, page in ((0, "/"), (25, "/shoes"), (50, "/basket"), (24, "/shoes")):
        click(cluster, b"ann", start + minutes * MINUTE, page)
    click(cluster, b"bob", start + 200 * MINUTE, "/help")
    click(cluster, b"ann", start + 60 * MINUTE, "/late")
    return cluster, start


def test_a_visit_is_sent_when_it_has_ended() -> None:
    cluster, _ = clicked()
    cluster.run(example("sessions").application())
    [(_, visit)] = cluster.read("visits")
    expected = {"seconds": 3000, "clicks": 4, "pages": 3, "from": "/", "to": "/basket"}
    assert (visit.key, json.loads(visit.value or b"")) == (b"ann", expected)
    [(_, late)] = cluster.read("clicks-late")
    assert json.loads(late.value or b"") == {"page": "/late"}


def test_programs_read_the_visits_of_a_visitor(tmp_path: Path) -> None:
    """The client gets the document that a worker of the example answers with."""
    cluster, start = clicked()
    answers: list[tuple[int, dict[str, Any]]] = []

    def ask(asked: Asked) -> None:
        answers.extend(asked.json(f"/stores/visits/windows/{visitor}") for visitor in ("ann", "bob"))

    ask_worker(example("sessions").application(), cluster, tmp_path, ask, processed=6)
    with state_workers(1) as (worker,):
        documents = dict(zip(("ann", "bob"), answers, strict=True))

        def reply(target: str) -> Any:
            code, document = documents[target.partition("?")[0].rpartition("/")[2]]
            return code, {}, document

        worker.fault = reply
        with StateClient(urls=[worker.url], token=worker.token, timeout_s=5) as site:
            [ended] = example("sessions").visits_of("ann", site)
            [open_] = example("sessions").visits_of("bob", site)
    assert (ended["since"], ended["clicks"], ended["left"]) == (start, 4, "/basket")
    assert (open_["since"], open_["clicks"], open_["landed"]) == (start + 200 * MINUTE, 1, "/help")
