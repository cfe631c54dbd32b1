"""A worker's HTTP server admits only some requests, and some need a token."""

from __future__ import annotations

import pytest

from holdfast.infra.masking import masked
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


def test_the_right_to_read_state_depends_on_the_store() -> None:
    own = {"totals": "t" * 16, "minutes": "m" * 16}
    guard = Guard(ServingSettings(token=SECRET, state_token="s" * 16, store_tokens=own, read_token="r" * 16), TOKEN)
    bearers = {
        "all": f"Bearer {'s' * 16}",
        "control": RIGHT,
        "totals": f"bearer {'t' * 16}",
        "minutes": f"Bearer {'m' * 16}",
        "read": f"Bearer {'r' * 16}",
        "secret": SECRETS,
        "bare": "s" * 16,
        "none": None,
        "empty": "Bearer ",
    }
    readers = {
        store: [name for name, given in bearers.items() if guard.admits_state(store, given)]
        for store in ("", "totals", "minutes", "x")
    }
    assert readers == {
        "": ["all", "control", "totals", "minutes"],
        "totals": ["all", "control", "totals"],
        "minutes": ["all", "control", "minutes"],
        "x": ["all", "control"],
    }
    assert not any(guard.admits("POST", "/stop", bearers[name]) for name in ("all", "totals", "read"))


def test_workers_with_one_secret_have_one_token_of_state_and_others_have_their_own() -> None:
    shared = {Guard(ServingSettings(token=SECRET)).state_token for _ in range(2)}
    assert len(shared) == 1
    assert not shared & {SECRET, TOKEN, Guard(ServingSettings(token=SECRET + "x")).state_token}
    assert len({Guard(ServingSettings()).state_token for _ in range(2)}) == 2
    assert Guard(ServingSettings(token=SECRET, state_token="s" * 16)).state_token == "s" * 16


def test_tokens_of_state_are_in_no_text() -> None:
    settings = ServingSettings(state_token="s" * 16, store_tokens={"totals": "t" * 16})
    guard = Guard(settings)
    assert not any(token in f"{guard!r} {settings!r}" for token in ("s" * 16, "t" * 16, guard.token))
    assert masked(f"{'s' * 16} {'t' * 16} {guard.token}") == "*** *** ***"


def test_a_short_token_of_a_store_is_refused() -> None:
    with pytest.raises(ValueError, match="the token of store totals is not 16 visible ASCII characters"):
        ServingSettings(store_tokens={"totals": "short"})
