"""Every folder and file name that Holdfast writes below its home, each built here and nowhere else.

Invariants:
    - All that a machine's Holdfast makes lies below one home folder, except downloaded jars, which are
      shared by clones and lie in the cache folder of the settings.
    - Nothing here touches the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Paths:
    """Names below one home folder (absolute)."""

    home: Path

    @property
    def kafka(self) -> Path:
        """The embedded broker: its data, configuration, log and address file."""
        return self.home / "kafka"

    @property
    def broker_address(self) -> Path:
        """JSON with the embedded broker's pid and bootstrap address."""
        return self.kafka / "broker.json"

    @property
    def supervisor(self) -> Path:
        """The supervisor's configuration, program files, socket and log."""
        return self.home / "supervisor"

    @property
    def state(self) -> Path:
        """The processors' RocksDB stores: ``<group>/<slot>/<task>``."""
        return self.home / "state"

    @property
    def logs(self) -> Path:
        """One log file for each program."""
        return self.home / "logs"

    @property
    def registry(self) -> Path:
        """The registry's SQLite file, unless the settings name another database."""
        return self.home / "registry.db"

    @property
    def warehouse(self) -> Path:
        """The Iceberg catalog and data files."""
        return self.home / "warehouse"

    @property
    def catalog(self) -> Path:
        """The Iceberg SQL catalog's SQLite file."""
        return self.warehouse / "catalog.db"

    @property
    def spark(self) -> Path:
        """What Spark writes while it runs, and the file that names a warm one."""
        return self.home / "spark"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME: runs, events, schedules."""
        return self.home / "dagster"

    @property
    def run(self) -> Path:
        """Endpoint files of live processes."""
        return self.home / "run"

    def endpoint(self, processor: str, slot: str) -> Path:
        """JSON with pid, url and token of one processor instance (mode 0600)."""
        return self.run / f"{self.program(processor, slot)}.json"

    def program(self, processor: str, slot: str) -> str:
        """The supervisor's program name of one processor instance."""
        return f"{processor}-{slot}"

    def program_log(self, processor: str, slot: str) -> Path:
        """The log file of one processor instance."""
        return self.logs / f"{self.program(processor, slot)}.log"

    @property
    def checkpoint_store(self) -> Path:
        """The checkpoint store, unless the settings name another one."""
        return self.home / "checkpoint-store"

    @property
    def checkpoint_folders(self) -> Path:
        """The RocksDB checkpoints of all processors on this machine."""
        return self.home / "checkpoints"

    def checkpoints(self, processor: str) -> Path:
        """The RocksDB checkpoints of one processor, one folder for each checkpoint id."""
        return self.checkpoint_folders / processor

    @property
    def rehearsals(self) -> Path:
        """Scratch folders of rehearsed restores; empty but for locks when none is under way."""
        return self.home / "rehearsals"

    @property
    def archive(self) -> Path:
        """Copies of what nobody owned, unless the settings name another folder."""
        return self.home / "archive"

    def exports(self, processor: str) -> Path:
        """Files of state that was exported, before it was cleared or for other reasons."""
        return self.home / "exports" / processor

    def releases(self, processor: str) -> Path:
        """The copies of one processor's code as it was deployed, one folder for each release."""
        return self.home / "releases" / processor
