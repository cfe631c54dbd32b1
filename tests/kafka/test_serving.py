"""A deployed worker on a real broker, inspected and controlled over HTTP."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from holdfast.processors.engine.serving.guard import control_token
from holdfast.processors.engine.serving.worker_client import ProcessorSilent
from tests.mechanics.tiers import variants
from tests.parts.hostile_clients import KINDS, attacked

TOKEN = "a-token-that-only-this-test-has"


def endpoint(worker: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worker.paths.endpoint(worker.stream.group, worker.slot).read_text())
    return found


def ask(worker: Any, method: str, page: str, **options: Any) -> httpx.Response:
    return httpx.request(method, endpoint(worker)["url"] + page, timeout=60, trust_env=False, **options)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def samples(worker: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return each metric's value by its name and labels, without the labels that identify the worker."""
    text = worker.client.metrics(30.0)
    assert text is not None
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("holdfast_")
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["processor"] == worker.stream.group
            assert sample.labels["slot"] == worker.slot
            rest = frozenset(
                (name, value) for name, value in sample.labels.items() if name not in ("processor", "slot")
            )
            found[sample.name, rest] = sample.value
    return found


def plain(worker: Any, name: str) -> float:
    return samples(worker)[name, frozenset()]


def processed(worker: Any, count: int) -> Callable[[], bool]:
    def so_many() -> bool:
        status = worker.client.status()
        return status is not None and status.records["processed"] == count and status.commits["count"] > 0

    return so_many


def test_the_pages_of_a_running_worker(stream: Any, worker: Any, waiting: Any) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(200)
    waiting(processed(one, 200), "200 records")
    waiting(lambda: (status := one.client.status()) and status.lag == 0, "all of it to be known as processed")

    health, ready, status = (ask(one, "GET", page) for page in ("/health", "/ready", "/status"))
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "phase": "running", "paused": False})
    document = status.json()
    assert (document["phase"], document["paused"], document["lag"], document["error"]) == ("running", False, 0, None)
    assert document["commits"]["last_at"] >= document["started_at"]
    assert [task["phase"] for task in document["tasks"]] == ["running"] * stream.partitions
    assert one.client.healthy()
    assert one.client.ready() == (True, "")
    assert ask(one, "HEAD", "/health").status_code == 200
    assert ask(one, "GET", "/nowhere").status_code == 404
    assert ask(one, "GET", "/pause").status_code == 405
    assert one.terminate() == 0


def test_the_metrics_are_right(stream: Any, worker: Any, waiting: Any) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(300, keys=7)
    waiting(processed(one, 300), "300 records")
    waiting(lambda: (status := one.client.status()) and status.lag == 0, "all of it to be known as processed")

    found = samples(one)
    values = {name: value for (name, labels), value in found.items() if not labels}
    assert values["holdfast_records_processed_total"] == 300
    assert values["holdfast_outputs_sent_total"] == 300
    assert values["holdfast_dead_letters_total"] == values["holdfast_records_skipped_total"] == 0
    assert values["holdfast_commits_total"] >= 1
    assert values["holdfast_aborts_total"] == 0
    assert values["holdfast_paused"] == 0
    assert values["holdfast_commit_duration_seconds_count"] == values["holdfast_commits_total"]
    assert values["holdfast_commit_duration_seconds_sum"] > 0
    last = values["holdfast_commit_duration_seconds_count"]
    assert found["holdfast_commit_duration_seconds_bucket", frozenset({("le", "+Inf")})] == last
    phases = {dict(labels)["phase"]: value for (name, labels), value in found.items() if name == "holdfast_phase"}
    assert phases.pop("running") == 1
    assert set(phases.values()) == {0}
    lags = {labels: value for (name, labels), value in found.items() if name == "holdfast_lag_records"}
    assert lags == {
        frozenset({("topic", stream.source), ("partition", str(number))}): 0 for number in range(stream.partitions)
    }
    reads = sum(value for (name, _), value in found.items() if name == "holdfast_state_reads_total")
    misses = sum(value for (name, _), value in found.items() if name == "holdfast_state_misses_total")
    assert reads == 300
    assert 0 < misses <= 300
    assert sum(name == "holdfast_store_size_bytes" for name, _ in found) == stream.partitions


