"""The manifest of a checkpoint, and all object names of a checkpoint store.

    <processor>/<task>/manifests/<generation>-<upload>.json     written last; it completes the checkpoint
    <processor>/<task>/files/<upload>/<file of the database>    written once, shared by later manifests
    <processor>/<task>/uploads/<holder>.<upload>                 a mark, present while an upload runs

Invariants:
    - Names are unique to an upload: no upload replaces an object of another one.
    - A manifest names only objects that were complete before it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.processors.engine.changelog.format import KEY_VERSION, VALUE_VERSION, FormatUnknown
from holdfast.processors.engine.state.task_store import META_VERSION, StoreOffset, TaskMeta

MANIFEST_VERSION = 1
#: The format versions inside of the database: changelog key, value and offsets.
STATE_FORMAT = f"{KEY_VERSION}.{VALUE_VERSION}.{META_VERSION}"
_GENERATION_DIGITS = 12


class ManifestDamaged(Exception):
    """The bytes are no manifest."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of the database: its object, its size in bytes, and its SHA-256 as hex."""

    name: str
    object: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint.

    ``meta`` holds the same offsets as the database itself. ``created_at`` is the time of the checkpoint, in wall-clock
    seconds since 1970.
    """

    checkpoint_id: str
    processor: str
    task: str
    partition: int
    code_version: str
    database: str
    state_format: str
    created_at: float
    meta: TaskMeta
    files: tuple[CheckpointFile, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """The manifest as JSON."""
        meta = self.meta
        return json.dumps(
            {
                "version": MANIFEST_VERSION,
                "checkpoint_id": self.checkpoint_id,
                "processor": self.processor,
                "task": self.task,
                "partition": self.partition,
                "code_version": self.code_version,
                "database": self.database,
                "state_format": self.state_format,
                "created_at": self.created_at,
                "complete_at": meta.complete_at,
                "inputs": dict(meta.inputs),
                "sources": dict(meta.sources),
                "transaction": meta.transaction,
                "stores": {
                    name: {
                        "changelog": at.topic,
                        "topic_id": at.topic_id,
                        "offset": at.offset,
                        "inputs": dict(at.inputs),
                    }
                    for name, at in meta.stores.items()
                },
                "files": [
                    {"name": file.name, "object": file.object, "size": file.size, "sha256": file.sha256}
                    for file in self.files
                ],
            },
            indent=1,
        ).encode()

    @staticmethod
    def decode(raw: bytes) -> Manifest:
        """The manifest of these JSON bytes.

        Raises:
            FormatUnknown: A newer version wrote it.
            ManifestDamaged: The bytes are no manifest.
        """
        try:
            fields = json.loads(raw)
            version = int(fields["version"])
        except (ValueError, KeyError, TypeError) as failure:
            raise ManifestDamaged(f"it is no manifest ({len(raw)} bytes)") from failure
        if version != MANIFEST_VERSION:
            raise FormatUnknown(
                f"A checkpoint's manifest has version {version}, expected {MANIFEST_VERSION}.",
                action="Nothing: the changelog restores the state.",
                version=version,
            )
        try:
            return _manifest(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as failure:
            raise ManifestDamaged(f"a field is missing or of another kind: {failure!r}") from failure


def _manifest(fields: Mapping[str, object]) -> Manifest:
    known: Mapping[str, object] = fields
    stores = _mapping(known["stores"])
    files = known["files"]
    if not isinstance(files, list):
        raise TypeError("files")
    meta = TaskMeta(
        inputs=_offsets(known["inputs"]),
        stores={
            name: StoreOffset(
                str(_mapping(at)["changelog"]),
                str(_mapping(at)["topic_id"]),
                int(str(_mapping(at)["offset"])),
                _offsets(_mapping(at)["inputs"]),
            )
            for name, at in stores.items()
        },
        transaction=int(str(known["transaction"])),
        complete_at=float(str(known["complete_at"])),
        sources={name: str(value) for name, value in _mapping(known["sources"]).items()},
    )
    return Manifest(
        checkpoint_id=str(known["checkpoint_id"]),
        processor=str(known["processor"]),
        task=str(known["task"]),
        partition=int(str(known["partition"])),
        code_version=str(known["code_version"]),
        database=str(known["database"]),
        state_format=str(known["state_format"]),
        created_at=float(str(known["created_at"])),
        meta=meta,
        files=tuple(
            CheckpointFile(
                _plain(str(file["name"])), _below(str(file["object"])), int(str(file["size"])), str(file["sha256"])
            )
            for file in files
        ),
    )


def _plain(name: str) -> str:
    """A file name that can't lead outside of the database's folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"a file is named {name!r}")
    return name


def _below(name: str) -> str:
    """An object name that can't lead outside of the checkpoint store."""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        raise ValueError(f"an object is named {name!r}")
    return name


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("an object was expected")
    return value


def _offsets(value: object) -> dict[str, int]:
    return {name: int(str(offset)) for name, offset in _mapping(value).items()}


@dataclass(frozen=True, slots=True)
class Place:
    """The folders and names of one task's checkpoints in the store."""

    processor: str
    task: str

    @property
    def folder(self) -> str:
        """The task's folder."""
        return f"{_word(self.processor)}/{_word(self.task)}/"

    @property
    def manifests(self) -> str:
        """The folder of manifests."""
        return f"{self.folder}manifests/"

    @property
    def files(self) -> str:
        """The folder of database files."""
        return f"{self.folder}files/"

    @property
    def uploads(self) -> str:
        """The folder of marks of running uploads."""
        return f"{self.folder}uploads/"

    def manifest(self, generation: int, upload: str) -> str:
        """The name of a manifest; names sort by generation."""
        return f"{self.manifests}{generation:0{_GENERATION_DIGITS}d}-{upload}.json"

    def file(self, upload: str, name: str) -> str:
        """The name of a file of an upload."""
        return f"{self.files}{upload}/{name}"

    def mark(self, holder: str, upload: str) -> str:
        """The name of an upload's mark."""
        return f"{self.uploads}{holder}.{upload}"


def generation_of(manifest: str) -> int:
    """The generation in a manifest's name; 0 for any other name."""
    found = re.fullmatch(r"(\d+)-.*\.json", manifest.rpartition("/")[2])
    return int(found[1]) if found is not None else 0


def id_of(manifest: str) -> str:
    """The checkpoint's id: the manifest's name without folders and suffix."""
    return manifest.rpartition("/")[2].removesuffix(".json")


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)
