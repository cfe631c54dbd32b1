"""Hostile HTTP clients. One thread keeps many connections of every kind open to one server, and reopens closed ones.

``python -m tests.parts.hostile_clients PORT KIND...`` attacks a server until its own stdin ends.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

#: Seconds between two rounds. In each round, every connection sends one byte, and closed connections are opened again.
ROUND_S = 0.05
#: The largest number of bytes that a connection reads from its server in one round.
_TAKES = 4096


def tls_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


#: The first bytes of each kind of connection. Afterwards a connection sends one byte in each round, as long as it is
#: open.
KINDS = {
    "silent": b"",
    "slow header": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "slow body": b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n",
    "refused length": b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n",
    "refused coding": b"POST /pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    "no token": b"POST /pause HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "foreign name": b"GET /status HTTP/1.1\r\nHost: rebound.example\r\n\r\n",
    "half open": b"GET /metrics HTTP/1.1\r\nHost: local",
    "huge header": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Huge: " + b"a" * 100_000,
    "pipelined": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50,
    "never reads": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http 0.9": b"GET /metrics\r\n",
    "tls": tls_hello(),
    "noise": bytes(range(256)) * 4,
}
#: Kinds of connections that send no further bytes. They must read to notice that the server has closed the connection.
_MUTE = ("silent", "half open")


def more_descriptors(wanted: int) -> None:
    """Raise the limit of open files of this process for the rest of its life. Fails if the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Hostile:
    """A connection that sends the first bytes of its kind, then one byte in each round, even after an answer."""

    def __init__(self, kind: str, port: int) -> None:
        self.kind = kind
        self._left = KINDS[kind]
        self._begun = False
        self.socket = socket.socket()
        if kind == "never reads":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))

    def is_open(self, *, readable: bool) -> bool:
        """Send the next bytes and read a part of the answer. Returns False if the server has closed the connection."""
        try:
            if readable and self.kind != "never reads" and not self.socket.recv(_TAKES) and self.kind in _MUTE:
                return False
            if not self._begun or self._left:
                self._begun = True
                self._left = self._left[self.socket.send(self._left) :]
                if self.kind == "half open":
                    self.socket.shutdown(socket.SHUT_WR)
            elif self.kind not in _MUTE:
                self.socket.send(b"a")
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return True


class Attack:
    """Holds ``count`` connections open to a loopback port, spread evenly over ``kinds``. Reopens closed connections.

    A context manager. Its block starts when every connection has been opened once. All connections are closed at its
    end.
    """

    def __init__(self, port: int, kinds: Sequence[str], count: int = 1000) -> None:
        more_descriptors(count + 1024)
        self._port, self._count = port, count
        self._kinds = cycle(kinds)
        self._stop, self._all_open = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="attack", daemon=True)

    def __enter__(self) -> Attack:
        self._thread.start()
        assert self._all_open.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        held: dict[socket.socket, _Hostile] = {}
        with selectors.DefaultSelector() as selector:
            while not self._stop.is_set():
                while len(held) < self._count:
                    made = _Hostile(next(self._kinds), self._port)
                    selector.register(made.socket, selectors.EVENT_READ)
                    held[made.socket] = made
                readable = {key.fileobj for key, _ in selector.select(0)}
                for gone in [each for each, one in held.items() if not one.is_open(readable=each in readable)]:
                    selector.unregister(gone)
                    del held[gone]
                    gone.close()
                self._all_open.set()
                self._stop.wait(ROUND_S)
            for left in held:
                left.close()


@contextlib.contextmanager
def attacked(port: int, kinds: Sequence[str]) -> Iterator[None]:
    """Attack a port from another process while the block runs.

    The block starts when every connection has been opened once.
    """
    command = [sys.executable, "-m", "tests.parts.hostile_clients", str(port), *kinds]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "all are open\n"
        try:
            yield
        finally:
            process.communicate(timeout=60)
    assert process.returncode == 0


def main() -> None:
    """Attack until stdin ends."""
    with Attack(int(sys.argv[1]), sys.argv[2:]):
        print("all are open", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
