"""Calls of the client library with a deadline that holds.

Some of librdkafka's transactional calls can outlive their own timeout after a broker's restart (seen with
``send_offsets_to_transaction`` on 2.16.0; librdkafka issues 3013, 3041 and 3971 tell of more). They run on a thread of
their own; whoever waits for them goes on living, and gives them up in the end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: How often whoever waits is told so, in seconds.
WAIT_STEP_S = 1.0


class CallHangs(Exception):
    """A call did not come back by its deadline; its thread and its client are lost."""


@dataclass(slots=True)
class _Call:
    work: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


class GuardedCalls:
    """One thread that makes calls, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: A call never came back.
        self.lost = False

    def run(self, work: Callable[[], None], *, limit_s: float, on_wait: Callable[[], None]) -> None:
        """Make a call; ``on_wait`` is told about once a second while it lasts.

        Raises:
            CallHangs: It did not come back within ``limit_s``.
            Exception: What the call raised.
        """
        if self.lost:
            raise CallHangs
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_calls, name=self._name, daemon=True)
            self._thread.start()
        call = _Call(work)
        deadline = time.monotonic() + limit_s
        self._calls.put(call)
        while not call.done.wait(WAIT_STEP_S):
            on_wait()
            if time.monotonic() > deadline:
                self.lost = True
                raise CallHangs
        if call.failure is not None:
            raise call.failure

    def close(self) -> None:
        """Let the thread end; one that is lost ends when its call does."""
        self._calls.put(None)

    def _make_calls(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            try:
                call.work()
            except BaseException as failure:
                call.failure = failure
            call.done.set()
