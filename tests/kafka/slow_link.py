"""A TCP proxy to a local server that a test can stall or disconnect."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PIECE = 4_096


class SlowLink:
    """A TCP proxy that listens on ``port`` and forwards connections to a local server.

    It forwards all bytes until ``stall``. After that, the stalled direction forwards a limited number of bytes, counted
    over all connections. It then stops until ``flow`` or ``drop``.

    Args:
        upstream: The server's port on this machine.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._moved = threading.Condition()
        self._room: dict[str, int | None] = {"up": None, "down": None}
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Set while at least one connection is stopped.
        self.stalled = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, way: str, after: int) -> None:
        """Forward ``after`` more bytes ``up`` (to the server) or ``down`` (to the client), and then none."""
        with self._moved:
            self.stalled.clear()
            self._room[way] = after

    def flow(self) -> None:
        """Forward all bytes again after a stall."""
        with self._moved:
            self._room = {"up": None, "down": None}
            self.stalled.clear()
            self._moved.notify_all()

    def drop(self) -> None:
        """Close all connections, and forward new connections without a limit."""
        with self._moved:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(pair)
        self.flow()

    def close(self) -> None:
        """Close the listener and all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                near.close()
                continue
            with self._moved:
                self._pairs.append((near, far))
            for way, source, target in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._carry, args=(way, source, target), daemon=True).start()

    def _carry(self, way: str, source: socket.socket, target: socket.socket) -> None:
        try:
            while piece := source.recv(PIECE):
                self._await_room(way, len(piece))
                target.sendall(piece)
        except OSError:
            pass
        _end((source, target))

    def _await_room(self, way: str, size: int) -> None:
        with self._moved:
            while (room := self._room[way]) is not None and room < size:
                self.stalled.set()
                self._moved.wait()
            if room is not None:
                self._room[way] = room - size


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
