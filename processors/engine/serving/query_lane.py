"""The lane of queries about state: answers them at once, on a thread, or later, and limits their rate.

    admitted ──► at once (this worker has the state) ──────────────► answered
       │   └──► on a thread (the answer needs another worker) ────────►│
       │   └──► later (the task is not as far as the query demands) ──►│
       └──► refused: too many queries in a second

While queries come, the interpreter's switch interval is short. Each system call of a query gives the interpreter to the
worker's loop, which keeps it for that interval.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import structlog

from holdfast.processors.engine.queries.figures import QueryFigures
from holdfast.processors.engine.serving.connection import Connection
from holdfast.processors.engine.serving.limits import Allowance, WorkThreads
from holdfast.processors.engine.serving.requests import Answer, Head, Later, written

_log = structlog.get_logger("serving")

#: Seconds between two attempts to answer a query that waits for a commit.
LOOK_AGAIN_S = 0.01
#: The interpreter's switch interval while queries come, in seconds. Python's is 5 ms, which each system call of a query
#: would wait. ``HURRY_S``: seconds without a query after which the former interval is set again.
SWITCH_S, HURRY_S = 0.0005, 1.0
#: Maximum number of threads for queries that need another worker or Kafka.
THREADS_MAX = 4


class Queries(Protocol):
    """The routes of queries about state (``serving.state``)."""

    def serves(self, page: str) -> bool:
        """Whether a path belongs to these routes."""

    def at_once(self, head: Head) -> Answer | Later | None:
        """Answers a request without blocking; None if it must be answered on a thread."""

    def on_thread(self, head: Head) -> Answer | Later:
        """Answers a request. The call may block, for example while another worker answers."""

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        """The queries that clients have sent, by store."""

    def counted(self, head: Head, answer: Answer) -> None:
        """Counts an answer that is being sent. Always called on the same thread."""

    def close(self) -> None:
        """Closes the connections to other workers."""


_TOO_MANY = Answer(
    429, {"error": "too many queries; HOLDFAST_SERVING__QUERIES_PER_S sets the limit"}, headers={"Retry-After": "1"}
)
FAILED = Answer(500, {"error": "the request failed; the worker's log has the reason"})


def _guarded(serve: Callable[[], Answer | Later | None]) -> Answer | Later | None:
    """Calls ``serve``; an unexpected error becomes the answer 500."""
    try:
        return serve()
    except Exception:
        _log.warning("a query was not answered", exc_info=True)
        return FAILED


class QueryLane:
    """Answers queries. All methods run on the event loop's thread.

    Args:
        per_s: Maximum number of queries in a second.
    """

    def __init__(self, queries: Queries, per_s: int) -> None:
        self._queries = queries
        self._threads = WorkThreads("queries", THREADS_MAX)
        self._allowance = Allowance(per_s, max(1.0, per_s / 10))
        self._queried_at = 0.0
        #: The interpreter's switch interval before the first query; None while no queries come.
        self._former_interval_s: float | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def figures(self) -> Mapping[str, QueryFigures]:
        """The queries that clients have sent, by store. Any thread may read them."""
        return self._queries.figures

    def serves(self, page: str) -> bool:
        """Whether a path belongs to the routes of queries."""
        return self._queries.serves(page)

    def take(self, connection: Connection, head: Head, loop: asyncio.AbstractEventLoop) -> None:
        """Answers a query at once, or on a thread if it must wait for other workers or Kafka."""
        self._loop = loop
        if not self._allowance.takes_one(loop.time()):
            self._tell(connection, head, _TOO_MANY)
            return
        self._hurry()
        self._pass_on(connection, head, _guarded(partial(self._queries.at_once, head)))

    def end(self) -> None:
        """Ends the threads, closes connections to other workers, and sets the former switch interval."""
        self._ended = True
        self._threads.end()
        self._queries.close()
        self._calm()

    def _hurry(self) -> None:
        """Lets this thread run soon after it asks for the interpreter, until no query has come for a while."""
        self._queried_at = self._loop.time()
        if self._former_interval_s is None:
            self._former_interval_s = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_S, self._former_interval_s))
            self._loop.call_later(HURRY_S, self._calm)

    def _calm(self) -> None:
        if self._former_interval_s is None:
            return
        left_s = self._queried_at + HURRY_S - self._loop.time()
        if left_s > 0 and not self._ended:
            self._loop.call_later(left_s, self._calm)
        else:
            sys.setswitchinterval(self._former_interval_s)
            self._former_interval_s = None

    def _pass_on(self, connection: Connection, head: Head, answer: Answer | Later | None) -> None:
        if answer is None:
            self._threads.take(partial(self._serve_on_thread, connection, head))
        else:
            self._tell(connection, head, answer)

    def _serve_on_thread(self, connection: Connection, head: Head) -> None:
        answer = _guarded(partial(self._queries.on_thread, head)) or FAILED
        with suppress(RuntimeError):  # RuntimeError means that the server was closed in the meantime
            self._loop.call_soon_threadsafe(self._tell, connection, head, answer)

    def _tell(self, connection: Connection, head: Head, answer: Answer | Later) -> None:
        if isinstance(answer, Later):
            if not connection.is_closed:
                self._loop.call_later(LOOK_AGAIN_S, self._look_again, connection, head, answer)
            return
        self._queries.counted(head, answer)
        keeps = head.keeps and not self._ended
        connection.answer(written(answer, with_body=head.method != "HEAD", keeps=keeps), keeps=keeps)

    def _look_again(self, connection: Connection, head: Head, waiting: Later) -> None:
        self._pass_on(connection, head, _guarded(waiting.again))
