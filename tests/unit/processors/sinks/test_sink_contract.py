"""The contract of sinks, on a user's sink and on those that ship, and that it finds sinks that break it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from holdfast.processors.sinks import sql_table
from holdfast.sinks import BatchingSink, SinkBatch, SqlSink
from holdfast.testing import PausingSinkContract, SinkContract


@pytest.mark.slow
class TestSqlSink(PausingSinkContract):
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sql_table, "CONNECT_S", 0.01)

    def make_sink(self) -> SqlSink:
        return SqlSink(f"sqlite:///{self.folder / 'rows.db'}", "rows", create=True)

    def stored(self) -> Counter[tuple[str, int]]:
        with closing(sqlite3.connect(self.folder / "rows.db")) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchall():
                return Counter()
            return Counter(database.execute("SELECT key, n FROM rows").fetchall())

    @contextmanager
    def away(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.folder / "rows.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.execute("ROLLBACK")


class Kept(BatchingSink):
    """A sink of a user, with the rows of each partition by offset."""

    def __init__(self, rows: dict[Any, Any]) -> None:
        super().__init__()
        self.rows = rows

    def write(self, batch: SinkBatch) -> None:
        for item in batch:
            self.rows[batch.partition, item.offset] = item.key, item.value["n"]


class TestUsersSink(SinkContract):
    keeps = "each"

    def setup_method(self) -> None:
        super().setup_method()
        self.rows: dict[Any, Any] = {}

    def make_sink(self) -> BatchingSink:
        return Kept(self.rows)

    def stored(self) -> Counter[tuple[str, int]]:
        return Counter(self.rows.values())


class Forgetful(Kept):
    """Loses what it got before a commit that is abandoned, and what a flush could not write."""

    def flush(self) -> None:
        self._batches.clear()


class Appending(Kept):
    """Writes rows again that are repeated."""

    def write(self, batch: SinkBatch) -> None:
        for item in batch:
            self.rows[len(self.rows)] = item.key, item.value["n"]


class Holding(Kept):
    """Keeps what an abandoned commit has added."""

    def on_paused(self) -> None:
        """Drops nothing."""


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Forgetful, "test_the_system_has_what_the_results_say"),
        (Appending, "test_a_kill_at_any_call_loses_nothing"),
        (Holding, "test_results_of_an_abandoned_commit_are_dropped"),
    ],
)
def test_the_contract_finds_a_sink_that_breaks_it(kind: type[Kept], broken: str) -> None:
    class Broken(TestUsersSink):
        def make_sink(self) -> BatchingSink:
            return kind(self.rows)

    checks = Broken()
    checks.setup_method()
    with pytest.raises(AssertionError):
        getattr(checks, broken)()
    checks.teardown_method()
