"""Builds the checkpoint keeper of a worker from the settings."""

from __future__ import annotations

from holdfast.infra.clock import Clock
from holdfast.infra.settings import Settings
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.engine.checkpoints.keeper import CheckpointKeeper, CheckpointOptions
from holdfast.processors.engine.checkpoints.ports import Storage
from holdfast.processors.engine.checkpoints.threads import ThreadedWork, random_id
from holdfast.processors.engine.state.database import DatabaseFiles, Databases
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.topology import Topology


def open_keeper(
    databases: Databases,
    settings: Settings,
    storage: Storage | None,
    folder: StateFolder,
    clock: Clock,
    topology: Topology,
) -> CheckpointKeeper | None:
    """The worker's checkpoint keeper; None if checkpoints are off, or without changelogs, or without database files.

    Args:
        databases: The worker's databases.
        settings: Interval and address of the checkpoint store.
        storage: The store to use instead of that of the settings; None for the settings.
        folder: The worker's state folder.
        clock: The worker's time.
        topology: The processor.

    Raises:
        StorageUnusable: No driver is installed for the store of the settings.
    """
    chosen = settings.checkpoints
    if not chosen.enabled or not topology.changelogs or not isinstance(databases, DatabaseFiles):
        return None
    if storage is None:
        objects = FsspecObjects(settings.checkpoint_store, chosen.options)
        storage = Storage(objects, ThreadedWork(), random_id)
    options = CheckpointOptions(chosen.every_s, chosen.stop_wait_s)
    return CheckpointKeeper(storage, databases, folder, clock, options, topology.code_version)
