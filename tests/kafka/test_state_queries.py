"""Queries about the state of running workers, over HTTP, on a real broker."""

from __future__ import annotations

import json
from typing import Any

import httpx


def endpoint(worker: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worker.paths.endpoint(worker.stream.group, worker.slot).read_text())
    return found


def asked(worker: Any, path: str, token: str | None = None, **params: Any) -> httpx.Response:
    """Ask a worker for state, with its token of state unless another one is given."""
    known = endpoint(worker)
    bearer = known["state_token"] if token is None else token
    headers = {"Authorization": f"Bearer {bearer}"}
    return httpx.get(known["url"] + path, params=params, headers=headers, timeout=60, trust_env=False)


def test_any_worker_answers_for_any_key(stream: Any, worker: Any, waiting: Any) -> None:
    workers = [worker(slot=slot).start() for slot in ("0", "1")]
    for each in workers:
        each.wait_running()
    waiting(lambda: all(len(each.client.status().tasks) == 1 for each in workers), "each worker to have a task")
    stream.feed_numbers(200, keys=10)
    ends = ",".join(
        f"{stream.source}:{number}:{end}"
        for number, end in stream.topics.end_offsets(stream.source, committed=True).items()
    )
    for one in workers:
        for number in range(10):
            answer = asked(one, f"/stores/counts/keys/k{number}", after=ends, wait=30)
            assert answer.status_code == 200, answer.text
            document = answer.json()
            assert document["state"] == {"n": 20}
            assert document["position"]["source"] == "owner"
            assert document["position"]["age_s"] < 5
        absent = asked(one, "/stores/counts/keys/nobody")
        assert (absent.status_code, absent.json()["found"]) == (404, False)
        assert len(absent.json()["positions"]) == 2
    rows, page = [], None
    while True:
        found = asked(workers[0], "/stores/counts/keys", limit=3, **({} if page is None else {"page": page})).json()
        rows += found["rows"]
        page = found.get("next")
        if page is None:
            break
    assert sorted(row["key"] for row in rows) == sorted(f"k{number}" for number in range(10))
    assert all(row["state"] == {"n": 20} for row in rows)
    owner = asked(workers[0], "/stores/counts/keys/k1").json()["position"]["worker"]
    other = workers[1 - int(owner)]
    moved = asked(other, "/stores/counts/keys/k1", redirect="true")
    assert (moved.status_code, moved.headers["location"].split("/stores")[0]) == (
        307,
        endpoint(workers[int(owner)])["url"],
    )
    raw = asked(other, "/stores/counts/keys/k1", raw="true", state_key="n")
    assert (raw.content, raw.headers["content-type"]) == (b"20", "application/json")
    assert json.loads(raw.headers["holdfast-position"])["worker"] == owner
