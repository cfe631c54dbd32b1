"""Makes librdkafka calls on a separate thread, with a deadline at which the caller stops waiting.

After a broker's restart, some transactional calls of librdkafka do not return at their own timeout. This was seen with
``send_offsets_to_transaction`` on 2.16.0; see also librdkafka issues 3013, 3041 and 3971. With a separate thread, the
worker still reports its status while it waits, and can abandon the call at the deadline.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.infra.waiting import Deadline

#: Pause between two calls of ``on_wait``, seconds.
WAIT_STEP_S = 1.0


class CallHangs(Exception):
    """A call did not return by its deadline. Its thread and its client are not used again."""


@dataclass(slots=True)
class _Call:
    work: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


class GuardedCalls:
    """Makes calls on one separate thread, one call after the other. ``name`` is the name of the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Whether a call did not return by its deadline and was abandoned. Then every further call raises CallHangs at
        #: once.
        self.lost = False

    def run(self, work: Callable[[], None], *, limit_s: float, on_wait: Callable[[], None]) -> None:
        """Call ``work`` on the thread, and wait until it returns. Meanwhile, call ``on_wait`` every ``WAIT_STEP_S``.

        Raises:
            CallHangs: The call did not return within ``limit_s``.
            Exception: The error that the call raised.
        """
        if self.lost:
            raise CallHangs
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_calls, name=self._name, daemon=True)
            self._thread.start()
        call = _Call(work)
        deadline = Deadline(limit_s)
        self._calls.put(call)
        while not call.done.wait(WAIT_STEP_S):
            on_wait()
            if deadline.passed:
                self.lost = True
                raise CallHangs
        if call.failure is not None:
            raise call.failure

    def close(self) -> None:
        """End the thread. If a call was abandoned, the thread ends only when the abandoned call returns."""
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
