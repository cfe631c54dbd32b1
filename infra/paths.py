"""Every folder and file name below the home folder; no other module builds such a name.

Invariants:
    - Holdfast writes below the home folder only. The one exception is the cache of jars, which clones share.
    - Nothing here touches the disk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: Files and folders directly in a home folder, including SQLite's journals and lock files of the registry.
_OWN = re.compile(
    r"kafka|supervisor|state|logs|warehouse|spark|dagster|run|checkpoint-store|checkpoints|rehearsals|archive|exports"
    r"|releases|made-by-demo|project\.json|\.?registry\.db.*"
)


@dataclass(frozen=True, slots=True)
class Paths:
    """Names below one home folder, which is an absolute path."""

    home: Path

    def is_own(self, name: str) -> bool:
        """Whether Holdfast writes a file or folder of this name directly into a home folder."""
        return _OWN.fullmatch(name) is not None

    @property
    def proofs(self) -> tuple[Path, ...]:
        """Files that prove, by the existence of one of them, that Holdfast has used the home folder."""
        return self.registry, self.supervisor / "supervisord.conf", self.dagster / "dagster.yaml"

    @property
    def project_note(self) -> Path:
        """JSON file with the project that has this home."""
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
        """The key of the digests of recorded secrets (mode 0600)."""
        return self.supervisor / "settings.key"

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
        """Folder of the Iceberg catalog and the data files, unless the settings name other places."""
        return self.home / "warehouse"

    @property
    def catalog(self) -> Path:
        """The Iceberg SQL catalog's SQLite file."""
        return self.warehouse / "catalog.db"

    @property
    def spark(self) -> Path:
        """Folder of Spark's temporary files, and of the file that names the warm Spark."""
        return self.home / "spark"

    @property
    def dagster(self) -> Path:
        """``DAGSTER_HOME``: runs, events, schedules."""
        return self.home / "dagster"

    @property
    def run(self) -> Path:
        """Endpoint files of live processes."""
        return self.home / "run"

    def workers_change(self, processor: str) -> Path:
        """The file of the change of a processor's workers in progress (``infra.deploy.workers_change_file``)."""
        return self.run / f"{processor}.workers.json"

    def endpoint(self, processor: str, slot: str) -> Path:
        """JSON file with process id, URL and token of one processor instance (mode 0600)."""
        return self.run / f"{self.program(processor, slot)}.json"

    def program(self, processor: str, slot: str) -> str:
        """The supervisor's program name for one processor instance."""
        return f"{processor}-{slot}"

    def program_log(self, processor: str, slot: str) -> Path:
        """The log file of one processor instance."""
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
        """The local RocksDB checkpoints of one processor, one folder for each checkpoint id."""
        return self.checkpoint_folders / processor

    @property
    def rehearsals(self) -> Path:
        """Scratch folders of rehearsed restores; holds only lock files while no rehearsal runs."""
        return self.home / "rehearsals"

    @property
    def archive(self) -> Path:
        """Archive of deleted orphans, unless the settings name another folder."""
        return self.home / "archive"

    @property
    def all_exports(self) -> Path:
        """Exported state of all processors."""
        return self.home / "exports"

    def exports(self, processor: str) -> Path:
        """Exported state of one processor; a clear writes the export before it deletes."""
        return self.all_exports / processor

    @property
    def all_releases(self) -> Path:
        """Folder of the releases of all processors."""
        return self.home / "releases"

    def releases(self, processor: str) -> Path:
        """Copies of one processor's deployed code, one folder for each release."""
        return self.all_releases / processor

    def deployment_mark(self, processor: str) -> Path:
        """JSON file with the newest generation of one processor's deployment."""
        return self.releases(processor) / "deployment.json"
