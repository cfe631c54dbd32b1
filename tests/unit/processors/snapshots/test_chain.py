"""Each table version (Iceberg snapshot) has a link (a JSON property) that shows on which version it was built.

The link contains the fingerprints of the version, its changelog offsets, and the fingerprints of its base version.
"""

import dataclasses
import json

from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.snapshots.chain import chain_link
from tests.unit.processors.snapshots.test_manifest import MANIFEST, PART

OTHER = dataclasses.replace(
    PART, partition=1, topic_id="another-id", end=12, fingerprint=fingerprint_of([(b"m", b"x")])
)
FULL = dataclasses.replace(MANIFEST, partitions=(PART, OTHER))
NEXT = dataclasses.replace(FULL, snapshot_id="5678", base="1234", partitions=(dataclasses.replace(PART, end=30), OTHER))


def test_a_version_written_in_full_has_no_base():
    assert json.loads(chain_link(FULL, None)) == {
        "version": 1,
        "fingerprints": {"0": PART.fingerprint.hex, "1": OTHER.fingerprint.hex},
        "vector": {"0": ["an-id", 9], "1": ["another-id", 12]},
        "base": None,
    }


def test_a_version_built_on_another_names_it_and_its_fingerprints():
    link = json.loads(chain_link(NEXT, FULL))
    assert link["vector"] == {"0": ["an-id", 30], "1": ["another-id", 12]}
    assert link["base"] == {"id": "1234", "fingerprints": json.loads(chain_link(FULL, None))["fingerprints"]}


def test_the_same_manifests_give_the_same_text():
    assert chain_link(NEXT, FULL) == chain_link(dataclasses.replace(NEXT), dataclasses.replace(FULL))
    changed = dataclasses.replace(FULL, partitions=(dataclasses.replace(PART, fingerprint=OTHER.fingerprint), OTHER))
    assert chain_link(NEXT, changed) != chain_link(NEXT, FULL)