@pytest.mark.thorough
def test_a_paused_worker_reads_nothing_and_goes_on_when_told(stream: Any, worker: Any, waiting: Any) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    waiting(processed(one, 100), "100 records")
    one.client.pause()
    paused = one.client.status()
    stream.feed_numbers(100)

    # The worker's loop keeps running, but the worker processes no message.
    waiting(lambda: one.client.status().heartbeat_at > paused.heartbeat_at + 2, "some turns of its loop")
    status = one.client.status()
    assert (status.paused, status.phase, status.records["processed"]) == (True, "running", 100)
    assert status.lag == 100, "it fetches nothing, and asks Kafka for the ends"
    assert plain(one, "holdfast_paused") == 1
    assert ask(one, "GET", "/ready").json()["paused"] is True

    one.client.resume()
    waiting(processed(one, 200), "the rest")
    assert one.client.status().paused is False
    assert one.terminate() == 0
    stream.outputs_are_exact({b"k%d" % number: 20 for number in range(10)})


@pytest.mark.thorough
def test_compaction_and_checkpoint_leave_the_state_as_it_is(stream: Any, worker: Any, waiting: Any) -> None:
    one = worker().start().wait_running()
    stream.feed_numbers(400)
    waiting(processed(one, 400), "400 records")
    sizes = one.client.compact()
    assert sizes["bytes_after"] > 0
    assert plain_sum(one, "holdfast_store_size_bytes") == sizes["bytes_after"]
    tasks = one.client.status().tasks
    assert sum(task.keys for task in tasks) >= 10
    assert all(0 < task.live_bytes <= task.store_bytes for task in tasks)
    assert len(one.client.checkpoint()["tasks"]) == stream.partitions
    stream.feed_numbers(100)
    waiting(processed(one, 500), "what came after")
    one.client.stop()
    assert one.wait() == 0
    assert stream.counts() == {b"k%d" % number: 50 for number in range(10)}


def plain_sum(worker: Any, name: str) -> float:
    return sum(value for (each, _), value in samples(worker).items() if each == name)


def test_a_worker_is_ready_only_when_its_state_is_restored(stream: Any, worker: Any, waiting: Any) -> None:
    first = worker().start().wait_running()
    stream.feed_numbers(100)
    waiting(processed(first, 100), "100 records")
    assert first.terminate() == 0
    # An open transaction of another producer prevents readers from reaching the changelog end that the restore needs.
    patient = {"transactional.id": f"{stream.group}-holder", "transaction.timeout.ms": 600_000}
    holder = Producer({"bootstrap.servers": stream.bootstrap, **patient})
    holder.init_transactions(30)
    holder.begin_transaction()
    for number in range(stream.partitions):
        holder.produce(f"{stream.group}-counts-changelog", b"never", b"foreign", partition=number)
    assert holder.flush(30) == 0

    second = worker(home="second")
    second.environment["HOLDFAST_LOG_FORMAT"] = "json"
    second.start()

    def restores() -> bool:
        status = second.client.status()
        began = status is not None and status.phase == "restoring" and all(task.restore for task in status.tasks)
        return began and all(task.restore["records"] for task in status.tasks)

    waiting(restores, "the restore to begin")
    ready, health = ask(second, "GET", "/ready"), ask(second, "GET", "/health")
    assert (ready.status_code, ready.json()["phase"]) == (503, "restoring")
    assert second.client.ready() == (False, "it restores its state")
    assert health.status_code == 200
    for task in second.client.status().tasks:
        assert task.restore["remaining"] > 0
        assert task.restore["records_per_s"] > 0
        # the estimate may be 0: it is rounded to 0.1 s, and two remaining records take less time
        assert task.restore["seconds_left"] >= 0
    lines = waiting(lambda: restoring_lines(second), "the progress in the log")
    assert set(lines[0]) >= {"task", "records", "records_per_s", "remaining", "seconds", "seconds_left"}
    found = samples(second)
    assert sum(name == "holdfast_restore_remaining_offsets" for name, _ in found) == stream.partitions
    assert found["holdfast_phase", frozenset({("phase", "restoring")})] == 1
    assert not any(name == "holdfast_lag_records" for name, _ in found)

    holder.abort_transaction(30)
    second.wait_running()
    assert second.client.ready() == (True, "")
    tasks = second.client.status().tasks
    assert sum(task.restored for task in tasks) > 0
    assert all(task.restored_s > 0 for task in tasks)
    assert second.terminate() == 0


