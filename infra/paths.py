"""The paths of all files and folders in the home folder. No other module builds such a path.

Invariants:
    - Holdfast writes only to the home folder. The only exception is the cache of jars, which several checkouts share.
    - This module never reads or writes the disk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: Matches the names of the files and folders that Holdfast creates directly in a home folder. These include the
#: journals and lock files of the registry's SQLite database.
_OWN = re.compile(
    r"kafka|supervisor|state|logs|warehouse|spark|dagster|run|checkpoint-store|checkpoints|rehearsals|archive|exports"
    r"|releases|made-by-demo|project\.json|\.?registry\.db.*"
)


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths in one home folder; ``home`` is an absolute path."""

    home: Path

    def is_own(self, name: str) -> bool:
        """Whether Holdfast may create a file or folder with this name directly in a home folder."""
        return _OWN.fullmatch(name) is not None

    @property
    def proofs(self) -> tuple[Path, ...]:
        """Files that prove the use of a home folder, because at least one of them exists after Holdfast has used it."""
        return self.registry, self.supervisor / "supervisord.conf", self.dagster / "dagster.yaml"

    @property
    def project_note(self) -> Path:
        """JSON file that names the folder of the project that owns this home."""
        return self.home / "project.json"

    @property
    def kafka(self) -> Path:
        """Folder of the embedded broker: data, configuration, log and address file."""
        return self.home / "kafka"

    @property
    def broker_address(self) -> Path:
        """JSON file with the embedded broker's process id and bootstrap address."""
        return self.kafka / "broker.json"

    @property
    def supervisor(self) -> Path:
        """Folder of the supervisor: configuration, program files, socket and log."""
        return self.home / "supervisor"

    @property
    def settings_key(self) -> Path:
        """File with the key that is used to hash recorded secret settings (mode 0600)."""
        return self.supervisor / "settings.key"

    @property
    def state(self) -> Path:
        """Folder of the processors' RocksDB stores, as ``<group>/<slot>/<task>`` (slot: number of the worker)."""
        return self.home / "state"

    @property
    def logs(self) -> Path:
        """Folder with one log file for each program."""
        return self.home / "logs"

    @property
    def registry(self) -> Path:
        """The registry's SQLite file, unless the settings name another database."""
        return self.home / "registry.db"

    @property
    def warehouse(self) -> Path:
        """Folder of the Iceberg catalog and the data files, unless the settings name other places."""
        return self.home / "warehouse"

    @property
    def catalog(self) -> Path:
        """The SQLite file with the Iceberg catalog, unless the settings name another catalog."""
        return self.warehouse / "catalog.db"

    @property
    def spark(self) -> Path:
        """Folder of Spark's temporary files, and of the file with the address of the Spark server that stays up."""
        return self.home / "spark"

    @property
    def dagster(self) -> Path:
        """Folder that is ``DAGSTER_HOME``: Dagster's runs, events and schedules."""
        return self.home / "dagster"

    @property
    def run(self) -> Path:
        """Folder with the endpoint files (address and process id) of live processes."""
        return self.home / "run"

    def workers_change(self, processor: str) -> Path:
        """File that announces a change of a processor's number of workers (``infra.deploy.workers_change_file``)."""
        return self.run / f"{processor}.workers.json"

    def endpoint(self, processor: str, slot: str) -> Path:
        """JSON file with process id, URL and token of one worker of the processor (mode 0600)."""
        return self.run / f"{self.program(processor, slot)}.json"

    def program(self, processor: str, slot: str) -> str:
        """The name of the supervisor's program for one worker, for example ``fleet-0`` for slot 0 of ``fleet``."""
        return f"{processor}-{slot}"

    def program_log(self, processor: str, slot: str) -> Path:
        """The log file of the worker that runs in this slot (numbered place of a worker) of the processor."""
        return self.logs / f"{self.program(processor, slot)}.log"

    @property
    def checkpoint_store(self) -> Path:
        """Folder of the checkpoint store, unless the settings name another store."""
        return self.home / "checkpoint-store"

    @property
    def checkpoint_folders(self) -> Path:
        """Folder of the local RocksDB checkpoints of all processors."""
        return self.home / "checkpoints"

    def checkpoints(self, processor: str) -> Path:
        """Folder of the local RocksDB checkpoints of one processor; it has a subfolder for each checkpoint id."""
        return self.checkpoint_folders / processor

    @property
    def rehearsals(self) -> Path:
        """Folder for the scratch folders of rehearsals (test restores); between rehearsals it has only lock files."""
        return self.home / "rehearsals"

    @property
    def archive(self) -> Path:
        """Folder with copies of deleted orphans (resources without an owner), unless the settings name another."""
        return self.home / "archive"

    @property
    def all_exports(self) -> Path:
        """Folder with the export files (stored keys and values as JSON lines) of all processors."""
        return self.home / "exports"

    def exports(self, processor: str) -> Path:
        """Folder with the export files of one processor; the verb ``clear`` exports keys before it deletes them."""
        return self.all_exports / processor

    @property
    def all_releases(self) -> Path:
        """Folder with the releases (copies of deployed code) of all processors."""
        return self.home / "releases"

    def releases(self, processor: str) -> Path:
        """Folder with copies of one processor's deployed code; it has a subfolder for each release."""
        return self.all_releases / processor

    def deployment_mark(self, processor: str) -> Path:
        """JSON file with a copy of the registry's row about the processor's deployment (``infra.deploy.marks``)."""
        return self.releases(processor) / "deployment.json"
