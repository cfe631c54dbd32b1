"""Who may ask a processor what."""

from __future__ import annotations

import pytest

from holdfast.infra.settings import ServingSettings
from holdfast.processors.engine.serving.guard import Guard

TOKEN = "sixteen-or-more-characters"
RIGHT = f"Bearer {TOKEN}"


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
    ],
)
def test_what_is_admitted(host: str, method: str, page: str, authorization: str | None, admitted: bool) -> None:
    assert Guard(ServingSettings(host=host, token=TOKEN)).admits(method, page, authorization) is admitted


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
    assert Guard(ServingSettings(host="10.0.0.1", token=TOKEN)).knows_name(host)


def test_without_a_configured_token_one_is_drawn_and_never_shown() -> None:
    first, second = Guard(ServingSettings()), Guard(ServingSettings())
    assert first.token != second.token
    assert len(first.token) >= 32
    assert first.token not in repr(first)
    assert first.admits("POST", "/stop", f"Bearer {first.token}")
