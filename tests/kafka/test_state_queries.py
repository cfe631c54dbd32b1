"""Queries about the state of running workers, over HTTP, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import StateAway, StateClient
from holdfast.infra.system.server_tls import trusting
from tests.parts.certificates import Certificates


def endpoint(worker: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worker.paths.endpoint(worker.stream.group, worker.slot).read_text())
    return found


def asked(worker: Any, path: str, token: str | None = None, **params: Any) -> httpx.Response:
    """Ask a worker for state, with its token of state unless another one is given."""
    known = endpoint(worker)
    bearer = known["state_token"] if token is None else token
    headers = {"Authorization": f"Bearer {bearer}"}
    return httpx.get(known["url"] + path, params=params or None, headers=headers, timeout=60, trust_env=False)


def ends(stream: Any) -> str:
    """The end of the input as a position: an answer that waits for it has seen all messages."""
    found = stream.topics.end_offsets(stream.source, committed=True)
    return ",".join(f"{stream.source}:{number}:{end}" for number, end in found.items())


def test_any_worker_answers_for_any_key(stream: Any, worker: Any, waiting: Any) -> None:
    workers = [worker(slot=slot).start() for slot in ("0", "1")]
    for each in workers:
        each.wait_running()
    waiting(lambda: all(len(each.client.status().tasks) == 1 for each in workers), "each worker to have a task")
    stream.feed_numbers(200, keys=10)
    for one in workers:
        for number in range(10):
            answer = asked(one, f"/stores/counts/keys/k{number}", after=ends(stream), wait=30)
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

    def answered() -> tuple[int, int]:
        counts = [each.client.status().queries["counts"].answered for each in (workers[int(owner)], other)]
        return counts[0], counts[1]

    by_owner, by_other = answered()
    for _ in range(5):
        assert asked(other, "/stores/counts/keys/k1").status_code == 200
    assert answered() == (by_owner, by_other + 5), "a forwarded query counts where its client has sent it"


def test_a_standby_answers_while_the_owner_is_dead(stream: Any, worker: Any, waiting: Any) -> None:
    workers = [worker(slot=slot) for slot in ("0", "1")]
    for each in workers:
        each.environment |= {"HOLDFAST_STANDBY_REPLICAS": "1", "TEST_SESSION_MS": "60000"}
        each.start()
    for each in workers:
        each.wait_running()
    waiting(lambda: all(len(each.client.status().tasks) == 1 for each in workers), "each worker to have a task")
    stream.feed_numbers(200, keys=10)
    counted = asked(workers[0], "/stores/counts/keys/k1", after=ends(stream), wait=30)
    assert counted.status_code == 200, counted.text
    owner = counted.json()["position"]["worker"]
    other = workers[1 - int(owner)]

    def standby_says() -> Any:
        found = asked(other, "/stores/counts/keys/k1", stale_ok=60).json()
        return found["found"] and found["position"]["source"] == "standby" and found["state"] == {"n": 20} and found

    waiting(standby_says, "the standby to have all counts")
    with StateClient(stream.group, home=other.paths.home, timeout_s=60) as client:
        assert client.get("counts", "k1", "n") == 20  # the client knows the owner, which dies now
        workers[int(owner)].kill()
        stale = client.key("counts", "k1", stale_ok=60)
        assert (stale.state, stale.position and stale.position.source) == ({"n": 20}, "standby")
        assert not client.key("counts", "nobody", stale_ok=60).found
    with StateClient(stream.group, home=other.paths.home, timeout_s=1) as hasty, pytest.raises(StateAway):
        hasty.get("counts", "k1", "n")
    refused = asked(other, "/stores/counts/keys/k1", wait=0)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    answer = asked(other, "/stores/counts/keys/k1", stale_ok=60).json()
    assert (answer["state"], answer["position"]["source"]) == ({"n": 20}, "standby")
    assert asked(other, "/stores/counts/keys/k1", stale_ok=0.001, wait=0).status_code == 503


def test_rights_and_bad_queries(stream: Any, worker: Any, waiting: Any) -> None:
    one = worker()
    one.environment |= {
        "HOLDFAST_SERVING__STATE_TOKEN": "s" * 20,
        "HOLDFAST_SERVING__STORE_TOKENS": json.dumps({"counts": "c" * 20, "others": "o" * 20}),
    }
    one.start().wait_running()
    page = "/stores/counts/keys/k1"
    assert {token: asked(one, page, token).status_code for token in ("s" * 20, "c" * 20, "o" * 20, "-", "x" * 20)} == {
        "s" * 20: 404,
        "c" * 20: 404,
        "o" * 20: 401,
        "-": 401,
        "x" * 20: 401,
    }
    assert asked(one, page, endpoint(one)["token"]).status_code == 404  # the token of control reads, too
    assert asked(one, "/stores/nowhere/keys/k1").json()["error"].startswith("Processor")
    answers = {
        query: asked(one, f"{page}?{query}")
        for query in (
            "limit=1000000",
            "limit=0",
            "after=x",
            "wait=31",
            "stale_ok=-1",
            "encoding=hex",
            "page=%",
            "x=%ff",
        )
    }
    assert {query: answer.status_code for query, answer in answers.items()} == dict.fromkeys(answers, 400)
    assert answers["limit=1000000"].json()["error"] == "`limit` is '1000000'; expected a number from 1 to 1000."
    assert asked(one, "/stores/counts/windows/k1").status_code == 400
    assert asked(one, "/stores/counts/keys/%ff").status_code == 400
    assert asked(one, "/stores/counts/keys/%%%?encoding=base64").status_code == 400
    assert asked(one, "/tables/nothing/k1").status_code == asked(one, "/global-tables/nothing/k1").status_code == 404
    many = asked(one, "/stores/counts/keys?" + "&".join(f"key=k{number}" for number in range(101)))
    assert (many.status_code, "at most 100" in many.json()["error"]) == (400, True)
    assert [row["found"] for row in asked(one, "/stores/counts/keys?key=a&key=b").json()["rows"]] == [False, False]


def test_workers_of_several_machines_ask_each_other_with_tls(
    stream: Any, worker: Any, waiting: Any, tmp_path: Path
) -> None:
    own = Certificates(tmp_path / "certificates")
    workers = [worker(slot=slot) for slot in ("0", "1")]
    for each in workers:
        each.environment |= {
            "HOLDFAST_SERVING__HOST": "0.0.0.0",
            "HOLDFAST_SERVING__ADVERTISED": "localhost",
            "HOLDFAST_SERVING__TOKEN": "t" * 20,
            "HOLDFAST_SERVING__STATE_TOKEN": "s" * 20,
            "HOLDFAST_SERVING__TLS_CERTIFICATE": str(own.certificate),
            "HOLDFAST_SERVING__TLS_KEY": str(own.key),
            "HOLDFAST_SERVING__TLS_AUTHORITIES": str(own.ca),
        }
        each.start()
    for each in workers:
        each.wait_running()
    waiting(lambda: all(len(each.client.status().tasks) == 1 for each in workers), "each worker to have a task")
    stream.feed_numbers(200, keys=10)
    places = set()
    for number in range(10):
        moved = asked(workers[0], f"/stores/counts/keys/k{number}", redirect="true", after=ends(stream), wait=30)
        if moved.status_code == 307:
            places.add(moved.headers["location"].split("/stores")[0])
        answer = asked(workers[0], f"/stores/counts/keys/k{number}", after=ends(stream), wait=30)
        assert answer.json()["state"] == {"n": 20}, answer.text
    (place,) = places
    assert place.startswith("https://localhost:")
    with StateClient(urls=[place], token="s" * 20, tls=trusting(own.ca)) as client:
        assert [client.get("counts", f"k{number}", "n") for number in range(10)] == [20] * 10
    with (
        StateClient(urls=[place], token="s" * 20, timeout_s=1) as client,
        pytest.raises(StateAway, match="CERTIFICATE"),
    ):
        client.get("counts", "k1")
    assert [each.terminate() for each in workers] == [0, 0]
