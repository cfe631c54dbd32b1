"""``HttpSink``: one HTTP request for each result, with a key by which the server recognises a repeated one.

    Idempotency-Key: <processor>-<sink>/<topic>/<partition>/<offset>/<digest of key, time and body>-<number>

The key is the same whenever the result comes again, so a server that stores each key once is effectively exactly-once.
The digest tells apart the results of one message, and those of windows and timers, which have its offset, too. The
number tells apart results of one message that are equal.
"""

from __future__ import annotations

import email.utils
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.infra.masking import shown_url
from holdfast.processors.engine.changelog.names import check_name
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sinks.errors import SinkInvalid, SinkRowsRefused
from holdfast.processors.engine.sinks.sink import BatchingSink, SinkBatch, SinkItem
from holdfast.processors.sinks.patience import Attempts, Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

#: Status codes that mean: the same request may succeed later.
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
#: Status codes that are about the sink and not about one result: wrong rights, wrong URL.
WRONG = frozenset({401, 403, 404, 405, 407})
#: Maximum characters of an answer that an error shows.
ANSWER_MAX = 300


class HttpRefused(HoldfastError):
    """The server of an ``HttpSink`` refuses all requests, for example because of missing rights or a wrong URL."""


class HttpSink(BatchingSink):
    """Sends each result as one HTTP request with an idempotency key, in the order of the partition.

    A status of 2xx means that the server has the result; 409 means that it had the result before. After 408, 425, 429
    and 5xx, the worker pauses the inputs and tries again, after the ``Retry-After`` of the answer if it has one. Any
    other status refuses this result, so the processor's policy for failed messages decides.

    Args:
        url: The URL; or a function of a result (``SinkItem``) that returns it.
        method: The method of the requests.
        body: A function that makes the body from a result: bytes, text, or a value that becomes JSON. None means the
            value of the result.
        headers: More headers, for example ``{"Authorization": f"Bearer {token}"}``.
        name: The name of the sink in the idempotency key, unique in the application.
        timeout_s: Maximum seconds of one request.
        retry: How often to try again while the server does not answer.

    Raises:
        SinkInvalid: An argument has a wrong value.
    """

    def __init__(  # tidy: allow-wide because these are independent options of one request
        self,
        url: str | Callable[[SinkItem], str],
        *,
        method: str = "POST",
        body: Callable[[SinkItem], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "http",
        timeout_s: float = 10.0,
        retry: Patience | None = None,
    ) -> None:
        super().__init__()
        if not callable(url) and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
            raise SinkInvalid(
                f"`url` is {shown_url(str(url))!r}; expected a URL of http or https, or a function.",
                action="Write `HttpSink('https://host/path')`.",
            )
        self._url, self._method, self._body = url, method, body
        self._headers, self.name, self._timeout_s = dict(headers or {}), check_name(name, "name of a sink"), timeout_s
        shown = "the server of its function" if callable(url) else shown_url(url)
        self._attempts = Attempts(retry or Patience(), shown[0].upper() + shown[1:] if callable(url) else shown)
        self._shown = shown
        self._client: httpx.Client | None = None
        self._processor = ""
        #: For each partition, the number of results of its batch that the server has.
        self._sent: dict[tuple[str, int], int] = {}

    @property
    def connects_to(self) -> ExternalSystem:
        """The URL of the requests, without its password and the values of its query."""
        return ExternalSystem("http", self._shown)

    def setup(self) -> None:
        """Makes the client. The first request connects."""
        import httpx  # imports slowly

        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        self._client = httpx.Client(timeout=self._timeout_s, limits=limits, headers=self._headers)

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def assigned(self, processor: str, partitions: Sequence[Partition]) -> None:
        """Records the name of the processor, which is a part of the idempotency keys."""
        self._processor = processor

    def on_paused(self) -> None:
        """Drops all batches."""
        super().on_paused()
        self._sent.clear()

    def write(self, batch: SinkBatch) -> None:
        """Sends the results of a batch. After backpressure, it continues behind the last result that the server has.

        Raises:
            SinkBackpressureError: The server does not answer, or asks to wait.
            SinkRowsRefused: The server refuses results.
            HttpRefused: The server refuses all requests.
            SinkSystemAway: The server has not answered for a long time.
        """
        place = batch.topic, batch.partition
        refused: list[tuple[SinkItem, str]] = []
        equal: dict[str, int] = {}
        for at, item in enumerate(batch):
            where = f"{batch.topic}/{batch.partition}/{item.offset}"
            try:
                content = _content(item, self._body)
            except (TypeError, ValueError, msgspec.EncodeError) as failure:
                why = f"its body can't be made: {type(failure).__name__}: {failure}"
                refused.append((item, f"The result of {where} was refused: {why}."))
                continue
            key = f"{self._processor}-{self.name}/{where}/{_digest(item, content)}"
            equal[key] = number = equal.get(key, -1) + 1
            if at < self._sent.get(place, 0):
                continue
            if (said := self._send(item, content, f"{key}-{number}")) is not None:
                refused.append((item, f"Result {key}-{number} was refused: {said}."))
            self._sent[place] = at + 1
        self._sent.pop(place, None)
        if refused:
            raise SinkRowsRefused(batch, refused, "Correct the value in a step before the sink, or the server.")

    def _send(self, item: SinkItem, content: bytes, key: str) -> str | None:
        """Sends one result. Returns why the server refuses it; None if the server has it."""
        import httpx

        assert self._client is not None
        url = self._url(item) if callable(self._url) else self._url
        try:
            answer = self._client.request(self._method, url, content=content, headers=self._headers_of(item, key))
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as failure:
            return f"its URL can't be used: {failure}"
        except (httpx.TransportError, OSError) as failure:
            self._attempts.failed(failure)
        if answer.is_success or answer.status_code == 409:
            self._attempts.succeeded()
            return None
        said = f"status {answer.status_code}: {' '.join(answer.text.split())[:ANSWER_MAX]}"
        if answer.status_code in LATER:
            self._attempts.failed(said, _retry_after(answer.headers.get("Retry-After")))
        if answer.status_code in WRONG and not callable(self._url):
            raise HttpRefused(
                f"{self._method} {shown_url(url)} was answered with {said.rstrip('.')}.",
                action="Correct the `url`, `method` or `headers` of the HttpSink, or the rights of its user.",
                status=answer.status_code,
            )
        self._attempts.succeeded()
        return said.rstrip(".")

    def _headers_of(self, item: SinkItem, key: str) -> dict[str, str]:
        given = {"Idempotency-Key": key}
        if self._body is None and not isinstance(item.value, (bytes, str)):
            given["Content-Type"] = "application/json"
        return given


def _content(item: SinkItem, body: Callable[[SinkItem], Any] | None) -> bytes:
    made = item.value if body is None else body(item)
    if isinstance(made, bytes):
        return made
    return made.encode() if isinstance(made, str) else msgspec.json.encode(made)


def _digest(item: SinkItem, content: bytes) -> str:
    key = item.key if isinstance(item.key, bytes) else str(item.key).encode()
    return hashlib.blake2b(b"%d/%d/" % (item.timestamp, len(key)) + key + content, digest_size=8).hexdigest()


def _retry_after(given: str | None) -> float | None:
    """The seconds of the header ``Retry-After``, which may also be a date; None without a valid one."""
    if given is None:
        return None
    if given.strip().isdigit():
        return float(given)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
