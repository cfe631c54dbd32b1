"""One link of the chain of fingerprints: the property ``holdfast.chain`` of each table version's summary, as JSON.

    {"version": 1,
     "fingerprints": {"0": "2-57c0a1d7f4e0b2c9-9d1f6f2a5b3c4d5e"},
     "vector": {"0": ["the changelog's topic id", 120]},
     "base": {"id": "the base's holdfast.id", "fingerprints": {"0": "1-00…-00…"}}}

A program without knowledge of Holdfast can follow the chain. If a version's base has other fingerprints than the link
records, the version was built on a table other than the published one. ``docs/verify.py`` is such a program.

Invariants:
    - The base is the version that the rows were merged into; a version that was written in full has none (null).
    - The same manifests give the same text.
"""

from __future__ import annotations

import msgspec

from holdfast.processors.snapshots.manifest import SnapshotManifest

CHAIN_VERSION = 1
#: The property of a table version's summary that holds its link.
CHAIN_PROPERTY = "holdfast.chain"


def chain_link(manifest: SnapshotManifest, base: SnapshotManifest | None) -> str:
    """The link of a version: its fingerprints and vector by partition, and the fingerprints of its base.

    ``base`` is None for a version that was written in full.
    """
    vector = {str(part.partition): [part.topic_id, part.end] for part in manifest.partitions}
    built_on = None if base is None else {"id": base.snapshot_id, "fingerprints": _fingerprints(base)}
    link = {"fingerprints": _fingerprints(manifest), "vector": vector, "base": built_on}
    return msgspec.json.encode({"version": CHAIN_VERSION, **link}).decode()


def _fingerprints(manifest: SnapshotManifest) -> dict[str, str]:
    return {str(part.partition): part.fingerprint.hex for part in manifest.partitions}
