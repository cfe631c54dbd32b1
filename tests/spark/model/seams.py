"""Replaces parts of the product in the model: reads of Kafka and of checkpoint files, the clock, and table commits.

All other code that the model runs is the product's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriterV2

from holdfast.assets.spark import history, maintenance, past
from holdfast.assets.spark import history_views as views
from holdfast.assets.spark.catalog import records, sides, versions
from holdfast.assets.spark.sources import changelog
from holdfast.assets.spark.sources.changelog import ChangelogSource
from holdfast.assets.spark.writing import attempt
from holdfast.assets.spark.writing import snapshot as steps
from holdfast.infra.warehouse.pointers import CatalogPointers
from holdfast.processors.snapshots import names
from tests.spark.model.changelog import MemoryChangelog, blob, values
from tests.spark.model.clock import Clock
from tests.spark.model.savings import keep_names

#: SQL statements that begin with one of these words change a table or its references.
_CHANGING = ("ALTER", "CALL", "CREATE", "DELETE", "DROP", "MERGE")
_LOG = "log of the model"


class Killed(BaseException):
    """Kills a run. It is a BaseException, so that no handler of the product catches it."""


class Seams:
    """The replaced parts, for the life (sequence of actions on a store) that is running."""

    def __init__(self) -> None:
        self.clock = Clock()
        #: For the path of each checkpoint: its partition and content.
        self.checkpoints: dict[str, tuple[int, Mapping[bytes, bytes]]] = {}
        #: Called before each table commit, with the statement's text.
        self.before_commit: Callable[[str], None] = lambda words: None
        #: Whether the history's views and the snapshots table are also written. Most lives (sequences of actions) skip
        #: these writes to save time.
        self.booked = True

    def begin(self, clock: Clock) -> None:
        """Reset the replaced parts for the next life (sequence of actions)."""
        self.clock = clock
        self.checkpoints.clear()
        self.before_commit = lambda words: None


def source_of(log: MemoryChangelog) -> ChangelogSource:
    """The changelog in memory as the product's source of records."""
    return ChangelogSource("", {_LOG: log}, log.look)


@contextmanager
def held() -> Iterator[Seams]:
    """Patch the product to use the model's parts within this block."""
    seams = Seams()
    with pytest.MonkeyPatch.context() as patch:
        keep_names(patch)
        _hold_reads(patch, seams)
        _hold_clock(patch, seams)
        _hold_commits(patch, seams)
        _hold_books(patch, seams)
        yield seams


def _hold_reads(patch: pytest.MonkeyPatch, seams: Seams) -> None:
    def read(spark: Any, topic: str, ranges: Any, source: ChangelogSource) -> Any:
        log: MemoryChangelog = source.client_config[_LOG]
        return log.frame(spark, ranges)

    def checkpoint_rows(spark: Any, plan: Any) -> Any:
        parts = [seams.checkpoints[part.path] for part in plan.partitions if part.path]
        rows = [f"({number}, {blob(key)}, {blob(value)})" for number, held in parts for key, value in held.items()]
        return values(spark, "store_partition, key, value", rows, "(0, X'', X'')")

    patch.setattr(changelog, "read_changelog", read)
    patch.setattr(history, "read_changelog", read)
    patch.setattr(attempt, "checkpoint_rows", checkpoint_rows)


def _hold_clock(patch: pytest.MonkeyPatch, seams: Seams) -> None:
    look, expire = versions.Versions.of, maintenance.expire_versions

    def of(spark: Any, table: str) -> versions.Versions:
        seen = look(spark, table)
        shown = {version: seams.clock.shown(at) for version, at in seen.committed.items()}
        return versions.Versions(seen.summaries, seen.parents, shown, seen.refs)

    def expire_versions(spark: Any, table: str, older_than: datetime) -> dict[str, int]:
        real = seams.clock.real(older_than.timestamp())
        return expire(spark, table, datetime.fromtimestamp(real, UTC))

    patch.setattr(steps, "time", SimpleNamespace(time=lambda: seams.clock.time(), monotonic=lambda: 0.0))
    patch.setattr(versions.Versions, "of", staticmethod(of))
    patch.setattr(
        sides,
        "new_side_name",
        lambda table, snapshot_id, now: names.new_side_name(table, snapshot_id, seams.clock.moment()),
    )
    patch.setattr(
        versions, "new_branch_name", lambda snapshot_id, now: names.new_branch_name(snapshot_id, seams.clock.moment())
    )
    patch.setattr(maintenance, "expire_versions", expire_versions)
    # Orphan files are deleted by their age on disk. The model's clock can't change that age.
    patch.setattr(maintenance, "remove_leftovers", lambda spark, table, older_than: {})


def _hold_books(patch: pytest.MonkeyPatch, seams: Seams) -> None:
    def booked(writes: Callable[..., Any]) -> Callable[..., None]:
        def write(*arguments: Any) -> None:
            if seams.booked:
                writes(*arguments)

        return write

    def recorded(spark: Any, processor: str) -> versions.Versions | None:
        return records.recorded_so_far(spark, processor) if seams.booked else None

    patch.setattr(steps, "recorded_so_far", recorded)
    patch.setattr(steps, "create_views", booked(views.create_views))
    for module in (steps, past):
        patch.setattr(module, "record_snapshot", booked(records.record_snapshot))


def _hold_commits(patch: pytest.MonkeyPatch, seams: Seams) -> None:
    sql = SparkSession.sql

    def run(self: Any, query: str, *arguments: Any, **more: Any) -> Any:
        if query.lstrip().upper().startswith(_CHANGING):
            seams.before_commit(query)
        return sql(self, query, *arguments, **more)

    exchange = CatalogPointers.exchange

    def exchanged(self: Any, table: str, seen: str, new: str) -> bool:
        seams.before_commit(f"EXCHANGE {table}")
        return exchange(self, table, seen, new)

    patch.setattr(SparkSession, "sql", run)
    patch.setattr(CatalogPointers, "exchange", exchanged)
    for name in ("append", "overwrite"):
        patch.setattr(DataFrameWriterV2, name, _announced(getattr(DataFrameWriterV2, name), name, seams))


def _announced(write: Callable[..., Any], name: str, seams: Seams) -> Callable[..., Any]:
    def run(self: Any, *arguments: Any) -> Any:
        seams.before_commit(f"{name} {self._jwriter}")
        return write(self, *arguments)

    return run
