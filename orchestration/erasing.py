"""Opens all places of this installation that may have copies of a key, for the verb ``erase``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import ClientConfig, Partition, Record
from holdfast.infra.kafka.topics.reader import read_range, read_range_for_proof
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.application.registration import find_processor
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.erasing import Checkpoints, Erasing, Places, Run
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet
from holdfast.processors.lifecycle.erasure.local_copies import StateFolders
from holdfast.processors.lifecycle.erasure.returned import entries_again
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.plans import holding
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys
from holdfast.processors.lifecycle.world.running_owners import RunningOwners

#: The state folder, slots and clients of a processor, and the partition counts of its inputs.
Machine = tuple[
    Callable[[str], Path],
    Callable[[str], tuple[str, ...]],
    Callable[[str, str], ProcessorClient],
    Callable[[str], dict[str, int]],
]


def erasing_of(  # tidy: allow-wide because each parameter is a part of the installation that the verbs have open
    settings: Settings,
    registry: Registry,
    topics: Topics,
    owners: RunningOwners,
    hold: holding.Hold,
    machine: Machine,
    clock: Callable[[], datetime],
) -> Erasing:
    """The executor of an erasure's stages. Before each change, it checks that this process still holds the apply."""
    state_dir, slots, client, widths = machine

    def topology(processor: str) -> Topology:
        return find_processor(settings, processor).topology

    def tasks(processor: str) -> dict[str, int]:
        counts, known = widths(processor), topology(processor)
        return {sub.task(n): n for sub in known.subtopologies if sub.stores for n in range(sub.width(counts))}

    def take_checkpoints(processor: str) -> None:
        hold.check()
        for slot in slots(processor):
            client(processor, slot).checkpoint()

    store = partial(_checkpoint_store, settings) if settings.checkpoints.enabled else None
    return Erasing(
        Places(
            registry=registry,
            topics=topics,
            owners=owners,
            topology=topology,
            cluster=lambda processor: find_processor(settings, processor).application.cluster(settings),
            local=lambda processor: StateFolders(state_dir(processor), processor, tasks(processor)),
            tasks=tasks,
            checkpoints=Checkpoints(take_checkpoints, store, RocksDatabases()),
            table=partial(erase_from_tables, settings, registry, topics, hold.check),
            archive=Archive(settings.archive_folder),
            paths=settings.paths,
            read_all=partial(_read_all, topics),
            read=partial(_read_committed, topics),
            run=Run(lambda: hold.step, hold.check, clock),
        )
    )


def _checkpoint_store(settings: Settings) -> FsspecObjects:
    return FsspecObjects(settings.checkpoint_store, settings.checkpoints.options)


def _read_all(topics: Topics, topic: str, number: int, start: int, end: int) -> Iterator[Record]:
    return read_range(topics.bootstrap, topic, number, start, end, committed=False, extra_config=topics.client_config)


def _read_committed(topics: Topics, place: Partition, start: int, end: int) -> Iterator[Record]:
    return read_range_for_proof(topics.bootstrap, *place, start, end, extra_config=topics.client_config)


def erase_from_tables(
    settings: Settings,
    registry: Registry,
    topics: Topics,
    check: Callable[[], None],
    place: tuple[str, str],
    key: str,
    ends: Mapping[int, int],
) -> Found:
    """Erase a key in the tables of a store (processor, store), with all versions that have it.

    If the newest snapshot is from before the deletes, another one is published first, so that no later snapshot copies
    the key's records from the changelog. Spark starts only if a table exists.

    Raises:
        NotYetGone: No snapshot after the deletes could be published, or a file still has the key.
        HoldfastError: Spark, the catalog or the storage failed.
    """
    from holdfast.infra.warehouse.stored_tables import table_names
    from holdfast.processors.snapshots.names import tables_of

    processor, store = place
    there = set(table_names(settings))
    names = [name for name in tables_of(processor, store) if name.partition(".")[2] in there]
    if not names:
        return Found("absent", f"the warehouse has no table of {store}")
    # Imported late, because these modules load Spark.
    from holdfast.assets.spark.erasing import erase_in_tables, newest_ends
    from holdfast.infra.spark.session import spark_session, stop_spark

    spark = spark_session(settings, app_name=f"erase a key of {processor}")
    try:
        for attempt in range(2):
            newest = newest_ends(spark, processor, store)
            if newest is not None and all(newest.get(number, 0) >= end for number, end in ends.items()):
                break
            if attempt:
                raise not_yet(
                    names[0],
                    f"The newest snapshot of {names[0]} is from before the deletes",
                    f"Publish one: `holdfast snapshot {processor} --store {store} --start`.",
                )
            publish(settings, registry, topics, spark, (processor, store))
        check()
        entries = KeyEntries(key)
        done = erase_in_tables(spark, processor, store, entries, ends, partial(files_with_key, settings, entries, ends))
    finally:
        stop_spark(spark)
    read = "all Parquet files in storage were read as they are, and none has the key"
    if not (done.rows or done.files):
        return Found("absent", f"{done.tables} tables: {read}")
    return Found(
        "gone",
        f"{done.rows} rows of history and quarantine deleted, {done.files} files with the key rewritten or deleted, "
        f"{done.versions} versions and {done.tags} tags with the key expired; then {read}",
    )


