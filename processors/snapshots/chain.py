"""Makes the property ``holdfast.chain`` of a table version (Iceberg snapshot): a link to its base version, as JSON.

    {"version": 1,
     "fingerprints": {"0": "2-57c0a1d7f4e0b2c9-9d1f6f2a5b3c4d5e"},
     "vector": {"0": ["the changelog's topic id", 120]},
     "base": {"id": "the base's holdfast.id", "fingerprints": {"0": "1-00…-00…"}}}

The base is the earlier version into which the new rows were merged. A link has the fingerprints (hashes) of its
version's rows, and the fingerprints that the base should have. If the real base has other fingerprints, the version was
not built on the published table. A program without any code of Holdfast can verify the links, as ``docs/verify.py``
does.

Invariants:
    - A version that was written in full has no base (null).
    - The text is deterministic: it depends only on the snapshot manifests of the version and of its base.
"""

# tidy: allow-crumb because the module is one pure decision: the form of a link, which other programs read

from __future__ import annotations

import msgspec

from holdfast.processors.snapshots.manifest import SnapshotManifest

CHAIN_VERSION = 1
#: The property in a table version's summary that contains the version's link.
CHAIN_PROPERTY = "holdfast.chain"


def chain_link(manifest: SnapshotManifest, base: SnapshotManifest | None) -> str:
    """The link of a version as JSON: its fingerprints and offsets by partition, and its base's fingerprints.

    ``base`` is None for a version that was written in full.
    """
    vector = {str(part.partition): [part.topic_id, part.end] for part in manifest.partitions}
    built_on = None if base is None else {"id": base.snapshot_id, "fingerprints": _fingerprints(base)}
    link = {"fingerprints": _fingerprints(manifest), "vector": vector, "base": built_on}
    return msgspec.json.encode({"version": CHAIN_VERSION, **link}).decode()


def _fingerprints(manifest: SnapshotManifest) -> dict[str, str]:
    return {str(part.partition): part.fingerprint.hex for part in manifest.partitions}
