"""``HttpSource``: an HTTP endpoint. The events of one idempotency key become messages exactly once.

    POST ──► inbox ──► messages and the idempotency key, in one transaction ──committed──► 200

Invariants:
    - A request is answered with 2xx only after the transaction with its messages is committed.
    - A request is one unit: all of its events are sent, or none.
    - The messages of an idempotency key are sent once, as long as the key is remembered. The keys are in the source's
      state, so this also holds after kill -9, and on another worker.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.schemas.errors import SchemaRegistryFailed
from holdfast.infra.settings import is_loopback
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.formats.kafka_message import KafkaMessage
from holdfast.processors.engine.record_size import RecordTooLarge
from holdfast.processors.engine.serving.requests import Answer
from holdfast.processors.engine.sources.source import SHUTDOWN_S, StatefulSource
from holdfast.processors.sources.event_server import ENDS, EventServer, HttpLimits, PortTaken, Request, refusal
from holdfast.processors.sources.retries import repeated
from holdfast.processors.sources.row_fields import FieldChoice, RowFields, option_invalid

#: The state key of an idempotency key is this prefix and a hash of the key.
_PREFIX = "key:"
#: A unit ends with the first request that reaches one of these: messages, and bytes of bodies.
_UNIT_MESSAGES, _UNIT_BYTES = 10_000, 16 << 20
#: Maximum keys that one unit forgets, and seconds between two looks for expired keys without requests.
_FORGOTTEN_MAX, _LOOK_S = 10_000, 1.0
#: Seconds for which a port that another program has is tried again.
_PATIENCE_S = 30.0
#: Seconds within which the source reports that it listens.
_REPORT_S = 60.0
#: Media types of a body with one JSON value in each line.
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/jsonlines")


class HttpSource(StatefulSource):
    """Listens for events over HTTP, and sends each as a message.

    A client posts one JSON value, a list of them, or JSON lines (``application/x-ndjson``). Each request has the header
    ``Idempotency-Key``; a repeated request has the same key and the same body. The answer 200 says that the messages
    are committed. Any other answer, and no answer, means: repeat the request.

    Args:
        name: The name of the source, unique in the application.
        port: The port; each source of a machine needs its own.
        host: The address to listen on. An address that other machines reach needs a ``token``.
        path: The path to which events are posted.
        token: The token that requests need as ``Authorization: Bearer``: 16 visible ASCII characters or more.
        key: The field of the message key, or a function of the event; None sends messages without a key.
        timestamp: The field of the time, or a function of the event; None means the time of the commit.
        remember: How long an idempotency key is remembered.
        limits: The limits for bodies, rate, waiting requests and keys.
        shutdown_timeout: Seconds that a stopping worker waits for the end of ``run``.

    Raises:
        SourceOptionInvalid: An argument has a value that is not allowed.
    """

    _server: EventServer

    def __init__(  # tidy: allow-wide because each argument says one thing about the endpoint.
        self,
        name: str,
        port: int,
        *,
        host: str = "127.0.0.1",
        path: str = "/events",
        token: str | None = None,
        key: FieldChoice | None = None,
        timestamp: FieldChoice | None = None,
        remember: timedelta = timedelta(hours=1),
        limits: HttpLimits | None = None,
        shutdown_timeout: float = SHUTDOWN_S,
    ) -> None:
        super().__init__(name, shutdown_timeout)
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            raise option_invalid(name, "port", port, "a port from 1 to 65,535")
        if not isinstance(path, str) or not path.startswith("/") or path in ("/health", "/ready"):
            raise option_invalid(name, "path", path, "a path that begins with `/`, other than `/health` and `/ready`")
        if token is None and not is_loopback(host):
            raise option_invalid(name, "token", token, f"a token, because other machines reach {host}")
        if token is not None and (len(token) < 16 or not all("!" <= each <= "~" for each in token)):
            raise option_invalid(name, "token", "***", "16 visible ASCII characters or more")
        if not isinstance(remember, timedelta) or remember <= timedelta(0):
            raise option_invalid(name, "remember", remember, "a timedelta above 0")
        if limits is not None and not isinstance(limits, HttpLimits):
            raise option_invalid(name, "limits", limits, "an `HttpLimits`")
        self._address, self._path, self._token = (host, port), path, token
        self._fields = RowFields(name, key, timestamp)
        self._remember_ms = int(remember.total_seconds() * 1000)
        self._limits = limits or HttpLimits()
        #: The remembered keys: a hash of the key -> a hash of the body. And their ages, oldest first.
        self._bodies: dict[str, str] = {}
        self._ages: deque[tuple[int, str]] = deque()

    @property
    def connects_to(self) -> ExternalSystem:
        """The address and path to which events are posted."""
        host, port = self._address
        return ExternalSystem("http", f"http://{host}:{port}{self._path}")

    @property
    def version_functions(self) -> Sequence[Callable[..., Any]]:
        """The functions ``key`` and ``timestamp``."""
        return self._fields.functions

    # -- the life of the endpoint ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Listens until the source should end."""
        held = [(at_ms, key.removeprefix(_PREFIX), body) for key, (at_ms, body) in self.state.items(_PREFIX)]
        self._bodies = {key: body for _, key, body in held}
        self._ages = deque(sorted((at_ms, key) for at_ms, key, _ in held))
        if not repeated(self, self._listens, PortTaken, _PATIENCE_S):
            return
        self._report()
        while self._await_requests():
            self._serve(self._server.take())
            self._report()

    def _report(self) -> None:
        self.report(f"{len(self._bodies):,} idempotency keys are remembered", within=_REPORT_S)

    def stop(self) -> None:
        """Refuses further requests, because the source ends on this worker."""
        if (server := vars(self).get("_server")) is not None:
            server.refuse_all()

    def cleanup(self, failed: bool) -> None:
        """Refuses the requests that wait, and closes the server."""
        if (server := vars(self).pop("_server", None)) is not None:
            server.refuse_all()
            server.close()

    def _listens(self) -> bool:
        handover = self._handover or self._not_running("run")
        self._server = EventServer(self._address, self._token, self._path, self._limits, handover.wake)
        self._server.start()
        return True

    def _await_requests(self) -> bool:
        """Waits for requests, or until keys may have expired. Returns False if the source should end."""
        handover = self._handover or self._not_running("run")
        return handover.sleep(_LOOK_S, lambda: self._server.has_requests)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _serve(self, requests: list[Request]) -> None:
        """Sends the events of requests in one unit, commits it, and answers the requests."""
        answers: list[tuple[Request, Answer]] = []
        sent = size = 0
        try:
            for number, request in enumerate(requests):
                if sent >= _UNIT_MESSAGES or size >= _UNIT_BYTES:
                    self._server.put_back(requests[number:])
                    break
                answer, messages = self._judged(request)
                for message in messages:
                    self.produce(message.value, message.key, message.headers, timestamp=message.timestamp)
                sent, size = sent + len(messages), size + len(request.body)
                answers.append((request, answer))
            if self._forget_expired() or sent:
                self.flush()
        except BaseException:
            for request in requests:
                request.answer(ENDS)
            raise
        for request, answer in answers:
            request.answer(answer)
        self._server.committed()

    def _judged(self, request: Request) -> tuple[Answer, list[KafkaMessage]]:
        """Returns the answer to a request, which is true after the commit, and the messages to send.

        Remembers the key of a request with messages.
        """
        key, body = _hash(request.key.encode()), _hash(request.body)
        known = self._bodies.get(key)
        if known is not None and known != body:
            return Answer(422, {"error": "the Idempotency-Key was used with another body; choose another key"}), []
        try:
            events = _events(request)
        except JSON_FAILURES as failure:
            return Answer(400, {"error": f"the body is no JSON: {str(failure)[:200]}"}), []
        if known is not None:
            return Answer(200, {"accepted": len(events), "duplicate": True}), []
        if not 0 < len(events) <= self._limits.events:
            why = f"a request has 1 to {self._limits.events:,} events; this one has {len(events):,}"
            return Answer(413 if events else 400, {"error": why}), []
        if len(self._bodies) >= self._limits.keys:
            return refusal(503, f"{len(self._bodies):,} keys are remembered, and none has expired", 30), []
        try:
            messages = [self._message(event, number) for number, event in enumerate(events, 1)]
        except RecordTooLarge as failure:
            return Answer(413, {"error": failure.message}), []
        except SchemaRegistryFailed as failure:
            return refusal(503, failure.message.rstrip(".")), []
        except HoldfastError as failure:
            return Answer(422, {"error": failure.message, "action": failure.action}), []
        now_ms = (self._handover or self._not_running("run")).limits.times.now_ms()
        self._bodies[key] = body
        self._ages.append((now_ms, key))
        self.state.set(_PREFIX + key, [now_ms, body])
        return Answer(200, {"accepted": len(events), "duplicate": False}), messages

    def _message(self, event: Any, number: int) -> KafkaMessage:
        key, timestamp_ms = self._fields.read(event, f"event {number}")
        message = self.serialize(key, event, timestamp_ms=timestamp_ms)
        handover = self._handover or self._not_running("run")
        # All events are checked before the first is sent, because a request is sent as a whole.
        parts = (message.value, message.key, message.headers)
        handover.limits.checked(self.name, self.producer_topic.name, parts, timestamp_ms)
        return message

    def _forget_expired(self) -> bool:
        """Forgets keys whose time is over. Returns whether there were any."""
        until_ms = (self._handover or self._not_running("run")).limits.times.now_ms() - self._remember_ms
        forgotten = 0
        while self._ages and self._ages[0][0] <= until_ms and forgotten < _FORGOTTEN_MAX:
            _, key = self._ages.popleft()
            del self._bodies[key]
            self.state.delete(_PREFIX + key)
            forgotten += 1
        return forgotten > 0


def _events(request: Request) -> list[Any]:
    """Returns the events of a body. Raises one of ``JSON_FAILURES``."""
    if request.content_type.partition(";")[0].strip().lower() in _LINES:
        return [msgspec.json.decode(line) for line in request.body.split(b"\n") if line.strip()]
    found = msgspec.json.decode(request.body)
    return found if isinstance(found, list) else [found]


def _hash(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()
