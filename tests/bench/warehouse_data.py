"""One store in three copies, for benches of the warehouse: RocksDB checkpoints, a changelog, and a table.

Values are JSON of about 95 bytes, with the header of stored values. The changelog has one record of each key, and an
older record of every tenth key. So it resembles a changelog that is compacted regularly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, NestedField

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.processors.audits.comparison import Place
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta, encode_value, key_prefix
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from tests.bench.seeding import _KEPT, fill

PARTITIONS = 4
STORE, NAMESPACE = "totals", "bench"
#: One in this many keys has two records in the changelog.
TWICE_EVERY = 10
FIRST_MS = 1_357_034_400_000
_ROWS_AT_ONCE = 10_000
AIRPORTS = ("JFK", "EWR", "LGA", "SFO", "ORD")


def value_of(number: int, version: int = 1) -> bytes:
    """Return the stored value of a key. ``version`` is 1 at first; another number gives another value."""
    return encode_value(
        {
            "count": number % 977 + version,
            "total": number * 0.25,
            "origin": AIRPORTS[number % 5],
            "carrier": "UA",
            "tail": f"N{number % 99_999:05d}",
            "late": number % 3 == 0,
        },
        FIRST_MS + number,
    )


def key_of(number: int) -> bytes:
    """The changelog key of the message key with this number."""
    return key_prefix(b"user-%08d" % number) + b"sum"


@dataclass(frozen=True)
class Data:
    """The data of a store with this number of keys. The data is the same each time."""

    keys: int
    folder: Path

    def pairs(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """The pairs in one partition of the store."""
        return ((key_of(number), value_of(number)) for number in range(partition, self.keys, PARTITIONS))

    @cached_property
    def expected(self) -> dict[int, Fingerprint]:
        """The expected fingerprint of each partition, which every copy must have."""
        return {number: fingerprint_of(self.pairs(number)) for number in range(PARTITIONS)}

    def write_changelog(self, topics: Topics, topic: str) -> dict[int, int]:
        """Create and fill the changelog. Returns its end offsets."""
        topics.create(TopicSpec(topic, PARTITIONS, 1, {**_KEPT, "compression.type": "lz4"}))
        meta = ChangelogMeta({"in": 1}, 1, "bench").encode()
        older = (
            (topic, number % PARTITIONS, key_of(number), value_of(number, 0), None)
            for number in range(0, self.keys, TWICE_EVERY)
        )
        newest = (
            (topic, number, key, value, None) for number in range(PARTITIONS) for key, value in self.pairs(number)
        )
        ends = ((topic, number, META_KEY, meta, None) for number in range(PARTITIONS))
        for rows in (older, newest, ends):
            fill(topics.bootstrap, rows)
        return topics.settled_end_offsets(topic)

    def write_checkpoints(self, places: dict[int, Place]) -> dict[int, Path]:
        """Write RocksDB folders like an owner's checkpoints. Returns their paths by partition."""
        databases, prefix, found = RocksDatabases(), store_prefix(STORE), {}
        for number, place in places.items():
            at = StoreOffset("changelog", place.topic_id, place.offset, {})
            database, path = databases.open(self.folder / f"live-{number}"), self.folder / f"checkpoint-{number}"
            rest = self.pairs(number)
            while batch := list(islice(rest, _ROWS_AT_ONCE)):
                database.write([(prefix + key, value) for key, value in batch])
            database.write([(META_KEY, TaskMeta(stores={STORE: at}).encode())])
            database.checkpoint(path)
            database.close()
            found[number] = path
        return found

    def write_table(self, settings: Settings) -> None:
        """Write the table, in Iceberg v2, with one file for each partition."""
        settings.paths.warehouse.mkdir(parents=True, exist_ok=True)
        catalog = open_catalog(settings.paths)
        schema = Schema(
            NestedField(1, "store_partition", IntegerType()),
            NestedField(2, "key", BinaryType()),
            NestedField(3, "value", BinaryType()),
        )
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "store_partition"))
        catalog.create_namespace_if_not_exists(NAMESPACE)
        table = catalog.create_table_if_not_exists((NAMESPACE, STORE), schema, partition_spec=spec)
        for number in range(PARTITIONS):
            keys, values = zip(*self.pairs(number), strict=True)
            column = pa.array([number] * len(keys), pa.int32())
            binary = (pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
            table.append(pa.table({"store_partition": column, "key": binary[0], "value": binary[1]}))
