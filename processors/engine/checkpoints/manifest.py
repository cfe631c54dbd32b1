"""The manifest of a checkpoint, and the names of all objects in a checkpoint store.

    <processor>/<task>/manifests/<generation>-<upload>.json     written last; completes the checkpoint
    <processor>/<task>/files/<upload>/<file of RocksDB>         written once; later manifests may refer to it, too
    <processor>/<task>/uploads/<holder>.<upload>                a *mark*: exists while the upload runs

``<generation>`` is the number of the task's checkpoint, counted from 1.

Invariants:
    - Object names contain a unique id of the upload, so that no upload replaces an object of another upload.
    - A manifest refers only to objects that were complete before the manifest was written.
    - Ids, names and sizes in a manifest are checked when it is decoded. Otherwise a manipulated manifest could make a
      download write files outside of its folder.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import msgspec

from holdfast.infra.storage.errors import ObjectTooLarge
from holdfast.infra.storage.objects import is_object_name
from holdfast.processors.engine.changelog.format import KEY_VERSION, VALUE_VERSION, Commands, unknown_version
from holdfast.processors.engine.changelog.names import file_name
from holdfast.processors.engine.checkpoints.ports import Objects
from holdfast.processors.engine.state.databases.task_meta import META_VERSION, StoreOffset, TaskMeta

MANIFEST_VERSION = 1
#: The format versions of keys, values and meta records in a task's RocksDB, joined by dots.
STATE_FORMAT = f"{KEY_VERSION}.{VALUE_VERSION}.{META_VERSION}"
_GENERATION_DIGITS = 12
#: The pattern of a safe checkpoint id or file name: one part of a path, without separators.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class ManifestDamaged(Exception):
    """An object of the checkpoint store is not a valid manifest."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint: file name, name of the object that contains it, size in bytes, and SHA-256 as hex."""

    name: str
    object: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a checkpoint: its task, its offsets and its files.

    ``meta`` is a copy of the meta record in RocksDB. ``created_at`` is the time of the checkpoint, in wall-clock
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
        """The total size of all files, in bytes."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Encodes the manifest as JSON."""
        meta = self.meta
        stores = {name: _Store(at.topic, at.topic_id, at.offset, dict(at.inputs)) for name, at in meta.stores.items()}
        document = _Document(
            version=MANIFEST_VERSION,
            complete_at=meta.complete_at,
            inputs=dict(meta.inputs),
            sources=dict(meta.sources),
            transaction=meta.transaction,
            stores=stores,
            commands=meta.commands,
            keys=dict(meta.keys),
            **{name: getattr(self, name) for name in _OWN_FIELDS},
        )
        return msgspec.json.format(msgspec.json.encode(document), indent=1)

    @staticmethod
    def decode(raw: bytes) -> Manifest:
        """Decodes a manifest from JSON.

        Raises:
            FormatUnknown: A newer version of Holdfast wrote the manifest.
            ManifestDamaged: The bytes are not a valid manifest.
        """
        try:
            version = msgspec.json.decode(raw, type=_Version).version
        except (ValueError, RecursionError) as failure:
            raise ManifestDamaged(f"it is no manifest ({len(raw)} bytes)") from failure
        if version != MANIFEST_VERSION:
            action = "Nothing: the changelog restores the state."
            raise unknown_version("A checkpoint's manifest", version, MANIFEST_VERSION, action=action)
        try:
            read = msgspec.json.decode(raw, type=_Document)
        except (ValueError, RecursionError) as failure:
            raise ManifestDamaged(f"a field is missing or of another kind: {failure}") from failure
        _check_names(read.checkpoint_id, read.files)
        meta = TaskMeta(
            inputs=read.inputs,
            stores={
                name: StoreOffset(at.changelog, at.topic_id, at.offset, at.inputs) for name, at in read.stores.items()
            },
            transaction=read.transaction,
            complete_at=read.complete_at,
            sources=read.sources,
            commands=read.commands,
            keys=read.keys,
        )
        return Manifest(meta=meta, **{name: getattr(read, name) for name in _OWN_FIELDS})


class _Version(msgspec.Struct, frozen=True):
    version: int


