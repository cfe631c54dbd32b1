"""One message to one webhook, an HTTP POST of JSON, answered or not; and the settings that say where it goes.

Invariants:
    - The URL is a secret (chats put their token into it): neither it nor a part of its path is in an answer, an error
      or a log.
    - Nothing is followed elsewhere, and no answer is read: what came back is its status only.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

#: For each step of a request (connecting, sending, waiting for the answer), seconds.
TIMEOUT_S = 5.0
#: These say that the message is at fault, not the webhook.
_BAD_MESSAGE = frozenset({400, 413, 422})


class WebhookSettings(BaseModel):
    """Where people are told of incidents and failed runs; see docs/operations.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # chats put their token into it; settings become the environment of programs again
    url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^https?://(\[[0-9A-Fa-f:]+\]|[\w.-]+)(:\d+)?([/?][!-~]*)?$",
        description="The webhook that is told of incidents and failed runs. Unset: nobody is.",
    )
    kind: Literal["generic", "slack"] = Field(
        default="generic", description="The form of its messages: generic (one JSON document each) or slack."
    )
    dagster_url: str | None = Field(
        default=None,
        pattern=r"^https?://[!-~]+$",
        description="Dagster's UI as readers of messages reach it. Unset: the one on this machine, while it runs.",
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a message; ``status`` is None when no answer came, ``words`` says it for people."""

    status: int | None
    words: str
    #: How long the webhook asked to be left alone, seconds; 0 when it did not.
    pause_s: float = 0.0

    @property
    def accepted(self) -> bool:
        """Whether the webhook has it."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether this message is at fault, so that others may well be accepted."""
        return self.status in _BAD_MESSAGE


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that was moved is told to whoever configured it: the message may not go wherever an answer says."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def shown(url: str) -> str:
    """The webhook as it may be shown: where it is, without its path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


def post(url: str, document: Mapping[str, Any], *, identity: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Send one message; whatever goes wrong is in the answer.

    Args:
        url: The webhook, of HTTP or HTTPS; proxies of the machine are used.
        document: The message.
        identity: Its own id, the same each time it is sent: a receiver can tell that it came twice.
        timeout_s: For each step of the request.
    """
    headers = {"Content-Type": "application/json", "User-Agent": "holdfast", "Idempotency-Key": identity}
    body = json.dumps(document).encode()
    try:
        # The settings admit http and https only.
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
    """Seconds of a Retry-After header; its other form, a date, is taken for none."""
    return min(float(text), 3600.0) if text is not None and text.isdigit() else 0.0


def _without_path(words: str, url: str) -> str:
    parts = urlsplit(url)
    for secret in (url, parts.query, *parts.path.split("/")):
        if len(secret) > 3:
            words = words.replace(secret, "***")
    return words
