"""Sends messages to a webhook as an HTTP POST of JSON. ``recovery.messages.webhook_messages`` makes the messages.

Invariants:
    - The URL is a secret, because chat services put a token into it. No answer, error or log contains the URL's path.
    - Redirects are not followed, and the body of a response is not read.
    - Whatever the webhook does, ``post`` returns an ``Answer`` within its time limit, and never raises.
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
#: Maximum duration of a whole request, as a multiple of the timeout of one step. A response that arrives byte by byte
#: never exceeds the timeout of a step.
STEPS_MAX = 2
#: Maximum pause (header Retry-After) that a webhook may request, seconds; longer pauses are shortened.
PAUSE_S_MAX = 3600.0
#: HTTP statuses that mean that the message is wrong, so that other messages may succeed.
_BAD_MESSAGE = frozenset({400, 413, 422})
#: The three forms of an HTTP-date (RFC 9110, section 5.6.7); all are in GMT.
_DATES = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
#: Maximum number of characters of a header that a log line shows.
_SHOWN_MAX = 60

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of sending a message: the HTTP status (None without a response), and words for the log."""

    status: int | None
    words: str
    #: Seconds in the response's header Retry-After; 0 without this header.
    pause_s: float = 0.0
    #: Whether this message can't be sent at all, for example because it is not JSON; other messages may succeed.
    unsendable: bool = False

    @property
    def accepted(self) -> bool:
        """Whether the webhook accepted the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the webhook refused this message because of its content, so that other messages may succeed."""
        return self.unsendable or self.status in _BAD_MESSAGE


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that a message goes only to the configured address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _Exchange:
    """One HTTP request in a separate thread, so that the caller can abandon a webhook that responds too slowly."""

    def __init__(self, request: urllib.request.Request, timeout_s: float) -> None:
        self._request = request
        self._timeout_s = timeout_s
        self._connections: list[http.client.HTTPConnection] = []
        self._answer: Answer | None = None

    def answer(self, within_s: float) -> Answer | None:
        """Send the request and wait for its answer; None if it took over ``within_s`` seconds and was aborted."""
        thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        thread.start()
        thread.join(within_s)
        # The answer is read before the shutdown, because an interrupted response could look complete.
        in_time = self._answer
        if in_time is None:
            for connection in self._connections:
                # The connection may not be open yet. Then the connect timeout ends the request.
                with suppress(OSError, AttributeError):
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
        # A malformed response can raise any exception in the parser. It counts as a failure of this webhook, because an
        # exception would end the sensor's tick.
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
        """urllib handlers that remember each connection, so that ``answer`` can shut down the connections."""
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
    """The webhook's scheme and host for texts, for example ``https://hooks.example.com``, without the secret path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


def post(url: str, document: Mapping[str, Any], *, identity: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Send one message, through the machine's HTTP proxy if one is configured. Never raises an error.

    ``identity`` is the same for each attempt, so that the receiver can drop duplicates. ``timeout_s`` is the timeout of
    each step of the request, seconds. The whole request may take ``STEPS_MAX`` times as long.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "holdfast", "Idempotency-Key": identity}
    try:
        body = json.dumps(document).encode()
        # urllib would also open URLs such as `file:`. The settings allow only http and https, so this is safe.
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
    """Seconds that a Retry-After header asks to wait, at most ``PAUSE_S_MAX``; None if the header is invalid.

    The header is a number of seconds in ASCII digits, or an HTTP-date (RFC 9110, section 10.2.3).
    """
    value = text.strip(" \t")
    if re.fullmatch("[0-9]+", value):
        # The number of digits is checked first, because Python refuses to convert numbers with thousands of digits.
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
