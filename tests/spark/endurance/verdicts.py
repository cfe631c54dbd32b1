"""Checks every published version of a store's table.

DuckDB compares the version with the source topic, and ``docs/verify.py`` compares it with the changelog. A version is
an Iceberg snapshot of the table that Holdfast published.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from holdfast.infra.waiting import wait_until
from holdfast.infra.warehouse.catalog import TableUnknown, load_table
from holdfast.processors.snapshots.manifest import MANIFEST_PROPERTY, SnapshotManifest
from holdfast.processors.snapshots.names import SNAPSHOT_TAG
from tests.spark.endurance.definition import STORE
from tests.spark.endurance.lives import Lives, topic_ids
from tests.spark.endurance.oracle import Oracle
from tests.spark.endurance.publisher import Publisher
from tests.spark.endurance.surroundings import PATIENCE_S, Run
from tests.spark.verifying import verify

#: Texts of ``docs/verify.py`` that explain why it can't verify a table version completely.
DOUBTS = ("which is gone", "has expired", "may be compacted")


class Verdicts:
    """All published table versions so far, each with the result of its checks. The first difference ends the test."""

    def __init__(self, run: Run, rng: random.Random) -> None:
        self.run = run
        self.lives = Lives(run.topics, run.changelog, run.source)
        self.oracle = Oracle(run.topics, run.source)
        self.publisher = Publisher(run.driver, rng)
        #: The manifest of each version that was read, by tag.
        self.versions: dict[str, SnapshotManifest] = {}
        #: Tags of the versions that equal DuckDB's result, and of those that ``docs/verify.py`` confirms.
        self.folded: set[str] = set()
        self.agreed: set[str] = set()
        self.unsure: set[str] = set()
        #: Name of each version that ``docs/verify.py`` could not verify completely -> its newest verdicts about it.
        self._doubts: dict[str, str] = {}

    def line(self) -> str:
        """The numbers of the test in one line."""
        past = sum(manifest.from_history for manifest in self.versions.values())
        return (
            f"{len(self.versions)} versions ({past} past ones), {len(self.folded)} equal the fold of "
            f"{self.oracle.records:,} records, docs/verify.py agrees with {len(self.agreed)} and is unsure of "
            f"{len(self.unsure - self.agreed)}, {len(self.lives.lives)} changelogs"
        )

    def doubts(self) -> dict[str, int]:
        """Reason -> the number of table versions that ``docs/verify.py`` can't verify completely for this reason.

        If a version has several of the reasons in ``DOUBTS``, the first one in ``DOUBTS`` counts.
        """
        left = [self._doubts[name] for name in self.unsure - self.agreed]
        return dict(Counter(next((why for why in DOUBTS if why in said), said) for said in left))

    def hash(self) -> str:
        """A hash over the ids, offsets and fingerprints of all versions."""
        told = [
            (tag, [(part.partition, part.end, part.fingerprint.hex, dict(part.inputs)) for part in manifest.partitions])
            for tag, manifest in sorted(self.versions.items())
        ]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]

    def pause(self, snapshots: int, seconds: float) -> None:
        """Let the publisher publish this many snapshots, then wait for some seconds. The publisher must not fail.

        On a busy machine the publisher may publish fewer, because a timeout limits the wait for the next disturbance.
        """
        wanted = self.publisher.published + snapshots
        wait_until(lambda: self.publisher.failed or self.publisher.published >= wanted, PATIENCE_S, every_s=0.05)
        wait_until(lambda: bool(self.publisher.failed), seconds, every_s=0.05)
        assert not self.publisher.failed, self.publisher.failed

    def await_first(self) -> None:
        """Wait for the first published version of the table."""
        ready = lambda: bool(self.publisher.failed or self._new())  # noqa: E731
        assert wait_until(ready, PATIENCE_S, every_s=0.5), "no version was published"

    def before_a_life_ends(self) -> dict[str, SnapshotManifest]:
        """Verify all published versions of the table. Must be called before a command deletes the changelog topic.

        Afterwards, ``docs/verify.py`` could no longer compare these versions with the changelog. Returns the manifests
        of the versions that can be restored, by tag.
        """
        self.check_published()
        self._ask_the_stranger()
        return {
            tag: each
            for tag, each in self.versions.items()
            if not each.from_history and all(self.run.source in part.inputs for part in each.partitions)
        }

    def check_published(self) -> None:
        """Compare the new versions with the result that DuckDB computes from the source."""
        assert not self.publisher.failed, self.publisher.failed
        new = self._new()
        self.lives.advance()
        for tag, manifest in new.items():
            self.versions[tag] = manifest
            if manifest.from_history:
                continue  # a past version may lie between two commits of the worker, so its input offsets are unknown
            life = self.lives.of(topic_ids(manifest.partitions))
            floors = {part.partition: life.floors(part.partition, part.end) for part in manifest.partitions}
            table = load_table(self.run.settings, self.run.group, STORE)
            rows = table.scan(snapshot_id=table.metadata.refs[tag].snapshot_id).to_arrow()
            found = self.oracle.differences(manifest, floors, rows)
            ends = {part.partition: (part.end, dict(part.inputs)) for part in manifest.partitions}
            assert not found, f"{tag}, {manifest.source}, at {ends}, is not the fold: {found}"
            self.folded.add(tag)

    def finish(self, patience_s: float) -> None:
        """Wait until the worker and the publisher are idle, take one more snapshot, and verify every version again."""
        self.run.wait_running()
        assert wait_until(self.run.caught_up, patience_s, every_s=0.2), "the worker does not catch up"
        self.publisher.finish(patience_s)
        assert not self.publisher.failed, self.publisher.failed
        newest = self.publisher.settled()
        self.check_published()
        assert SNAPSHOT_TAG + newest in self.folded
        self._ask_the_stranger()
        missing = {tag for tag, each in self.versions.items() if not each.from_history} - self.folded
        assert not missing, missing

    def _new(self) -> dict[str, SnapshotManifest]:
        """Return the published versions that were not read yet, by tag."""
        try:
            table = load_table(self.run.settings, self.run.group, STORE)
        except TableUnknown:
            return {}
        summaries = {each.snapshot_id: each.summary for each in table.metadata.snapshots if each.summary}
        tags = {name: ref.snapshot_id for name, ref in table.metadata.refs.items() if name.startswith(SNAPSHOT_TAG)}
        texts = {tag: summaries[at][MANIFEST_PROPERTY] for tag, at in tags.items() if tag not in self.versions}
        return {tag: SnapshotManifest.decode(str(text)) for tag, text in texts.items()}

    def _ask_the_stranger(self) -> None:
        with self.publisher.maintaining:  # maintenance must not expire versions during the verification
            said = verify(self.run.settings, self.run.topics.bootstrap, self.run.changelog, self.run.table)
        assert said.code == 0, said.output
        for name, checks in said.versions.items():
            if set(checks.values()) == {"agree"}:
                self.agreed.add(name)
            else:
                self.unsure.add(name)
                self._doubts[name] = "; ".join(checks.values())
