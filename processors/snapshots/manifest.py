"""The manifest of a snapshot: its source, its offsets, and the content of each partition.

The summary of the table version has the manifest as JSON (``holdfast.manifest``, next to ``holdfast.id``); the
processor's ``_snapshots`` table has it row by row.

Invariants:
    - ``end`` and ``inputs`` are one commit of the worker: the changelog up to ``end`` is the state after the inputs up
      to ``inputs``. A topic that ``inputs`` lacks has no known position; a missing position is never 0.
    - A manifest of a later version is refused, never read in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.state.fingerprint import Fingerprint

MANIFEST_VERSION = 1
#: The properties of a table version's summary that hold the snapshot's id and its manifest.
ID_PROPERTY, MANIFEST_PROPERTY = "holdfast.id", "holdfast.manifest"
#: The property with the branch of the published attempt: several attempts at a snapshot may exist, one is published.
ATTEMPT_PROPERTY = "holdfast.attempt"
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
        typed: The fingerprint of the typed columns; None without such columns, and in manifests of earlier versions.
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
    typed: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """One snapshot of a store.

    ``base`` is the id of the snapshot that an incremental one builds on; ``why`` is the reason for the source.
    Checkpoints of partitions are made at different times: ``taken_at`` is the earliest time, ``latest_at`` the latest
    (wall-clock seconds since 1970). ``latest_at`` is None in manifests of earlier versions of Holdfast, which recorded
    only the earliest; ``coverage.with_ends`` bounds it. ``generation`` counts the store's changelogs. The history has
    every change from ``covers_from`` to ``taken_at``; it covers no moment if ``covers_from`` is later.
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
    latest_at: float | None = None

    @property
    def from_history(self) -> bool:
        """Whether this is a past version made from the history, not a snapshot published from the owner."""
        return self.source == HISTORY

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
    def typed_fingerprints(self) -> dict[int, Fingerprint]:
        """Changelog partition -> the fingerprint of its typed columns; empty if one partition's is unknown."""
        found = {part.partition: part.typed for part in self.partitions if part.typed is not None}
        return found if len(found) == len(self.partitions) else {}

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
        """The manifest as one line of JSON; a fingerprint is its text form."""
        document = msgspec.to_builtins(self)
        for part, written in zip(self.partitions, document["partitions"], strict=True):
            written["fingerprint"] = part.fingerprint.hex
            del written["typed"]
            if part.typed is not None:
                written["typed"] = part.typed.hex
        return msgspec.json.encode({"version": MANIFEST_VERSION, **document}).decode()

    @staticmethod
    def decode(text: str) -> SnapshotManifest:
        """The manifest from its JSON.

        Raises:
            FormatUnknown: A later version of Holdfast wrote it.
            ManifestDamaged: The text is not a manifest.
        """
        try:
            document = msgspec.json.decode(text)
            version = int(document["version"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as failure:
            raise _damaged(f"it is {text[:60]!r}") from failure
        if version != MANIFEST_VERSION:
            raise unknown_version("A snapshot's manifest", version, MANIFEST_VERSION)
        try:
            for part in document["partitions"]:
                for name in ("fingerprint", *({"typed"} & part.keys())):
                    count, xor, total = part[name].split("-")
                    part[name] = Fingerprint(int(count), int(xor, 16), int(total, 16))
            manifest = msgspec.convert(document, SnapshotManifest, from_attributes=True)
            if manifest.source not in SOURCES:
                raise ValueError(f"source {manifest.source!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as failure:
            raise _damaged(f"a field is missing or of another kind: {failure!r}") from failure
        return manifest


def _damaged(why: str) -> ManifestDamaged:
    return ManifestDamaged(
        f"This text is not a manifest of a snapshot: {why}.",
        action="Materialise the snapshot asset with the config `source: full`; older tags of the table name the last "
        "good version.",
    )