def restoring_lines(worker: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "restoring"]


@pytest.mark.thorough
def test_a_loop_that_stands_still_is_not_healthy(stream: Any, worker: Any, waiting: Any) -> None:
    one = worker()
    one.environment["HOLDFAST_STUCK_AFTER_S"] = "4"
    definition = one.paths.home / "counting_definition.py"
    slow = "def count(value, state):\n    import time\n    time.sleep(60 if value == 3 else 0)\n"
    definition.write_text(definition.read_text().replace("def count(value, state):\n", slow))
    one.start().wait_running()
    assert one.client.healthy()
    stream.feed_numbers(4)
    waiting(lambda: ask(one, "GET", "/health").status_code == 503, "the silence to be seen")
    assert ask(one, "GET", "/health").json()["status"] == "stuck"
    ready = ask(one, "GET", "/ready")
    assert (ready.status_code, "no heartbeat" in ready.json()["reason"]) == (503, True)
    assert one.client.status().phase == "running", "the last that it said is told still"
    assert plain(one, "holdfast_heartbeat_age_seconds") > 4
    assert one.client.last_heartbeat(one.process.pid).timestamp() <= one.client.status().heartbeat_at + 1
    one.kill()


def test_verbs_need_the_token_and_pages_do_not(stream: Any, worker: Any) -> None:
    one = worker().start().wait_running()
    token = endpoint(one)["token"]
    for verb in ("/compact", "/pause", "/resume", "/stop", "/checkpoint"):
        for headers in ({}, bearer("wrong"), bearer(token + "x"), {"Authorization": token}, bearer("wröng")):
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            refused = ask(one, "POST", verb, headers=encoded)
            assert refused.status_code == 401
            assert token not in refused.text
            assert "Bearer" in refused.headers["WWW-Authenticate"]
    assert one.client.status().paused is False
    assert ask(one, "POST", "/pause", headers=bearer(token)).json() == {"paused": True}
    assert one.terminate() == 0


@pytest.mark.thorough
def test_a_worker_below_a_thousand_hostile_connections_answers_and_works_on(
    stream: Any, worker: Any, waiting: Any
) -> None:
    one = worker().start().wait_running()
    status = Path(f"/proc/{one.process.pid}/status")
    before = usage(status)
    with attacked(int(endpoint(one)["url"].rsplit(":", 1)[1]), tuple(KINDS)):
        stream.feed_numbers(2000)
        for _ in range(3):
            for page in ("/health", "/metrics"):
                answer = ask(one, "GET", page)
                assert answer.status_code == 200
                assert answer.elapsed.total_seconds() < 10
        expected = {b"k%d" % number: 200 for number in range(10)}
        waiting(lambda: stream.counts() == expected, "all records")
        one.client.pause()
        one.client.resume()
        after = usage(status)
    assert after["Threads"] - before["Threads"] <= 20
    assert after["VmRSS"] - before["VmRSS"] < 100_000, "kilobytes"
    assert one.terminate() == 0
    stream.outputs_are_exact(expected)


def usage(status: Path) -> dict[str, int]:
    """The number of threads of a process, and its resident memory in kilobytes."""
    rows = (line.split() for line in status.read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows if row[0] in ("Threads:", "VmRSS:")}


def test_on_loopback_another_name_is_refused(worker: Any) -> None:
    one = worker().start().wait_running()
    port = endpoint(one)["url"].rsplit(":", 1)[1]
    for host in ("rebound.example", f"rebound.example:{port}", "127.0.0.1.example", "[::1", ""):
        for page in ("/status", "/metrics", "/health"):
            assert ask(one, "GET", page, headers={"Host": host}).status_code == 421, host
    for host in ("localhost", f"LOCALHOST:{port}", "127.0.0.1"):
        assert ask(one, "GET", "/status", headers={"Host": host}).status_code == 200
    assert one.terminate() == 0


