"""The manifest of a snapshot: its source, its offsets, and the content of each partition.

The manifest is stored as JSON in the summary of the table version (``holdfast.manifest``, next to ``holdfast.id``). The
processor's ``_snapshots`` table has the same data as rows.

Invariants:
    - ``end`` and ``inputs`` belong to one commit of the worker. The changelog up to offset ``end`` gives the state
      after the input messages up to the offsets ``inputs``. If ``inputs`` lacks a topic, its offset is unknown, not 0.
    - A manifest that a later version of Holdfast wrote is refused, never read in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.state.fingerprint import Fingerprint

MANIFEST_VERSION = 1
#: The properties in a table version's summary that contain the snapshot's id and its manifest.
ID_PROPERTY, MANIFEST_PROPERTY = "holdfast.id", "holdfast.manifest"
#: The property that names the branch from which a snapshot was published. A snapshot can have several attempts on
#: different branches, for example after a kill. Only one attempt is published.
ATTEMPT_PROPERTY = "holdfast.attempt"
#: The names, in a manifest, of the sources that a snapshot's rows can be read from.
INCREMENTAL, CHANGELOG, CHECKPOINT, HISTORY = "incremental", "changelog", "checkpoint", "history"
SOURCES = (INCREMENTAL, CHANGELOG, CHECKPOINT, HISTORY)


class ManifestDamaged(HoldfastError):
    """A text is not the manifest of a snapshot."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """One changelog partition of a snapshot.

    Args:
        partition: The partition's number.
        topic_id: The topic id of the changelog.
        log_start: The first offset of the changelog when the snapshot was taken.
        start: The first offset that was read; equal to ``end`` if the rows come from a checkpoint.
        end: The offset of the state: the table has the effect of all records before this offset.
        records: Number of records read.
        tombstones: Number of tombstones read.
        live_keys: Number of keys in the table.
        fingerprint: The fingerprint of the partition's keys and values in the table.
        inputs: Topic -> the next input offset that belongs to ``end``.
        quarantined: Number of values that could not be read.
        sources: Input topic -> topic id.
        typed: The fingerprint of the typed columns; None without such columns, and in manifests of earlier versions of
            Holdfast.
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

    ``base`` is the id of the snapshot into which an incremental snapshot was merged. ``why`` is the reason why its
    source was chosen.

    The checkpoints of the partitions have different times: ``taken_at`` is the earliest, ``latest_at`` the latest
    (seconds since 1970). ``latest_at`` is None in manifests of earlier versions of Holdfast; ``coverage.with_ends``
    then computes an upper bound.

    ``generation`` counts how often the changelog was created. The history table has every change from ``covers_from``
    to ``taken_at``. If ``covers_from`` is later than ``taken_at``, the snapshot adds no such time span.
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
        """Whether this is the table of a past time, built from the history table, not from a worker's state."""
        return self.source == HISTORY

    @property
    def ends(self) -> dict[int, int]:
        """Changelog partition -> offset of the snapshot."""
        return {part.partition: part.end for part in self.partitions}

    @property
    def topic_ids(self) -> dict[int, str]:
        """Changelog partition -> topic id of the changelog that the offsets refer to."""
        return {part.partition: part.topic_id for part in self.partitions}

    @property
    def fingerprints(self) -> dict[int, Fingerprint]:
        """Changelog partition -> fingerprint of its rows in the table."""
        return {part.partition: part.fingerprint for part in self.partitions}

    @property
    def typed_fingerprints(self) -> dict[int, Fingerprint]:
        """Changelog partition -> fingerprint of its typed columns.

        Empty if the fingerprint of one partition is unknown.
        """
        found = {part.partition: part.typed for part in self.partitions if part.typed is not None}
        return found if len(found) == len(self.partitions) else {}

    @property
    def rows(self) -> int:
        """Number of live keys in all partitions."""
        return sum(part.live_keys for part in self.partitions)

    @property
    def records(self) -> int:
        """Number of records read from all partitions."""
        return sum(part.records for part in self.partitions)

    @property
    def quarantined(self) -> int:
        """Number of values in all partitions that could not be read."""
        return sum(part.quarantined for part in self.partitions)

    def encode(self) -> str:
        """Encodes the manifest as one line of JSON; fingerprints are written in their text form."""
        document = msgspec.to_builtins(self)
        for part, written in zip(self.partitions, document["partitions"], strict=True):
            written["fingerprint"] = part.fingerprint.hex
            del written["typed"]
            if part.typed is not None:
                written["typed"] = part.typed.hex
        return msgspec.json.encode({"version": MANIFEST_VERSION, **document}).decode()

    @staticmethod
    def decode(text: str) -> SnapshotManifest:
        """Decodes a manifest from JSON.

        Raises:
            FormatUnknown: A later version of Holdfast wrote the manifest.
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
