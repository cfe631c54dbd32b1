"""HTTP requests and answers of a worker as data: parses and checks the head of a request, and formats an answer.

The module ``connections`` has the sockets, and ``routes`` has the routes.

Invariants:
    - A request that is too long or names another host is refused before its body is read.
    - From a client without a token, at most ``BODY_BYTES_MAX`` bytes of a body are read.
    - No answer and no log line contains a token.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from time import time
from typing import Any

from holdfast.processors.engine.serving.guard import Guard

#: Maximum bytes of the request line with all headers, and maximum bytes of a body on routes without a maximum of their
#: own.
REQUEST_BYTES_MAX = 16_384
BODY_BYTES_MAX = 4_096
#: The header of a request that a worker has forwarded for a client.
FORWARDED = "Holdfast-Forwarded"
#: The header ``Server`` of each answer. A worker knows by it that another worker has answered.
SERVER = "holdfast"
#: HTTP methods that only read.
READS = ("GET", "HEAD")

#: The empty line that ends a request's head. Line feeds without carriage returns are accepted, too.
_HEAD_END = re.compile(rb"\n\r?\n")
#: A request line that needs no further checks. The standard library changes a target with two slashes.
_PLAIN_LINE = re.compile(rb"(GET|HEAD) (/(?!/)[!-~]*) HTTP/1\.1")
#: Letters. Every HTTP method begins with a letter, so another first byte means another protocol, for example TLS.
_BEGINS = re.compile(rb"[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: an HTTP status code, and a body.

    A body of type bytes is sent unchanged. Any other body is sent as JSON. ``headers`` are sent in addition.
    """

    code: int
    body: Mapping[str, Any] | bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Later:
    """No answer yet: the server calls ``again`` after a short time, until it returns an answer.

    If ``again`` returns None, the request must be answered on a thread.
    """

    again: Callable[[], Answer | Later | None]


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused request: status code, reason, and route. The route is ``unknown`` if the head was not parsed."""

    code: int
    why: str
    page: str = "unknown"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an admitted request.

    Attributes:
        page: The path without the query.
        body_bytes: The length of the body in bytes.
        query: The part of the target after the question mark, undecoded.
        authorization: The header ``Authorization``; empty without one.
        is_forwarded: Whether another worker has forwarded the request. It is not forwarded again.
        keeps: Whether the client can send further requests on the connection.
        headers: The headers of a POST request, with names in small letters.
    """

    method: str
    page: str
    body_bytes: int = 0
    query: str = ""
    authorization: str = ""
    is_forwarded: bool = False
    keeps: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads(self) -> bool:
        """Whether the request's method only reads."""
        return self.method in READS


class HeadersSeen:
    """Headers that clients have sent lately, parsed, by their bytes.

    A client that keeps its connection sends the same headers with each query, and parsing them takes longer than the
    query itself.
    """

    #: Maximum number of header blocks that are kept.
    MOST = 64

    def __init__(self) -> None:
        self._seen: dict[bytes, Message] = {}

    def parsed(self, head: bytes) -> tuple[str, str, str, Message] | Refused:
        """Returns method, target, HTTP version and headers of a request head; the refusal of an invalid head."""
        line, _, rest = head.partition(b"\r\n")
        plain = _PLAIN_LINE.fullmatch(line)
        if plain is not None and (known := self._seen.get(rest)) is not None:
            return plain[1].decode(), plain[2].decode(), "HTTP/1.1", known
        made = _Parsed(head)
        if made.refused is not None:
            return made.refused
        if plain is not None:
            if len(self._seen) == self.MOST:
                self._seen.clear()
            self._seen[rest] = made.headers
        return made.command, made.path, made.request_version, made.headers


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which requests are admitted: the guard, the routes, and each route's maximum body size in bytes.

    ``is_of_state`` says whether a path belongs to the routes of state. They check the tokens themselves, because the
    rights depend on the store.
    """

    guard: Guard
    pages: Collection[str]
    bodies: Mapping[str, int] = field(default_factory=dict)
    is_of_state: Callable[[str], bool] = lambda page: False
    seen: HeadersSeen = field(default_factory=HeadersSeen)


def head_end(received: bytes | bytearray, looked_at: int = 0) -> int | None:
    """Returns the offset at which the head of a request ends; None while the head is incomplete.

    The first ``looked_at`` bytes were already searched.
    """
    found = _HEAD_END.search(received, max(0, looked_at - 2))
    return None if found is None else found.end()


def refused_early(received: bytes | bytearray) -> Refused | None:
    """Returns the refusal if the received bytes can't become a valid request; None if they may."""
    if received and not _BEGINS.match(received):
        return Refused(400, "this is no HTTP request")
    if len(received) > REQUEST_BYTES_MAX:
        return Refused(431, f"a request has at most {REQUEST_BYTES_MAX} bytes")
    return None


