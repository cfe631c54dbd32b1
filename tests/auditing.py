"""Helpers for tests of audits.

The helpers plant wrong, missing, extra and duplicate key-value pairs in a store, its changelog or its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from confluent_kafka import Producer
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, NestedField

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.processors.audits.stores import StorePartition, store_partitions
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.snapshots.manifest import ID_PROPERTY, MANIFEST_PROPERTY, PartitionManifest, SnapshotManifest
from holdfast.processors.snapshots.names import table_name
from tests.oracles.fold import fold_changelog
from tests.parts.operated import Operated

STORE = "counts"
Pairs = list[tuple[int, bytes, bytes]]


def changelog_key(name: str) -> bytes:
    return key_prefix(name.encode()) + b"n"


def stored(number: int) -> bytes:
    return encode_value(number, 1_357_034_400_000)


def placed(operated: Operated) -> list[StorePartition]:
    """Take a checkpoint. Return the store's partitions, each with the changelog offset that its checkpoint covers."""
    return store_partitions([operated.client.checkpoint()], STORE)


def folded(operated: Operated, parts: Iterable[StorePartition]) -> Pairs:
    """Return the live key-value pairs that the store's changelog has below the given offset of each partition."""
    found: Pairs = []
    for part in parts:
        records = read_range(operated.topics.bootstrap, part.changelog, part.partition, 0, part.offset)
        found += [(part.partition, key, value) for key, value in fold_changelog(records).items()]
    return found


def manifest_of(group: str, parts: Iterable[StorePartition], pairs: Pairs) -> SnapshotManifest:
    """Return the manifest (Holdfast's description) of an Iceberg snapshot with these key-value pairs of the store.

    Each partition ends at the changelog offset that it has in the store.
    """
    described = []
    for part in parts:
        print_ = fingerprint_of((key, value) for number, key, value in pairs if number == part.partition)
        described.append(
            PartitionManifest(part.partition, part.topic_id, 0, 0, part.offset, 0, 0, print_.count, print_, {})
        )
    topic = f"{group}-{STORE}-changelog"
    return SnapshotManifest(
        snapshot_id="1234abcd",
        processor=group,
        store=STORE,
        table=table_name(group, STORE),
        source="checkpoint",
        base=None,
        why="a test",
        taken_at=1.0,
        code_version="v",
        state_format="1.1.1",
        schema_version=1,
        topic=topic,
        generation=1,
        partitions=tuple(described),
        covers_from=1.0,
    )


def publish(settings: Settings, group: str, pairs: Pairs, manifest: SnapshotManifest | None) -> None:
    """Write pairs to a store's Iceberg table.

    With Holdfast's manifest, the write looks like a snapshot that Holdfast made. Without a manifest, it looks like a
    write of another program.
    """
    settings.paths.warehouse.mkdir(parents=True, exist_ok=True)
    catalog = open_catalog(settings.paths)
    schema = Schema(
        NestedField(1, "store_partition", IntegerType()),
        NestedField(2, "key", BinaryType()),
        NestedField(3, "value", BinaryType()),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "store_partition"))
    catalog.create_namespace_if_not_exists(group)
    table = catalog.create_table_if_not_exists((group, STORE), schema, partition_spec=spec)
    columns = list(zip(*pairs, strict=True)) or [(), (), ()]
    kinds = (pa.int32(), pa.binary(), pa.binary())
    names = ("store_partition", "key", "value")
    arrow = pa.table({name: pa.array(column, kind) for name, column, kind in zip(names, columns, kinds, strict=True)})
    said = {} if manifest is None else {ID_PROPERTY: manifest.snapshot_id, MANIFEST_PROPERTY: manifest.encode()}
    write = table.append if table.current_snapshot() is None else table.overwrite
    write(arrow, snapshot_properties=said)


def plant_in_store(operated: Operated, wrong: Mapping[str, int | None], partition_of: Mapping[str, int]) -> None:
    """Write wrong values to local state while no worker has it open. The value None deletes a key."""
    databases = RocksDatabases()
    for name, number in wrong.items():
        (path,) = operated.settings.paths.state.glob(f"{operated.group}/*/*{partition_of[name]}")
        database = databases.open(path)
        value = None if number is None else stored(number)
        database.write([(store_prefix(STORE) + changelog_key(name), value)])
        database.flush()
        database.close()


def plant_in_changelog(operated: Operated, wrong: Mapping[str, int | None], partition_of: Mapping[str, int]) -> None:
    """Write wrong values to the changelog with a producer that is not the store's worker.

    The value None deletes a key.
    """
    producer = Producer({"bootstrap.servers": operated.topics.bootstrap})
    for name, number in wrong.items():
        value = None if number is None else stored(number)
        producer.produce(operated.changelog, value, changelog_key(name), partition_of[name])
    assert producer.flush(30) == 0
