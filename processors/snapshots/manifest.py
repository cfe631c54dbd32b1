"""The manifest of a snapshot: its source, its offsets, and the content of each partition.

The summary of the table version holds it as JSON (``holdfast.manifest``, beside ``holdfast.id``); the processor's
``_snapshots`` table holds it row by row.

Invariants:
    - ``end`` and ``inputs`` are one commit of the worker: the changelog up to ``end`` is the state after the inputs up
      to ``inputs``.
    - A manifest of a later version is refused, never read in part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.state.fingerprint import Fingerprint

MANIFEST_VERSION = 1
#: The properties of a table version's summary that hold the snapshot's id and its manifest.
ID_PROPERTY, MANIFEST_PROPERTY = "holdfast.id", "holdfast.manifest"
#: The sources of a snapshot.
INCREMENTAL, CHANGELOG, CHECKPOINT, HISTORY = "incremental", "changelog", "checkpoint", "history"
SOURCES = (INCREMENTAL, CHANGELOG, CHECKPOINT, HISTORY)


class ManifestDamaged(HoldfastError):
    """The text is not a manifest of a snapshot."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """One changelog partition of a snapshot.

    Args:
        partition: Its number.
        topic_id: The id of the changelog.
        log_start: The first offset of the log at that time.
        start: The first offset that was read; equal to ``end`` for a checkpoint.
        end: The offset of the state: all records before it are in the table.
        records: Records read.
        tombstones: Deletions read.
        live_keys: Keys in the table.
        fingerprint: The fingerprint of these keys and values.
        inputs: Topic -> the next input offset that belongs to ``end``.
        quarantined: Values that could not be read.
        sources: Input topic -> its id.
    """

    partition: int
    topic_id: str
    log_start: int
    start: int
    end: int
    records: int
    tombstones: int
    live_keys: int
    fingerprint: Fingerprint
    inputs: Mapping[str, int]
    quarantined: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """One snapshot of a store.

    ``base`` is the id of the snapshot that an incremental one builds on; ``why`` is the reason for the source.
    ``taken_at`` is the time of the checkpoint (wall-clock seconds since 1970). ``generation`` counts the store's
    changelogs. The history has every change from ``covers_from`` to ``taken_at``.
    """

    snapshot_id: str
    processor: str
    store: str
    table: str
    source: str
    base: str | None
    why: str
    taken_at: float
    code_version: str
    state_format: str
    schema_version: int
    topic: str
    generation: int
    partitions: tuple[PartitionManifest, ...]
    covers_from: float

    @property
    def ends(self) -> dict[int, int]:
        """Changelog partition -> the offset that the snapshot is at."""
        return {part.partition: part.end for part in self.partitions}

    @property
    def topic_ids(self) -> dict[int, str]:
        """Changelog partition -> the id of the changelog that the offsets refer to."""
        return {part.partition: part.topic_id for part in self.partitions}

    @property
    def fingerprints(self) -> dict[int, Fingerprint]:
        """Changelog partition -> the fingerprint of its rows in the table."""
        return {part.partition: part.fingerprint for part in self.partitions}

    @property
    def rows(self) -> int:
        """Live keys of all partitions."""
        return sum(part.live_keys for part in self.partitions)

    @property
    def records(self) -> int:
        """Records read, of all partitions."""
        return sum(part.records for part in self.partitions)

    @property
    def quarantined(self) -> int:
        """Values that could not be read, of all partitions."""
        return sum(part.quarantined for part in self.partitions)

    def encode(self) -> str:
        """The manifest as one line of JSON."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        parts = [
            {name: getattr(part, name) for name in _NUMBERS}
            | {"topic_id": part.topic_id, "fingerprint": part.fingerprint.hex}
            | {"inputs": dict(part.inputs), "sources": dict(part.sources)}
            for part in self.partitions
        ]
        return json.dumps({"version": MANIFEST_VERSION, **fields, "partitions": parts}, separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> SnapshotManifest:
        """The manifest from its JSON.

        Raises:
            FormatUnknown: A later version of Holdfast wrote it.
            ManifestDamaged: The text is not a manifest.
        """
        try:
            fields = json.loads(text)
            version = int(fields["version"])
        except (ValueError, KeyError, TypeError) as failure:
            raise _damaged(f"it is {text[:60]!r}") from failure
        if version != MANIFEST_VERSION:
            raise FormatUnknown(
                f"A snapshot's manifest has version {version}, expected {MANIFEST_VERSION}.",
                action="Use the Holdfast version that wrote the manifest, or a newer one.",
                version=version,
            )
        try:
            return _manifest(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as failure:
            raise _damaged(f"a field is missing or of another kind: {failure!r}") from failure


_FIELDS = (
    *("snapshot_id", "processor", "store", "table", "source", "base", "why", "taken_at"),
    *("code_version", "state_format", "schema_version", "topic", "generation", "covers_from"),
)
_NUMBERS = ("partition", "log_start", "start", "end", "records", "tombstones", "live_keys", "quarantined")


def _manifest(fields: Mapping[str, Any]) -> SnapshotManifest:
    if fields["source"] not in SOURCES:
        raise ValueError(f"source {fields['source']!r}")
    base = fields["base"]
    texts = ("snapshot_id", "processor", "store", "table", "source", "why", "code_version", "state_format", "topic")
    return SnapshotManifest(
        **{name: _text(fields[name]) for name in texts},
        base=None if base is None else _text(base),
        taken_at=float(fields["taken_at"]),
        covers_from=float(fields["covers_from"]),
        schema_version=int(fields["schema_version"]),
        generation=int(fields["generation"]),
        partitions=tuple(_partition(part) for part in fields["partitions"]),
    )


def _partition(part: Mapping[str, Any]) -> PartitionManifest:
    count, xor, total = _text(part["fingerprint"]).split("-")
    return PartitionManifest(
        **{name: int(part[name]) for name in _NUMBERS},
        topic_id=_text(part["topic_id"]),
        fingerprint=Fingerprint(int(count), int(xor, 16), int(total, 16)),
        inputs={str(name): int(offset) for name, offset in part["inputs"].items()},
        sources={str(name): _text(topic_id) for name, topic_id in part["sources"].items()},
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {value!r}")
    return value


def _damaged(why: str) -> ManifestDamaged:
    return ManifestDamaged(
        f"This text is not a manifest of a snapshot: {why}.",
        action="Materialise the snapshot asset with the config `source: full`; older tags of the table name the last "
        "good version.",
    )
