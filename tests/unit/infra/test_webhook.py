"""Messages to a webhook: what each HTTP answer means, and that no text shows the webhook's URL, which is a secret."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from holdfast.infra.settings import SettingsInvalid, load_settings
from holdfast.infra.webhook import PAUSE_S_MAX, STEPS_MAX, pause_of, post, shown
from tests.parts.webhook import SECRET, Webhook

PARTS = (SECRET, *SECRET.split("/"))


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    there = Webhook()
    yield there
    there.stop()


def test_a_message_arrives_with_its_identity(webhook: Webhook) -> None:
    answer = post(webhook.start().url, {"text": "é"}, identity="incident-1-opened")
    assert answer.accepted
    assert webhook.received == [{"text": "é"}]
    assert webhook.identities == ["incident-1-opened"]


@pytest.mark.parametrize(("status", "refused"), [(400, True), (413, True), (404, False), (500, False), (302, False)])
def test_an_answer_says_whether_the_message_is_at_fault(webhook: Webhook, status: int, refused: bool) -> None:
    webhook.status = status
    webhook.headers = {"Location": "http://127.0.0.1:1/elsewhere"}
    answer = post(webhook.start().url, {}, identity="one")
    assert (answer.status, answer.accepted, answer.refused) == (status, False, refused)


def test_a_webhook_that_asks_for_a_pause_is_heard(webhook: Webhook) -> None:
    webhook.status, webhook.headers = 429, {"Retry-After": "30"}
    assert post(webhook.start().url, {}, identity="one").pause_s == 30.0


NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "pause_s"),
    [
        ("30", 30.0),
        (" 30\t", 30.0),
        ("0", 0.0),
        ("007", 7.0),
        ("86400", PAUSE_S_MAX),
        ("9" * 5000, PAUSE_S_MAX),
        ("Sun, 01 Mar 2026 03:02:00 GMT", 120.0),
        ("Sunday, 01-Mar-26 03:02:00 GMT", 120.0),
        ("Sun Mar  1 03:02:00 2026", 120.0),
        ("Sun, 01 Mar 2026 02:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", PAUSE_S_MAX),
        *((wrong, None) for wrong in ("", "²", "٣", "-1", "1.5", "1e3", "+5", "1_0", "inf", "nan", "30 s", "0x10")),
        ("Sun, 01 Mar 2026 03:02:00 +0100", None),
        ("Sun, ٠1 Mar 2026 03:02:00 GMT", None),
    ],
)
def test_a_pause_is_seconds_or_a_date_and_anything_else_is_none(value: str, pause_s: float | None) -> None:
    assert pause_of(value, NOW) == pause_s


@given(st.text("0123456789²³¼٣०Ⅷ \t+-._e") | st.text("MonSuaFeb, 0123456789²٣:-GT") | st.text(max_size=40))
def test_any_text_is_a_bounded_pause_or_none(value: str) -> None:
    pause_s = pause_of(value, NOW)
    assert pause_s is None or 0 <= pause_s <= PAUSE_S_MAX


@given(st.timedeltas(timedelta(0), timedelta(seconds=PAUSE_S_MAX)))
def test_a_date_is_as_many_seconds_as_it_is_away(away: timedelta) -> None:
    then = (NOW + away).replace(microsecond=0)
    assert pause_of(f"{then:%a, %d %b %Y %H:%M:%S} GMT", NOW) == (then - NOW).total_seconds()


class Hostile:
    """A TCP server that answers each request with fixed bytes, and then sends one byte at a time without end."""

    def __init__(self) -> None:
        self.answer = b""
        self.drip = b""
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/services/{SECRET}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._one, args=(self._listener.accept()[0],), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(self.answer)
            while self.drip and not self.ended.wait(0.005):
                connection.sendall(self.drip)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)

    def stop(self) -> None:
        self.ended.set()
        self._listener.close()


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    there = Hostile()
    yield there
    there.stop()


STATUSES = st.sampled_from(["200", "302", "429", "503", "100", "999", "²", "-1", "", "1e3", "2000000"])
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["Retry-After", "Location", "Content-Length", "Transfer-Encoding", "Content-Encoding", "é", ""]
        ),
        st.sampled_from(
            ["²", "30", "chunked", "gzip", "-5", "http://[", "9" * 5000, "\0", "/services", "http://127.0.0.1:1/"]
        )
        | st.text(st.characters(codec="latin-1"), max_size=40),
    ),
    max_size=5,
)


@given(STATUSES, HEADERS, st.binary(max_size=300))
@example("429", [("Retry-After", "²")], b"")
@example("302", [("Location", "http://[")], b"")
@example("200", [("X", "a" * 70_000)], b"")
@example("200", [("X", "a")] * 300, b"")
@example("200", [("Content-Length", str(1 << 60))], b"a" * (1 << 20))
def test_whatever_a_webhook_answers_is_an_answer(
    hostile: Hostile, status: str, headers: Sequence[tuple[str, str]], body: bytes
) -> None:
    lines = [f"HTTP/1.1 {status} Fine", *(f"{name}: {value}" for name, value in headers), "", ""]
    hostile.answer = "\r\n".join(lines).encode("utf-8") + body
    answer = post(hostile.url, {}, identity="one")
    assert answer.accepted is (answer.status is not None and 200 <= answer.status < 300)
    assert 0 <= answer.pause_s <= PAUSE_S_MAX
    assert all(part not in answer.words for part in PARTS)


@given(st.binary(max_size=400))
def test_bytes_that_are_no_http_are_an_answer_too(hostile: Hostile, answer: bytes) -> None:
    hostile.answer = answer
    assert post(hostile.url, {}, identity="one").status is None or answer.startswith(b"HTTP/")


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["status", "header", "continue for ever"],
)
def test_a_webhook_that_answers_byte_by_byte_is_left(hostile: Hostile, begin: bytes, drip: bytes) -> None:
    hostile.answer, hostile.drip = begin, drip
    try:
        began = time.monotonic()
        answer = post(hostile.url, {}, identity="one", timeout_s=0.1)
        assert answer.status is None
        assert STEPS_MAX * 0.1 <= time.monotonic() - began < 5
    finally:
        hostile.drip = b""


def test_a_redirect_to_itself_is_followed_no_time(webhook: Webhook) -> None:
    webhook.status, webhook.headers = 307, {"Location": webhook.url}
    assert post(webhook.start().url, {}, identity="one").status == 307


def test_a_retry_after_that_cannot_be_read_is_logged_without_the_url(hostile: Hostile) -> None:
    hostile.answer = f"HTTP/1.1 429 Busy\r\nRetry-After: \u00b2 {SECRET}\r\n\r\n".encode()
    with capture_logs() as lines:
        assert post(hostile.url, {}, identity="one").pause_s == 0
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "Retry-After" in lines[0]["event"]
    assert all(part not in str(lines) for part in PARTS)


def test_a_message_that_is_no_json_is_refused_and_not_raised() -> None:
    answer = post("http://127.0.0.1:1/", {"text": object()}, identity="one")
    assert (answer.status, answer.refused) == (None, True)
    assert post("http://127.0.0.1:1/", {"text": "\ud800"}, identity="one").refused is False


def test_neither_a_dead_nor_a_silent_webhook_shows_its_url(webhook: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    away = post(webhook.url, {}, identity="one")
    webhook.status = None
    silent = post(webhook.start().url, {}, identity="one", timeout_s=0.1)
    assert away.status is None
    assert silent.status is None
    for part in PARTS:
        assert part not in away.words + silent.words + caplog.text + shown(webhook.url)


def test_a_url_with_a_mistake_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        f"ftp://host/{SECRET}",
        f"https://user:{SECRET}@host/",
        "https://user:SECRET@host/",
        f"https://host/a b {SECRET}",
    ):
        monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", wrong)
        with pytest.raises(SettingsInvalid) as refused:
            load_settings()
        assert "HOLDFAST_WEBHOOK__URL" in refused.value.message
        assert "SECRET" not in str(refused.value)


def test_settings_do_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", f"https://hooks.example.com/{SECRET}")
    assert SECRET not in repr(load_settings())
