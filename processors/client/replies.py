"""Judges what came back for one request: an answer, an error, a redirect, or a reason to ask again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.processors.client.errors import StateRefused
from holdfast.processors.engine.queries.errors import QueryWrong, StateAway, StoreUnknown

#: Seconds before the next request, if a worker that can't answer does not say how long.
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's reply: HTTP status, headers, body, and the monotonic seconds at which the request was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_at: float


@dataclass(frozen=True, slots=True)
class Lost:
    """No reply. ``dropped``: a connection that was open before has ended, so a new one may succeed."""

    why: str
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer of a question, as its JSON document."""

    document: dict[str, Any]
    sent_at: float


@dataclass(frozen=True, slots=True)
class Moved:
    """The URL of the owner, and the path and query with which it must be asked."""

    url: str
    target: str


@dataclass(frozen=True, slots=True)
class Again:
    """The question must be asked again, ``after_s`` seconds later, and first at another worker."""

    reason: StateAway
    after_s: float = 0.0
    no_reply: bool = False


Verdict = Settled | Moved | Again


def verdict_of(reply: Reply | Lost, url: str, *, may_redirect: bool) -> Verdict:
    """Judges a reply.

    Args:
        url: The URL of the asked worker.
        may_redirect: Whether the question asked for a redirect.

    Raises:
        QueryWrong, StateRefused, StoreUnknown: Each worker would say the same, so the question is not asked again.
    """
    if isinstance(reply, Lost):
        return Again(StateAway(f"The worker at {url} did not answer: {reply.why}."), no_reply=True)
    document = _document(reply)
    match reply.status:
        case 200 if document is not None:
            return Settled(document, reply.sent_at)
        case 404 if document is not None and document.get("found") is False:
            return Settled(document, reply.sent_at)
        case 404 if document is not None and "action" in document:
            raise StoreUnknown(_said(document), action=_action(document, "Ask for a store that the processor has."))
        case 404:
            raise StoreUnknown(
                f"The server at {url} has no such route.",
                action="Correct `urls`: they must be the addresses of workers, of a version that serves state.",
            )
        case 401:
            raise StateRefused(
                f"The worker at {url} refuses the token of the query.",
                action="Pass a `token` that reads this store: `HOLDFAST_SERVING__STATE_TOKEN` of the workers, or one "
                "of their `HOLDFAST_SERVING__STORE_TOKENS`.",
                url=url,
            )
        case 307 if may_redirect and (moved := _moved(reply.headers)) is not None:
            return moved
        case 421 | 503 | 429:
            after_s = 0.0 if reply.status == 421 else _seconds(reply.headers.get("retry-after"))
            said = _said(document) if document else f"The worker at {url} answered {reply.status}."
            return Again(StateAway(said, retry_after_s=after_s or RETRY_S), after_s)
        case status if 400 <= status < 500:
            raise QueryWrong(
                _said(document) if document else f"The worker at {url} answered {status}.",
                action=_action(document or {}, "Correct the query."),
                status=status,
            )
        case status:
            why = f"The worker at {url} answered {status} with {len(reply.body)} bytes that are no answer."
            return Again(StateAway(why), RETRY_S)


def _document(reply: Reply) -> dict[str, Any] | None:
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _said(document: Mapping[str, Any]) -> str:
    text = str(document.get("error", "")).strip() or "The worker gave no reason"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _action(document: Mapping[str, Any], otherwise: str) -> str:
    return str(document.get("action") or otherwise)


def _moved(headers: Mapping[str, str]) -> Moved | None:
    try:
        parts = urlsplit(headers.get("location", ""))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
    except ValueError:
        return None
    return Moved(f"{parts.scheme}://{parts.netloc}", f"{parts.path}?{parts.query}" if parts.query else parts.path)


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        return RETRY_S
    return seconds if 0 <= seconds < float("inf") else RETRY_S
