"""Limits the work that HTTP requests cause: the number of threads, and the rate of actions such as accepts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class WorkThreads:
    """Daemon threads that run functions from one queue.

    If no thread is free, a thread is started, until ``most`` threads run.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._waiting = 0

    def take(self, work: Callable[[], None]) -> None:
        """Queues a function, which runs as soon as a thread is free."""
        with self._lock:
            self._waiting += 1
            starts = self._threads < self._most and self._waiting > 0
            self._threads += starts
        self._work.put(work)
        if starts:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def end(self) -> None:
        """Tells the threads to end. Each thread first completes its current work."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._waiting -= 1
        return self._work.get()


class Allowance:
    """A rate limit: on average ``per_s`` actions per second, and at most ``most`` actions in one burst."""

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s, self._most = per_s, most
        self._left, self._at = most, 0.0

    def takes_one(self, now: float) -> bool:
        """Returns True if one more action is allowed now, and counts it; False if the rate limit is reached.

        ``now`` is in seconds and must never decrease.
        """
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
