"""The workers that a client can ask: those that its caller names, or those of this machine's endpoint files.

Invariants:
    - The token of an endpoint file is sent only to the port on which the file's process listens. The files are read
      again after ``FRESH_S``, and after each failed connection, because another program may take the port later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from holdfast.infra.masking import remember
from holdfast.processors.client.errors import StateClientWrong

#: Seconds for which the endpoint files that were read are used.
FRESH_S = 5.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's URL, the token that reads its state, and the name that its answers have; the name may be empty."""

    url: str
    token: str = field(repr=False)
    name: str = ""


class Workers(Protocol):
    """The workers of one processor."""

    #: What to do if no worker answers, for the error.
    action: str
    #: Whether a worker has an ``https`` address that the caller gave.
    has_tls: bool

    def known(self) -> Sequence[Worker]:
        """The workers, in no order."""

    def at(self, url: str) -> Worker | None:
        """The worker with this URL; None if the client must not send it a token."""

    def is_old(self, now: float) -> bool:
        """Whether ``read`` has to be called before the next question. ``now`` is in monotonic seconds."""

    def read(self, now: float) -> None:
        """Finds the workers again. Reads files."""


class GivenWorkers:
    """Workers that the caller names by URL. All of them accept one token, also those that a worker redirects to."""

    action = "Start the processor's workers, or correct `urls`."

    def __init__(self, urls: Sequence[str], token: str) -> None:
        if isinstance(urls, str) or not urls:
            raise StateClientWrong(
                f"`urls` is {urls!r}; expected a list of at least one URL.",
                action='Pass, for example, urls=["http://127.0.0.1:8080"].',
            )
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise StateClientWrong(
                    f"`urls` has {url!r}; expected http://HOST:PORT.",
                    action="Pass the addresses of the workers' HTTP servers, with the scheme.",
                )
        remember((token,))
        self._token, self._workers = token, tuple(Worker(url.rstrip("/"), token) for url in urls)
        self.has_tls = any(url.startswith("https:") for url in urls)
        self._only_tls = all(url.startswith("https:") for url in urls)

    def known(self) -> Sequence[Worker]:
        """The workers, in the caller's order."""
        return self._workers

    def at(self, url: str) -> Worker | None:
        """The worker with this URL; None if the token would leave TLS, although all given URLs have TLS."""
        return None if self._only_tls and not url.startswith("https:") else Worker(url, self._token)

    def is_old(self, now: float) -> bool:
        """False, because the caller's list does not change."""
        return False

    def read(self, now: float) -> None:
        """Does nothing."""


class LocalWorkers:
    """The workers of one processor on this machine, by their endpoint files.

    Args:
        folder: The folder of the endpoint files.
    """

    has_tls = False

    def __init__(self, folder: Path, processor: str) -> None:
        self._folder, self._processor = folder, processor
        self._workers: tuple[Worker, ...] = ()
        self._read_at = float("-inf")
        self.action = (
            f"Start the processor: `holdfast status {processor}` shows whether it runs on this machine. Write "
            "`app.run(serve=True)` where your program runs it."
        )

    def known(self) -> Sequence[Worker]:
        """The workers whose processes ran when the files were read."""
        return self._workers

    def at(self, url: str) -> Worker | None:
        """The worker with this URL; None if no endpoint file has it."""
        return next((each for each in self._workers if each.url == url), None)

    def is_old(self, now: float) -> bool:
        """Whether the files were read longer than ``FRESH_S`` ago."""
        return now - self._read_at >= FRESH_S

    def read(self, now: float) -> None:
        """Reads the endpoint files, and checks that their processes listen on their ports."""
        # loaded here, because a client with `urls` needs no endpoint file
        from holdfast.processors.engine.serving.endpoint_file import running_workers

        found = running_workers(self._folder, self._processor)
        self._workers = tuple(Worker(each.url, each.state_token, slot) for slot, each in found.items())
        self._read_at = now
