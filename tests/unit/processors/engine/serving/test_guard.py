"""Which requests a worker's HTTP server admits, and which token they need."""

from __future__ import annotations

import pytest

from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving.guard import Guard, control_token

SECRET = "sixteen-or-more-characters"
TOKEN = control_token(SECRET, "fleet", "0", 7, "mark")
RIGHT = f"Bearer {TOKEN}"
SECRETS = f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("host", "method", "page", "authorization", "admitted"),
    [
        ("127.0.0.1", "GET", "/status", None, True),
        ("127.0.0.1", "HEAD", "/metrics", None, True),
        ("127.0.0.1", "POST", "/pause", None, False),
        ("127.0.0.1", "POST", "/health", None, False),
        ("127.0.0.1", "POST", "/pause", RIGHT, True),
        ("127.0.0.1", "POST", "/pause", TOKEN, False),
        ("127.0.0.1", "POST", "/pause", RIGHT + " ", False),
        ("127.0.0.1", "POST", "/pause", "Bearer ✓", False),
        ("10.0.0.1", "GET", "/health", None, True),
        ("10.0.0.1", "GET", "/ready", None, True),
        ("10.0.0.1", "GET", "/status", None, False),
        ("10.0.0.1", "GET", "/metrics", "Bearer ", False),
        ("10.0.0.1", "HEAD", "/metrics", None, False),
        ("10.0.0.1", "GET", "/metrics", RIGHT, True),
        ("10.0.0.1", "GET", "/anything", None, False),
        ("10.0.0.1", "GET", "/metrics", SECRETS, True),
        ("10.0.0.1", "POST", "/pause", RIGHT, True),
        ("10.0.0.1", "POST", "/pause", SECRETS, False),
        ("127.0.0.1", "POST", "/pause", SECRETS, False),
    ],
)
def test_what_is_admitted(host: str, method: str, page: str, authorization: str | None, admitted: bool) -> None:
    assert Guard(ServingSettings(host=host, token=SECRET), TOKEN).admits(method, page, authorization) is admitted


def test_a_token_of_reads_opens_reads_only_and_replaces_the_secret() -> None:
    guard = Guard(ServingSettings(host="10.0.0.1", token=SECRET, read_token="r" * 16), TOKEN)
    reads = f"Bearer {'r' * 16}"
    assert [guard.admits("GET", "/metrics", given) for given in (reads, RIGHT, SECRETS)] == [True, True, False]
    assert [guard.admits("POST", "/stop", given) for given in (reads, RIGHT, SECRETS)] == [False, True, False]


def test_each_process_of_each_worker_has_a_token_of_its_own() -> None:
    workers = [
        ("fleet", "0", 7, "mark"),
        ("fleet", "0", 7, "later"),
        ("fleet", "0", 8, "mark"),
        ("fleet", "1", 7, "mark"),
    ]
    workers += [("fleet-0", "", 7, "mark"), ("other", "0", 7, "mark")]
    tokens = {control_token(SECRET, *worker) for worker in workers}
    assert len(tokens) == len(workers)
    assert TOKEN in tokens
    assert control_token(SECRET + "x", "fleet", "0", 7, "mark") not in tokens
    assert not any(SECRET in token for token in tokens)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:80", True),
        ("localhost", True),
        ("[::1]:80", True),
        ("127.0.0.1.example", False),
        ("example", False),
        ("user@127.0.0.1", True),
        ("", False),
        (None, False),
        ("[", False),
    ],
)
def test_the_names_of_loopback(host: str | None, known: bool) -> None:
    assert Guard(ServingSettings()).knows_name(host) is known
    assert Guard(ServingSettings(host="10.0.0.1", token=SECRET)).knows_name(host)


def test_without_a_configured_token_one_is_drawn_and_never_shown() -> None:
    first, second = Guard(ServingSettings()), Guard(ServingSettings())
    assert first.token != second.token
    assert len(first.token) >= 32
    assert first.token not in repr(first)
    assert first.admits("POST", "/stop", f"Bearer {first.token}")
