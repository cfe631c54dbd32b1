"""Compares the rows of a table version with counts that DuckDB computes from the source topic.

A version is a published snapshot of the store, as an Iceberg snapshot of its table. The source topic is read up to the
input offsets of the version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.snapshots.manifest import SnapshotManifest
from tests.spark.endurance.definition import PARTITIONS
from tests.spark.endurance.lives import Floors

_RECORDS = pa.schema(
    [
        ("part", pa.int32()),
        ("pos", pa.int64()),
        ("key", pa.string()),
        ("id", pa.int64()),
        ("amount", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
#: SQL: the expected rows of a table version. For each key, it sums the input records from the key's floor (the input
#: offset from which records count) to the version's input offset. A key that has no own floor has the floor of its
#: partition.
_FOLD = """
WITH counted AS (
    SELECT r.* FROM source r JOIN ends e USING (part) LEFT JOIN floors f USING (part, key)
    WHERE r.pos < e.upto AND r.pos >= coalesce(f.since, e.since)
), given_up AS (SELECT part, key, max(pos) FILTER (WHERE gone) AS since FROM counted GROUP BY ALL)
SELECT part, key, count(*) AS n, sum(amount)::BIGINT AS total, arg_max(id, pos) AS last
FROM counted JOIN given_up g USING (part, key) WHERE pos > coalesce(g.since, -1) GROUP BY ALL
"""


class Oracle:
    """The records of the source topic in DuckDB. They are read only as far as a comparison needs them."""

    def __init__(self, topics: Topics, source: str) -> None:
        self._topics, self._source = topics, source
        self._duck = duckdb.connect()
        self._duck.execute("SET threads = 1")
        self._duck.register("empty", _RECORDS.empty_table())
        self._duck.execute("CREATE TABLE source AS SELECT * FROM empty")
        self._read = dict.fromkeys(range(PARTITIONS), 0)

    @property
    def records(self) -> int:
        """The number of records that were read."""
        return sum(self._read.values())

    def differences(self, manifest: SnapshotManifest, floors: dict[int, Floors], table: Any) -> list[Any]:
        """Return the first few rows that only DuckDB's result or only the table has. Empty if they agree."""
        ends = {part.partition: part.inputs.get(self._source, 0) for part in manifest.partitions}
        self._read_up_to(ends)
        vectors = [(number, end, floors[number].others) for number, end in ends.items()]
        since = [(number, key, at) for number, each in floors.items() for key, at in each.keys.items()]
        self._duck.register("ends", _table(("part", "upto", "since"), vectors))
        self._duck.register("floors", _table(("part", "key", "since"), since or [(-1, "", 0)]))
        self._duck.register("held", _held(table))
        columns = "part, key, n, total, last"
        found = self._duck.execute(
            f"WITH fold AS ({_FOLD}) "
            f"SELECT 'expected' AS side, * FROM (SELECT {columns} FROM fold EXCEPT ALL SELECT {columns} FROM held) "
            f"UNION ALL SELECT 'found', * FROM (SELECT {columns} FROM held EXCEPT ALL SELECT {columns} FROM fold) "
            "ORDER BY part, key, side LIMIT 8"
        )
        return found.fetchall()

    def _read_up_to(self, ends: dict[int, int]) -> None:
        for number, end in ends.items():
            start = self._read[number]
            if start >= end:
                continue
            rows = []
            for record in read_range(self._topics.bootstrap, self._source, number, start, end):
                value = msgspec.json.decode(record.value or b"{}")
                key = (record.key or b"").decode()
                rows.append((number, record.offset, key, value["id"], value["amount"], value["gone"]))
            assert len(rows) == end - start, "the source has lost records"
            self.put(rows)
            self._read[number] = end

    def put(self, rows: Sequence[tuple[int, int, str, int, int, bool]]) -> None:
        """Add records as (partition, offset, key, id, amount, whether the record resets its key)."""
        columns = map(pa.array, zip(*rows, strict=True), _RECORDS.types)
        self._duck.register("more", pa.table(list(columns), schema=_RECORDS))
        self._duck.execute("INSERT INTO source SELECT * FROM more")


def _held(table: Any) -> Any:
    """Return the rows of a version. Asserts that the typed columns equal the JSON column."""
    wanted = ("store_partition", "message_key", "n", "total", "last")
    for text, *typed in zip(*(table[name].to_pylist() for name in ("json", "n", "total", "last")), strict=True):
        assert json.loads(text) == dict(zip(("n", "total", "last"), typed, strict=True)), f"{text} is typed as {typed}"
    return table.select(wanted).rename_columns(["part", "key", "n", "total", "last"])


def _table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
