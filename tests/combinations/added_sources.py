"""Sources that are added to random topologies: a class, a file, a table, and requests, with the same numbers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from holdfast.processors.engine.serving.requests import Answer
from holdfast.processors.sources.event_server import Request
from holdfast.sources import HttpSource, Source, StatefulSource
from tests.combinations.lake import LAKES, staged

#: The name of the staging sink that ``charged`` adds.
CHARGES = "charges"
#: The number of messages of the source that ``sourced`` adds.
FED = 40


class Fed(StatefulSource):
    """A source of the numbers up to ``FED``, in units of one to four."""

    def run(self) -> None:
        for number in range(self.state.get("next", 0), FED):
            self.produce(str(number), key=f"f{number % 5}")
            self.state.set("next", number + 1)
            if number % 4 == 0 or number % 7 == 0:
                self.flush()


def fed_by_file() -> Source:
    """A source of the same numbers, which reads them from a file in memory."""
    import fsspec

    from holdfast.sources import FileSource

    fsspec.filesystem("memory").pipe("/fed/numbers.jsonl", b"".join(b"%d\n" % number for number in range(FED)))
    return FileSource("fed", "memory://fed/*.jsonl", key=lambda number: f"f{number % 5}", batch=4)


#: Keeps the table of ``fed_by_table``, which is in memory.
_TABLE = "file:holdfast-fed?mode=memory&cache=shared"
_kept: list[sqlite3.Connection] = []


def fed_by_table() -> Source:
    """A source of the same numbers, which reads them from a table in memory. Some rows have equal cursor values."""
    from sqlalchemy.pool import QueuePool

    from holdfast.sources import SqlSource

    if not _kept:
        _kept.append(sqlite3.connect(_TABLE, uri=True, check_same_thread=False))
        with _kept[0] as base:
            base.execute("CREATE TABLE fed (number INTEGER, at INTEGER)")
            base.executemany("INSERT INTO fed VALUES (?, ?)", [(number, number // 3) for number in range(FED)])
    url = f"sqlite:///{_TABLE}&uri=true"
    cursor: dict[str, Any] = {
        "cursor": "at",
        "tie_break": ["number"],
        "overlap": 5,
        "engine_options": {"poolclass": QueuePool},
    }
    return SqlSource("fed", url, table="fed", key=lambda row: f"f{row['number'] % 5}", batch=4, poll=None, **cursor)


class Posts:
    """The client of an ``HttpSource``, and the server's inbox: requests that are repeated until they are accepted.

    A request that a killed worker has taken is posted again, and so is every third one that was accepted, as if its
    answer had been lost.
    """

    def __init__(self) -> None:
        first = [number for number in range(FED) if number % 4 == 0 or number % 7 == 0]
        bodies = [list(range(start, end)) for start, end in zip(first, [*first[1:], FED], strict=True)]
        #: The requests that are not accepted yet: their keys and bodies.
        self.waiting = {f"request {number}": json.dumps(body).encode() for number, body in enumerate(bodies)}
        self._again = {key: body for number, (key, body) in enumerate(self.waiting.items()) if number % 3 == 0}
        self._accepted: set[str] = set()
        #: Answers that are wrong.
        self.wrong: list[str] = []

    @property
    def has_requests(self) -> bool:
        """Whether a request is to be posted."""
        return bool(self.waiting)

    def take(self) -> list[Request]:
        """Posts up to three requests."""
        some = list(self.waiting.items())[:3]
        return [Request(key, "application/json", body, partial(self._answered, key)) for key, body in some]

    def _answered(self, key: str, answer: Answer) -> None:
        if answer.code == 503:  # the worker ends, so the request is repeated
            return
        told = dict(answer.body) if isinstance(answer.body, Mapping) else {}
        if answer.code != 200 or (key in self._accepted and not told["duplicate"]):
            self.wrong.append(f"{key}: {answer.code} {told}")
        self.waiting.pop(key, None)
        if key not in self._accepted and key in self._again:
            self.waiting[key] = self._again[key]
        self._accepted.add(key)

    def put_back(self, requests: list[Request]) -> None:
        """Does nothing, because requests without an answer are posted again."""

    def committed(self) -> None:
        """Does nothing, because the number of requests is not limited."""

    def refuse_all(self) -> None:
        """Does nothing, because requests without an answer are posted again."""

    def close(self) -> None:
        """Does nothing, because there is no socket."""


#: The client of the present run; a new one for each run (``trial.py``).
POSTS: list[Posts] = [Posts()]


class Posted(HttpSource):
    """An ``HttpSource`` whose requests come from ``Posts`` instead of a socket. It ends when all are accepted."""

    def _listens(self) -> bool:
        self._server: Any = POSTS[-1]
        return True

    def _await_requests(self) -> bool:
        return self.running and POSTS[-1].has_requests


def sourced(app: Any, kind: str = "class") -> None:
    """Adds a source, and a stateful stream of its messages."""

    def counted(value: Any, state: Any) -> Any:
        return [value["number"] if isinstance(value, dict) else value, state.increment("count")]

    made: dict[str, Callable[[], Source]] = {
        "class": lambda: Fed("fed"),
        "file": fed_by_file,
        "table": fed_by_table,
        "posts": lambda: Posted("fed", 8100, key=lambda number: f"f{number % 5}"),
    }
    stream = app.dataframe(app.add_source(made[kind]()))
    stream.apply(counted, stateful=True, store="fed-counts").to_topic(app.topic("fed-out"))


async def charge(number: int) -> list[int]:
    """Asks another system, which gives each call another number."""
    await asyncio.sleep(0)
    charged = LAKES[-1].charged
    charged.append(number)
    return [number, len(charged)]


def charged(app: Any) -> None:
    """Adds a source, durable calls of its messages, and a staging sink of their answers, beside a topic."""
    stream = app.dataframe(app.add_source(Fed("fed")))
    stream = stream.apply_async(charge, concurrency=3, durable=True, store="charges")
    staged(stream, app, CHARGES).to_topic(app.topic("fed-out"))
