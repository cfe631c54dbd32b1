"""The checkpoints of a worker as the settings want them."""

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
    """What takes a worker's checkpoints; None where there are none: switched off, no changelogs, or no files to copy.

    Args:
        databases: Where state lives.
        settings: Whether, how often, and where to.
        storage: Where to instead; None for what the settings say.
        folder: The worker's state folder.
        clock: The worker's time.
        topology: What it runs.

    Raises:
        StorageUnusable: The settings name a store that there is no driver for.
    """
    chosen = settings.checkpoints
    if not chosen.enabled or not topology.changelogs or not isinstance(databases, DatabaseFiles):
        return None
    if storage is None:
        objects = FsspecObjects(settings.checkpoint_store, chosen.options)
        storage = Storage(objects, ThreadedWork(), random_id)
    options = CheckpointOptions(chosen.every_s, chosen.stop_wait_s)
    return CheckpointKeeper(storage, databases, folder, clock, options, topology.code_version)