class _Store(msgspec.Struct, frozen=True):
    changelog: str
    topic_id: str
    offset: int
    inputs: dict[str, int]


class _Document(_Version, frozen=True, kw_only=True):
    """The JSON document of a manifest."""

    checkpoint_id: str
    processor: str
    task: str
    partition: int
    code_version: str
    database: str
    state_format: str
    created_at: float
    complete_at: float
    inputs: dict[str, int]
    sources: dict[str, str]
    transaction: int
    stores: dict[str, _Store]
    files: tuple[CheckpointFile, ...]
    commands: Commands = msgspec.UNSET
    keys: dict[str, tuple[str, ...]] = {}


#: The names of the fields that ``Manifest`` and ``_Document`` have in common.
_OWN_FIELDS = tuple(field.name for field in dataclasses.fields(Manifest) if field.name != "meta")


def _check_names(checkpoint_id: str, files: tuple[CheckpointFile, ...]) -> None:
    """Raises ManifestDamaged if a name could lead outside of its folder, or a size is negative."""
    if not _NAME.fullmatch(checkpoint_id):
        raise ManifestDamaged(f"its id is {checkpoint_id[:80]!r}")
    for file in files:
        if not _NAME.fullmatch(file.name):
            raise ManifestDamaged(f"a file is named {file.name[:80]!r}")
        if not is_object_name(file.object) or file.object.endswith("/"):
            raise ManifestDamaged(f"an object is named {file.object[:80]!r}")
        if file.size < 0:
            raise ManifestDamaged(f"the file {file.name} has a size of {file.size}")
    if len({file.name for file in files}) < len(files):
        raise ManifestDamaged("two of its files have one name")


def read_manifest(objects: Objects, name: str) -> Manifest:
    """Reads the manifest in the object with this name.

    Raises:
        ManifestDamaged: The object is too large, is no valid manifest, or belongs to another checkpoint.
        FormatUnknown: A newer version of Holdfast wrote the manifest.
        StorageFailed: The object store can't be read; ObjectMissing if the object does not exist.
    """
    try:
        found = Manifest.decode(objects.read(name))
    except ObjectTooLarge as failure:
        raise ManifestDamaged(f"it has more than {failure.fields['limit']:,} bytes") from failure
    if found.checkpoint_id != id_of(name):
        raise ManifestDamaged(f"its id is {found.checkpoint_id!r}, its name is that of {id_of(name)}")
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Makes the folder names and object names of one task's checkpoints in the object store."""

    processor: str
    task: str

    @property
    def folder(self) -> str:
        """The folder with all objects of the task."""
        return f"{folder_of(self.processor)}{file_name(self.task)}/"

    @property
    def manifests(self) -> str:
        """The folder with the task's manifests."""
        return f"{self.folder}manifests/"

    @property
    def files(self) -> str:
        """The folder with the RocksDB files of all the task's checkpoints."""
        return f"{self.folder}files/"

    @property
    def uploads(self) -> str:
        """The folder with the marks of running uploads: one object for each upload, deleted when the upload ends."""
        return f"{self.folder}uploads/"

    def manifest(self, generation: int, upload: str) -> str:
        """The object name of a manifest. Names sort by ``generation``, the number of the task's checkpoint."""
        return f"{self.manifests}{generation:0{_GENERATION_DIGITS}d}-{upload}.json"

    def file(self, upload: str, name: str) -> str:
        """The object name of a file that an upload writes."""
        return f"{self.files}{upload}/{name}"

    def mark(self, holder: str, upload: str) -> str:
        """The object name of an upload's mark, which exists while the upload is running."""
        return f"{self.uploads}{holder}.{upload}"


def folder_of(processor: str) -> str:
    """The folder with all checkpoints of a processor."""
    return f"{file_name(processor)}/"


def generation_of(manifest: str) -> int:
    """Returns the number of the checkpoint in a manifest's object name; 0 if this is not the name of a manifest."""
    found = re.fullmatch(r"(\d+)-.*\.json", manifest.rpartition("/")[2])
    return int(found[1]) if found is not None else 0


def id_of(manifest: str) -> str:
    """Returns the id of a checkpoint: the object name of its manifest, without folders and suffix."""
    return manifest.rpartition("/")[2].removesuffix(".json")