def files_with_key(settings: Settings, entries: KeyEntries, ends: Mapping[int, int], table: str) -> frozenset[str]:
    """The names of the Parquet files in a table's folder that have rows of the key from before the deletes."""
    from holdfast.assets.spark.erasing import key_ranges
    from holdfast.infra.warehouse.catalog import load_table
    from holdfast.infra.warehouse.table_files import rows_in_files

    _, namespace, name = table.split(".")
    location = load_table(settings, namespace, name).location()
    columns = ("key", "store_partition", "offset", "op")
    return frozenset(
        file
        for file, rows in rows_in_files(settings, location, key_ranges(entries), columns)
        if any(entries.has(row["key"]) and not _is_later(row, ends) for row in rows)
    )


def _is_later(row: Mapping[str, Any], ends: Mapping[int, int]) -> bool:
    """Whether a row is of a later message. Rows of a full snapshot have no offset of their own, and count as before."""
    offset, end = row.get("offset"), ends.get(row.get("store_partition", -1))
    return offset is not None and end is not None and row.get("op") not in ("base", "base_delete") and offset >= end


def publish(settings: Settings, registry: Registry, topics: Topics, spark: Any, place: tuple[str, str]) -> None:
    """Publish a snapshot of a store, as its asset does."""
    from holdfast.assets.publishing import StorePublisher
    from holdfast.assets.times import current_key, snapshot_partitions, windows
    from holdfast.processors.snapshots.plan import Wanted

    processor, store = place
    ports: Any = _Ports(topics.bootstrap, topics.client_config, topics, spark, registry)
    definition = find_processor(settings, processor)
    publisher = StorePublisher(definition, store, ports, settings.paths, ports, lambda text: None)
    partitions = snapshot_partitions(settings.snapshots)
    now = windows(partitions, [current_key(partitions)])
    publisher.publish(now, Wanted.AUTO, settings.snapshots.full_every_hours * 3600.0)


@dataclass(frozen=True)
class _Ports:
    """Kafka, Spark and the registry, as the protocols ``assets.ports.Cluster`` and ``Warehouse`` have them."""

    bootstrap: str
    client_config: ClientConfig
    of: Topics
    session: Any
    registry: Registry

    def topics(self) -> Topics:
        """The client that describes topics."""
        return self.of


def state_again(settings: Settings, registry: Registry, processor: str) -> dict[str, int]:
    """Mark of an erased key -> number of its entries in the state of the running workers; absent without entries.

    Each worker copies its state to a local checkpoint, of which all entries are read.

    Raises:
        ProcessorSilent: A worker does not answer.
        NotYetGone: The processor does not run, so its state can't be read.
    """
    known = ErasedKeys.of(registry, settings.paths, processor)
    if not known.times:
        return {}
    deployment = registry.deployment(processor)
    slots = () if deployment is None or deployment.desired == "stopped" else deployment.slots
    if not slots:
        raise not_yet(processor, f"{processor} does not run", f"Start it: `holdfast deploy {processor}`.")
    return entries_again(known, (ProcessorClient(processor, slot, settings.paths).checkpoint() for slot in slots))
