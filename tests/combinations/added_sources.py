"""Sources that are added to random topologies: a class, a file, and a table, with the same numbers."""

from __future__ import annotations

import sqlite3
from typing import Any

from holdfast.sources import Source, StatefulSource

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


def sourced(app: Any, kind: str = "class") -> None:
    """Adds a source, and a stateful stream of its messages."""

    def counted(value: Any, state: Any) -> Any:
        return [value["number"] if isinstance(value, dict) else value, state.increment("count")]

    made = {"class": lambda: Fed("fed"), "file": fed_by_file, "table": fed_by_table}
    stream = app.dataframe(app.add_source(made[kind]()))
    stream.apply(counted, stateful=True, store="fed-counts").to_topic(app.topic("fed-out"))