@pytest.mark.parametrize("host", variants(["0.0.0.0", "no-such-host.invalid"]))
def test_an_address_that_others_reach_is_refused_without_a_token(worker: Any, host: str) -> None:
    one = worker()
    one.environment["HOLDFAST_SERVING__HOST"] = host
    one.start()
    assert one.wait() == 64
    assert "HOLDFAST_SERVING__TOKEN" in one.tail()


@pytest.mark.thorough
def test_an_address_that_others_reach_is_guarded_and_the_token_stays_secret(stream: Any, worker: Any) -> None:
    one = worker()
    one.environment |= {
        "HOLDFAST_SERVING__HOST": "0.0.0.0",
        "HOLDFAST_SERVING__TOKEN": TOKEN,
        "HOLDFAST_LOG_LEVEL": "DEBUG",
    }
    one.start().wait_running()
    token = endpoint(one)["token"]
    status = ask(one, "GET", "/status", headers=bearer(TOKEN)).json()
    identity = (status["processor"], status["slot"], status["pid"], status["start_mark"])
    assert token == control_token(TOKEN, *identity), "who has the secret and the status can derive the token"
    assert ask(one, "POST", "/pause", headers=bearer(TOKEN)).status_code == 401, "the secret itself controls nothing"
    assert ask(one, "POST", "/pause", headers=bearer(token)).status_code == 200
    for page, open_to_all in (("/health", True), ("/ready", True), ("/status", False), ("/metrics", False)):
        assert ask(one, "GET", page).status_code == (200 if open_to_all else 401)
        assert ask(one, "GET", page, headers=bearer("wrong")).status_code == (200 if open_to_all else 401)
        answer = ask(one, "GET", page, headers=bearer(TOKEN))
        assert answer.status_code == 200
        assert TOKEN not in answer.text
    assert ask(one, "GET", f"/{TOKEN}?token={TOKEN}").status_code == 401
    assert ask(one, "GET", "/status", headers={**bearer(TOKEN), "Host": "worker-1.example"}).status_code == 200
    assert one.client.status().phase == "running"
    one.client.checkpoint()
    assert one.terminate() == 0
    assert "request refused" in one.tail()
    assert not {secret for secret in (TOKEN, token) if secret in one.log.read_text()}


@pytest.mark.thorough
def test_two_workers_on_one_port_are_told_so(worker: Any) -> None:
    first = worker().start().wait_running()
    second = worker("1")
    second.environment["HOLDFAST_SERVING__PORT"] = endpoint(first)["url"].rsplit(":", 1)[1]
    second.start()
    assert second.wait() == 64
    assert "HOLDFAST_SERVING__PORT" in second.tail()
    assert first.client.status().phase == "running"
    assert first.terminate() == 0


def test_a_verb_without_a_worker_says_so(worker: Any) -> None:
    one = worker()
    assert one.client.ready() == (False, "it doesn't answer")
    assert (one.client.metrics(), one.client.healthy(), one.client.last_heartbeat(1)) == (None, False, None)
    with pytest.raises(ProcessorSilent, match="no endpoint file"):
        one.client.pause()


def test_a_stranger_at_the_port_of_a_dead_worker_gets_nothing(worker: Any) -> None:
    one = worker()
    one.environment["HOLDFAST_SERVING__TOKEN"] = TOKEN
    one.start().wait_running()
    file = one.paths.endpoint(one.stream.group, one.slot)
    port = int(endpoint(one)["url"].rsplit(":", 1)[1])
    assert TOKEN not in file.read_text()
    one.kill()
    with socket.create_server(("127.0.0.1", port)) as stranger:
        stranger.setblocking(False)
        for left in (endpoint(one), {**endpoint(one), "pid": os.getpid()}, {**endpoint(one), "mark": ""}):
            file.write_text(json.dumps(left))
            assert one.client.status() is None
            for verb in (one.client.pause, one.client.stop):
                with pytest.raises(ProcessorSilent, match=r"has ended|listens at"):
                    verb()
        with pytest.raises(BlockingIOError):
            stranger.accept()
