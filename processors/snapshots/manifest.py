"""What is said of a snapshot: what it was made from, at which offsets, and what each partition holds.

It lies as JSON in the summary of the table version (``holdfast.manifest``, beside ``holdfast.id``), and row by row in
the ``_snapshots`` table of the processor.

Invariants:
    - ``end`` and ``inputs`` are one moment of the owner: what the changelog gives up to ``end`` is what the inputs give
      up to ``inputs``.
    - A manifest of a later version is refused by name, never half understood.
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
#: The properties of a table version's summary that the snapshot's id and its manifest lie in.
ID_PROPERTY, MANIFEST_PROPERTY = "holdfast.id", "holdfast.manifest"
#: What a snapshot can be made from.
INCREMENTAL, CHANGELOG, CHECKPOINT, HISTORY = "incremental", "changelog", "checkpoint", "history"
SOURCES = (INCREMENTAL, CHANGELOG, CHECKPOINT, HISTORY)


class ManifestDamaged(HoldfastError):
    """The text is no manifest of a snapshot."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """One changelog partition of a snapshot.

    ``[start, end)`` are the offsets that were read (for a checkpoint ``start`` equals ``end``: nothing was read from
    the log), ``log_start`` where the log began then; ``records`` and ``tombstones`` what was read, ``live_keys`` what
    the table holds; ``inputs`` are the next input offsets by topic that belong to ``end``, ``sources`` those topics'
    ids; ``quarantined`` is how many values could not be read.
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
    """A snapshot: ``base`` is the id of the snapshot that an incremental one builds on, ``why`` the reason for the
    source as a sentence, ``taken_at`` when the owner was at these offsets (wall-clock seconds since 1970),
    ``generation`` counts the changelogs that the store has had; the history has every change from ``covers_from`` to
    ``taken_at``, so that any moment between them can be made from it."""

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
        """Changelog partition -> the id of the topic that the offsets are about."""
        return {part.partition: part.topic_id for part in self.partitions}

    @property
    def fingerprints(self) -> dict[int, Fingerprint]:
        """Changelog partition -> what the table holds of it."""
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
        """As JSON, in one line."""
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
        """From JSON.

        Raises:
            FormatUnknown: A later version wrote it.
            ManifestDamaged: It is no manifest.
        """
        try:
            fields = json.loads(text)
            version = int(fields["version"])
        except (ValueError, KeyError, TypeError) as failure:
            raise _damaged(f"it is {text[:60]!r}") from failure
        if version != MANIFEST_VERSION:
            raise FormatUnknown(
                f"A snapshot's manifest has version {version}, expected {MANIFEST_VERSION}.",
                action="Use the Holdfast version that wrote it, or a newer one.",
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
        raise TypeError(f"text was expected, not {value!r}")
    return value


def _damaged(why: str) -> ManifestDamaged:
    return ManifestDamaged(
        f"A text is no manifest of a snapshot: {why}.",
        action="Take a full snapshot anew; the table's older tags show which version was the last good one.",
    )
