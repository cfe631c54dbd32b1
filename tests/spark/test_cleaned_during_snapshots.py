"""Snapshots of a changelog that a real log cleaner compacts. Tombstones are removed within a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from holdfast.assets.spark import history
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.settings import Settings
from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint
from holdfast.processors.snapshots.plan import plan_snapshot
from tests.spark.conftest import Changelog
from tests.spark.test_random_snapshots import checkpoint
from tests.spark.verifying import verify

PATIENCE_S = 180.0
#: Each later append starts another segment, and the cleaner compacts every segment except the newest at once.
CLEANED = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "segment.ms": "200",
}


@pytest.fixture(scope="module")
def eager_cleaner(broker: str) -> Iterator[None]:
    """The broker's cleaner checks for work every 0.5 s instead of every 15 s. The setting is restored afterwards."""

    def set_backoff(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", "500", incremental_operation=operation)
        wanted = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        for altered in admin.incremental_alter_configs([wanted]).values():
            altered.result(60)

    admin = AdminClient({"bootstrap.servers": broker})
    set_backoff(AlterConfigOpType.SET)
    yield
    set_backoff(AlterConfigOpType.DELETE)


@pytest.fixture
def cleaned(eager_cleaner: None, broker: str, unique: Callable[[str], str], spark: Any) -> Changelog:
    return Changelog(broker, unique("cleaned"), spark, config=dict(CLEANED))


def offsets(changelog: Changelog, partition: int) -> list[int]:
    ends = changelog.ends()
    return [record.offset for record in read_range(changelog.bootstrap, changelog.topic, partition, 0, ends[partition])]


def from_checkpoint(changelog: Changelog, folder: Path) -> Any:
    """Take a snapshot from the owner's checkpoint at the current ends."""
    paths = {part: str(checkpoint(changelog.model, part, folder / str(part))) for part in (0, 1)}
    return changelog.snapshot(plan_snapshot(changelog.facts(changelog.ends(), paths)))


@pytest.mark.thorough
def test_a_deletion_that_the_log_has_forgotten_is_not_missed(cleaned: Changelog, tmp_path: Path) -> None:
    cleaned.write(0, [(b"a", 1), (b"b", 1)])
    assert from_checkpoint(cleaned, tmp_path / "first").manifest.source == "checkpoint"
    deleted_at = cleaned.ends()[0]
    cleaned.write(0, [(b"b", None)])
    deadline = time.monotonic() + PATIENCE_S
    while deleted_at in offsets(cleaned, 0):
        assert time.monotonic() < deadline, "the cleaner does not forget the deletion"
        cleaned.write(0, [(b"x", 1)])
    result = from_checkpoint(cleaned, tmp_path / "second")
    assert result.manifest.source == "checkpoint"
    assert "the changelog is sure to keep deletions for" in result.manifest.why
    assert cleaned.stored() == cleaned.model
    assert cleaned.stored(history.live(history.fold(cleaned.history()))) == cleaned.model
    assert result.corrections == 1, "the history was not told of the deletion either"


@pytest.mark.thorough
def test_snapshots_are_exact_while_others_write_and_the_cleaner_runs(cleaned: Changelog, tmp_path: Path) -> None:
    lock, ended = threading.Lock(), threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            with lock:
                number += 1
                for partition in (0, 1):
                    cleaned.write(partition, [(b"k%d" % (number % 5), number), (b"k%d" % ((number + 2) % 5), None)])
            ended.wait(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            with lock:
                model, ends = dict(cleaned.model), cleaned.ends()
                paths = {part: str(checkpoint(model, part, tmp_path / f"{number}-{part}")) for part in (0, 1)}
                facts = cleaned.facts(ends, paths)
            stored = {part: fingerprint_checkpoint(Path(path), "s") for part, path in paths.items()}
            result = cleaned.snapshot(plan_snapshot(facts), stored=stored)
            assert cleaned.stored() == model, result.manifest.why
            assert cleaned.stored(history.live(history.fold(cleaned.history()))) == model
    finally:
        ended.set()
        writer.join()


@pytest.mark.thorough
def test_a_verifier_is_unsure_of_keys_that_were_replaced_and_of_no_others(
    cleaned: Changelog, spark_settings: Settings, tmp_path: Path
) -> None:
    cleaned.write(0, [(b"a", 1), (b"b", 1)])
    replaced_at = cleaned.ends()[0] - 4
    from_checkpoint(cleaned, tmp_path)
    while replaced_at in offsets(cleaned, 0):
        cleaned.write(0, [(b"a", 2)])
    verdict = verify(spark_settings, cleaned.bootstrap, cleaned.topic, f"{cleaned.processor}.s")
    assert verdict.code == 0, verdict.output
    (said,) = verdict.versions.values()
    assert said == {
        "rows": "agree",
        "changelog": "unsure; partition 0: the records of 1 of 2 rows may be compacted",
        "chain": "agree",
    }
