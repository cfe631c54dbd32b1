"""Sends messages to a webhook as an HTTP POST of JSON; ``lifecycle.recovery.webhook_messages`` makes their texts.

Invariants:
    - The URL is a secret, because chats put their token into it. No answer, error or log holds the URL or its path.
    - Redirects are not followed, and the body of an answer is not read.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.infra.masking import masked, remember, secrets_of_url

#: Timeout of each step of a request (connect, send, wait for the answer), seconds.
TIMEOUT_S = 5.0
#: HTTP statuses that mean a fault of the message, not of the webhook.
_BAD_MESSAGE = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a message: the HTTP status, None without an answer, and a sentence part for logs."""

    status: int | None
    words: str
    #: The webhook's Retry-After, seconds; 0 without one.
    pause_s: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether the webhook accepted the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the webhook refused this message, and may accept others."""
        return self.status in _BAD_MESSAGE


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a message goes to the configured address only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def shown(url: str) -> str:
    """The webhook's scheme and host, without the secret path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


def post(url: str, document: Mapping[str, Any], *, identity: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Send one message, through the machine's proxies; failures are in the answer, none is raised.

    ``identity`` is the same for each attempt, so that the receiver can drop duplicates. ``timeout_s`` is for each step
    of the request, seconds.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "holdfast", "Idempotency-Key": identity}
    body = json.dumps(document).encode()
    try:
        # The settings allow http and https only.
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s) as answer:
            return Answer(answer.status, f"it answered {answer.status}")
    except urllib.error.HTTPError as refused:
        refused.close()
        return Answer(refused.code, f"it answered {refused.code}", _pause(refused.headers.get("Retry-After")))
    except urllib.error.URLError as away:
        return Answer(None, _without_path(f"it can't be reached: {away.reason}", url))
    except (OSError, http.client.HTTPException, ValueError) as failed:
        return Answer(None, _without_path(f"it gave no answer: {type(failed).__name__}: {failed}", url))


def _pause(text: str | None) -> float:
    """Seconds of a Retry-After header, one hour at most; 0 for a date."""
    return min(float(text), 3600.0) if text is not None and text.isdigit() else 0.0


def _without_path(words: str, url: str) -> str:
    remember(secrets_of_url(url, whole=True))
    return masked(words)
