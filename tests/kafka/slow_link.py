"""A link to a server of this machine that is slow, stalls or drops what goes through it, as the test says."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

PIECE = 4_096


class SlowLink:
    """Carries connections to a port; ``port`` is where it listens.

    It carries everything until it is told to stall: then what goes the stalled way gets so many bytes further, over
    all connections, and stands still until ``flow`` or ``drop``.

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
        #: Set while something stands still.
        self.stalled = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, way: str, after: int) -> None:
        """Let ``after`` more bytes go ``up`` (to the server) or ``down``, and then none."""
        with self._moved:
            self.stalled.clear()
            self._room[way] = after

    def flow(self) -> None:
        """Carry everything again."""
        with self._moved:
            self._room = {"up": None, "down": None}
            self.stalled.clear()
            self._moved.notify_all()

    def drop(self) -> None:
        """End every connection, and carry everything from then on."""
        with self._moved:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(pair)
        self.flow()

    def close(self) -> None:
        """End everything."""
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
