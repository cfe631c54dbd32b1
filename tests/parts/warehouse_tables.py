"""Writes snapshots of stores, and other Iceberg tables, without a JVM.

A snapshot of a store is a version of an Iceberg table. It has the store's rows, and Holdfast's manifest: JSON with
offsets and fingerprints, in the summary of the Iceberg snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, NestedField

from holdfast.infra.paths import Paths
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.processors.audits.stores import store_partitions
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.snapshots.manifest import (
    CHECKPOINT,
    ID_PROPERTY,
    MANIFEST_PROPERTY,
    PartitionManifest,
    SnapshotManifest,
)
from holdfast.processors.snapshots.names import snapshot_tag, table_name

_SCHEMA = Schema(
    NestedField(1, "store_partition", IntegerType(), required=False),
    NestedField(2, "key", BinaryType(), required=False),
    NestedField(3, "value", BinaryType(), required=False),
)
_BY_PARTITION = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "store_partition"))


def catalog_of(paths: Paths) -> Any:
    """The Iceberg catalog of a home folder; it is created if absent."""
    paths.warehouse.mkdir(parents=True, exist_ok=True)
    return open_catalog(paths)


def take_snapshot(
    paths: Paths,
    manifests: list[dict[str, Any]],
    processor: str,
    store: str,
    *,
    changed: Callable[[SnapshotManifest], SnapshotManifest] = lambda manifest: manifest,
    raw: str | None = None,
) -> SnapshotManifest:
    """Publish the content of a store's checkpoints as a new version of the store's table, tagged ``snap-<id>``.

    Args:
        paths: The home folder.
        manifests: The manifests (descriptions) of the checkpoints, as ``ProcessorClient.checkpoint`` returns them.
        processor: The processor's name.
        store: The store's name.
        changed: A function that changes the correct manifest of the snapshot before it is published.
        raw: A text to publish in place of the snapshot's manifest; None publishes the manifest.
    """
    found = store_partitions(manifests, store)
    tasks = {task["partition"]: task for each in manifests for task in each["tasks"] if store in task["stores"]}
    held = {part.partition: dict(iterate_checkpoint(Path(part.path), store)) for part in found}
    snapshot_id = f"{int(time.time() * 1e6):x}"
    manifest = changed(
        SnapshotManifest(
            snapshot_id=snapshot_id,
            processor=processor,
            store=store,
            table=table_name(processor, store),
            source=CHECKPOINT,
            base=None,
            why="a test asked for it",
            taken_at=manifests[0]["taken_at"],
            code_version="of a test",
            state_format=STATE_FORMAT,
            schema_version=1,
            topic=found[0].changelog,
            generation=1,
            covers_from=0.0,
            partitions=tuple(
                PartitionManifest(
                    partition=part.partition,
                    topic_id=part.topic_id,
                    log_start=0,
                    start=part.offset,
                    end=part.offset,
                    records=0,
                    tombstones=0,
                    live_keys=len(held[part.partition]),
                    fingerprint=fingerprint_of(held[part.partition].items()),
                    inputs=tasks[part.partition]["inputs"],
                    sources=tasks[part.partition]["sources"],
                )
                for part in found
            ),
        )
    )
    rows = [(number, key, value) for number, each in held.items() for key, value in each.items()]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    types = (pa.int32(), pa.binary(), pa.binary())
    shaped = zip(_SCHEMA.column_names, columns, types, strict=True)
    arrow = pa.table({name: pa.array(column, kind) for name, column, kind in shaped})
    table = _table(paths, processor, store)
    summary = {ID_PROPERTY: snapshot_id, MANIFEST_PROPERTY: manifest.encode() if raw is None else raw}
    table.overwrite(arrow, snapshot_properties=summary)
    table.refresh()
    version = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(version, snapshot_tag(snapshot_id)).commit()
    return manifest


def write_table(paths: Paths, name: str, columns: Mapping[str, list[Any]]) -> None:
    """Write a table of the catalog. Its former content is replaced."""
    namespace, table = name.split(".")
    catalog, arrow = catalog_of(paths), pa.table(dict(columns))
    catalog.create_namespace_if_not_exists(namespace)
    catalog.create_table_if_not_exists((namespace, table), schema=arrow.schema).overwrite(arrow)


def _table(paths: Paths, processor: str, store: str) -> Any:
    catalog = catalog_of(paths)
    namespace, name = table_name(processor, store).split(".")[1:]
    catalog.create_namespace_if_not_exists(namespace)
    return catalog.create_table_if_not_exists((namespace, name), schema=_SCHEMA, partition_spec=_BY_PARTITION)
