"""Sends messages to a webhook as an HTTP POST of JSON; ``lifecycle.recovery.webhook_messages`` makes their texts.

Invariants:
    - The URL is a secret, because chats put their token into it. No answer, error or log holds the URL or its path.
    - Redirects are not followed, and the body of an answer is not read.
    - Whatever the webhook answers, ``post`` returns an ``Answer``, and returns it within its time limit.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import structlog

from holdfast.infra.masking import masked, remember, secrets_of_url

#: Timeout of each step of a request (connect, send, wait for the answer), seconds.
TIMEOUT_S = 5.0
#: A request may take this many timeouts in total: an answer that arrives byte by byte never exceeds the timeout of a
#: step.
STEPS_MAX = 2
#: Maximum pause that a webhook may request, seconds.
PAUSE_S_MAX = 3600.0
#: HTTP statuses that mean a fault of the message, not of the webhook.
_BAD_MESSAGE = frozenset({400, 413, 422})
#: The three forms of an HTTP-date (RFC 9110, section 5.6.7); all are in GMT.
_DATES = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
#: Most characters of a header that a log line shows.
_SHOWN_MAX = 60

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a message: the HTTP status, None without an answer, and a sentence part for logs."""

    status: int | None
    words: str
    #: The webhook's Retry-After, seconds; 0 without one.
    pause_s: float = 0.0
    #: Whether the message itself can't be sent; other messages may succeed.
    unsendable: bool = False

    @property
    def accepted(self) -> bool:
        """Whether the webhook accepted the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether this message is at fault, so that the webhook may accept other messages."""
        return self.unsendable or self.status in _BAD_MESSAGE


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a message goes to the configured address only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _Exchange:
    """One request in a separate thread, so that the caller can abandon a webhook that sends a byte now and then."""

    def __init__(self, request: urllib.request.Request, timeout_s: float) -> None:
        self._request = request
        self._timeout_s = timeout_s
        self._connections: list[http.client.HTTPConnection] = []
        self._answer: Answer | None = None

    def answer(self, within_s: float) -> Answer | None:
        """The answer; None when the request did not end in time and was aborted."""
        thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        thread.start()
        thread.join(within_s)
        in_time = self._answer  # a header that is broken off below would pass for a whole one
        if in_time is None:
            for connection in self._connections:
                with suppress(OSError, AttributeError):  # not connected yet: the connect timeout ends the request
                    connection.sock.shutdown(socket.SHUT_RDWR)
        return in_time

    def _run(self) -> None:
        try:
            with urllib.request.build_opener(*self._handlers()).open(self._request, timeout=self._timeout_s) as answer:
                self._answer = Answer(answer.status, f"it answered {answer.status}")
        except urllib.error.HTTPError as refused:
            refused.close()
            self._answer = Answer(refused.code, f"it answered {refused.code}", self._pause(refused))
        except urllib.error.URLError as away:
            self._answer = Answer(None, f"it can't be reached: {away.reason}")
        # Any exception that a foreign answer causes in the parser is this webhook's failure; it must not end the tick.
        except Exception as failed:
            self._answer = Answer(None, f"it gave no answer: {type(failed).__name__}: {failed}")

    def _pause(self, refused: urllib.error.HTTPError) -> float:
        value = refused.headers.get("Retry-After")
        if value is None:
            return 0.0
        pause_s = pause_of(value, datetime.now(UTC))
        if pause_s is None:
            seen = ascii(_without_path(value[:_SHOWN_MAX], self._request.full_url))
            log.warning("webhook: a Retry-After that is neither seconds nor an HTTP-date is ignored", value=seen)
        return pause_s or 0.0

    def _handlers(self) -> tuple[urllib.request.BaseHandler, ...]:
        """Handlers that note each connection, so that ``answer`` can shut it down."""
        noted = self._connections

        class Http(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                def connect(host: str, **options: Any) -> http.client.HTTPConnection:
                    noted.append(http.client.HTTPConnection(host, **options))
                    return noted[-1]

                return self.do_open(connect, req)

        class Https(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                def connect(host: str, **options: Any) -> http.client.HTTPConnection:
                    noted.append(http.client.HTTPSConnection(host, **options))
                    return noted[-1]

                return self.do_open(connect, req)

        return Http(), Https(), _NoRedirect()


def shown(url: str) -> str:
    """The webhook's scheme and host, without the secret path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


def post(url: str, document: Mapping[str, Any], *, identity: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Send one message through the machine's proxies; failures are part of the answer, none is raised.

    ``identity`` is the same for each attempt, so that the receiver can drop duplicates. ``timeout_s`` applies to each
    step of the request, seconds; the whole request may take ``STEPS_MAX`` timeouts.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "holdfast", "Idempotency-Key": identity}
    try:
        body = json.dumps(document).encode()
        # The settings allow http and https only.
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310
    except (ValueError, TypeError) as failed:
        words = f"the message can't be written as JSON: {type(failed).__name__}: {failed}"
        return Answer(None, _without_path(words, url), unsendable=True)
    within_s = STEPS_MAX * timeout_s
    found = _Exchange(request, timeout_s).answer(within_s)
    if found is None:
        return Answer(None, f"it gave no whole answer within {within_s:g} s")
    return found if found.status is not None else Answer(None, _without_path(found.words, url))


def pause_of(text: str, now: datetime) -> float | None:
    """Seconds of pause that a Retry-After header requests, at most ``PAUSE_S_MAX``; None when it can't be read.

    The header is a number of seconds in ASCII digits, or an HTTP-date (RFC 9110, section 10.2.3).
    """
    value = text.strip(" \t")
    if re.fullmatch("[0-9]+", value):
        # Python refuses to read numbers of thousands of digits
        return PAUSE_S_MAX if len(value.lstrip("0")) > len(str(int(PAUSE_S_MAX))) else min(float(value), PAUSE_S_MAX)
    until = _http_date(value)
    return None if until is None else min(max((until - now).total_seconds(), 0.0), PAUSE_S_MAX)


def _http_date(value: str) -> datetime | None:
    for form in _DATES if value.isascii() else ():
        with suppress(ValueError):
            return datetime.strptime(value, form).replace(tzinfo=UTC)
    return None


def _without_path(words: str, url: str) -> str:
    remember(secrets_of_url(url, whole=True))
    return masked(words)
