"""A proxy that parses Kafka's protocol and can lose, delay or intercept one chosen request or reply.

Every request begins with its size, api key, api version and correlation id. Every reply begins with its size and the
correlation id (the protocol guide's common headers). The proxy reads no other field.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import KafkaError

PRODUCE, OFFSET_FETCH, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 9, 25, 26, 28


#: Errors with which the broker answers an EndTxn request if the transaction has already ended.
REFUSED = {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_TXN_STATE}


class Fate(Enum):
    SWALLOW_REPLY = "the request arrives, its reply is lost"
    SWALLOW_REQUEST = "the request is lost"
    HOLD = "the request arrives when it is let go"
    CALL = "the test is told, then the request arrives"


@dataclass
class Rule:
    """The fault that hits the n-th request of one kind. The count starts at 1 when the rule is added.

    With ``cut``, the proxy closes the client's connection at once. Otherwise the connection stays open without an
    answer. If only the reply is lost, the proxy closes the connection when the reply arrives.
    """

    api_key: int
    fate: Fate
    nth: int = 1
    call: Callable[[], None] = lambda: None
    cut: bool = False
    seen: int = 0
    struck: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    #: The broker's answer to a held request; set before ``answered``.
    answer: bytes = b""
    answered: threading.Event = field(default_factory=threading.Event)

    @property
    def error(self) -> int:
        """The error code in the answer to a held EndTxn; it follows the correlation id and the throttle time."""
        return int(struct.unpack_from(">h", self.answer, 8)[0])


class KafkaProxy:
    """A proxy on a free port. The broker's configuration sets ``upstream`` to the broker's own port."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.upstream = 0
        self.rules: list[Rule] = []
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def on(
        self, api_key: int, fate: Fate, *, nth: int = 1, call: Callable[[], None] = lambda: None, cut: bool = False
    ) -> Rule:
        rule = Rule(api_key, fate, nth, call, cut)
        with self._lock:
            self.rules.append(rule)
        return rule

    def calm(self) -> None:
        """Stop all faults and release held requests. Raises the first error that a test's ``call`` raised."""
        with self._lock:
            for rule in self.rules:
                rule.release.set()
            self.rules.clear()
            failures, self.failures = self.failures, []
        if failures:
            raise failures[0]

    def close(self) -> None:
        self._closed = True
        self.calm()
        self._listener.close()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._sockets += [client, server]
            connection = _Connection(self, client, server)
            threading.Thread(target=connection.requests, daemon=True).start()
            threading.Thread(target=connection.replies, daemon=True).start()

    def rule_for(self, api_key: int) -> Rule | None:
        with self._lock:
            counting = [rule for rule in self.rules if rule.api_key == api_key]
            for rule in counting:
                rule.seen += 1
            met = next((rule for rule in counting if rule.seen >= rule.nth), None)
            if met is not None:
                self.rules.remove(met)
        return met


class _Connection:
    def __init__(self, proxy: KafkaProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._swallowed: dict[int, Rule] = {}

    def requests(self) -> None:
        self._pump(self._client, self._server, self._request)

    def replies(self) -> None:
        self._pump(self._server, self._client, self._reply)

    def _request(self, frame: bytes) -> bool:
        api_key, _, correlation = struct.unpack_from(">hhi", frame, 4)
        rule = self._proxy.rule_for(api_key)
        if rule is None:
            return True
        if rule.fate is Fate.SWALLOW_REPLY:
            self._swallowed[correlation] = rule
        elif rule.fate is Fate.CALL:
            self._call(rule)
        rule.struck.set()
        if rule.fate is Fate.HOLD:
            self._swallowed[correlation] = rule
            threading.Thread(target=self._send_late, args=(rule, frame), daemon=True).start()
        lost = rule.fate in (Fate.HOLD, Fate.SWALLOW_REQUEST)
        if lost and rule.cut:
            raise ConnectionAbortedError
        return not lost

    def _call(self, rule: Rule) -> None:
        try:
            rule.call()
        # forward the request although the test's function failed, because a stuck proxy would hide the error
        except BaseException as failure:
            self._proxy.failures.append(failure)

    def _send_late(self, rule: Rule, frame: bytes) -> None:
        """Send a held request over a new connection.

        The client closed the old connection when its request timed out.
        """
        rule.release.wait()
        with socket.create_connection(("127.0.0.1", self._proxy.upstream), timeout=10) as late:
            late.sendall(frame)
            size = _exactly(late, 4)
            if size is not None:
                rule.answer = _exactly(late, struct.unpack(">i", size)[0]) or b""
        rule.answered.set()

    def _reply(self, frame: bytes) -> bool:
        (correlation,) = struct.unpack_from(">i", frame, 4)
        rule = self._swallowed.get(correlation)
        if rule is not None and rule.cut:
            raise ConnectionAbortedError
        return rule is None

    def _pump(self, source: socket.socket, target: socket.socket, passes: Callable[[bytes], bool]) -> None:
        try:
            while True:
                head = _exactly(source, 4)
                body = None if head is None else _exactly(source, struct.unpack(">i", head)[0])
                if head is None or body is None:
                    break
                if passes(head + body):
                    target.sendall(head + body)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