def judge(head: bytes, rules: Rules) -> Head | Refused:
    """Checks a complete request head. Returns the head if the request is admitted, otherwise the refusal."""
    parsed = rules.seen.parsed(head)
    if isinstance(parsed, Refused):
        return parsed
    method, target, version, headers = parsed
    page, _, query = target.partition("?")
    length = 0
    if method == "POST":
        if "Transfer-Encoding" in headers:
            return Refused(411, "a body needs its length")
        given, most = headers.get("Content-Length", "0"), rules.bodies.get(page, BODY_BYTES_MAX)
        if not given.isascii() or not given.isdigit() or len(given) > 9 or int(given) > most:
            needs = "" if page in rules.bodies else "; this needs none"
            return Refused(413, f"a body has at most {most} bytes{needs}")
        length = int(given)
    elif method not in READS:
        return Refused(501, HTTPStatus(501).phrase)
    if not rules.guard.knows_name(headers.get("Host")):
        return Refused(421, "the Host header names another server", page)
    if not rules.is_of_state(page) and not rules.guard.admits(method, page, headers.get("Authorization")):
        return Refused(401, "the token is missing or wrong: send it as Authorization: Bearer", page)
    sent = {name.lower(): value for name, value in headers.items()} if method == "POST" else {}
    return Head(
        method,
        page,
        length,
        query,
        headers.get("Authorization", ""),
        is_forwarded=FORWARDED in headers,
        keeps=version == "HTTP/1.1" and _is_followed(headers),
        headers=sent,
    )


def _is_followed(headers: Message) -> bool:
    """Whether another request may follow this one on its connection.

    A body that comes with a GET is not read. On a kept connection, its bytes would be taken for the next request.
    """
    if headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in headers:
        return False
    return "close" not in [each.strip().lower() for each in headers.get("Connection", "").split(",")]


class _Parsed(BaseHTTPRequestHandler):
    """Parses a request head with the HTTP handler class of the standard library, without a socket."""

    def __init__(self, head: bytes) -> None:
        self.rfile: Any = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        self.client_address = ("", 0)
        self.refused: Refused | None = None
        if not self.parse_request() and self.refused is None:
            self.send_error(HTTPStatus.BAD_REQUEST)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Stores the refusal. The base class calls this method for an invalid head.

        The explanation of the base class is dropped, because it repeats parts of the request.
        """
        self.refused = Refused(int(code), HTTPStatus(code).phrase)


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def written(answer: Answer, *, with_body: bool = True, keeps: bool = False) -> bytes:
    """Formats an answer as the bytes of an HTTP response. ``keeps`` is True if the connection stays open."""
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    lines = [
        f"HTTP/1.{int(keeps)} {answer.code} {HTTPStatus(answer.code).phrase}",
        f"Server: {SERVER}",
        f"Date: {_date(int(time()))}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(["WWW-Authenticate: Bearer"] if answer.code == 401 else []),
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + body if with_body else head
