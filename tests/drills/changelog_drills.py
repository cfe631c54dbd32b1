"""Drills with changelogs and state: altered, deleted, recreated or blocked changelogs; damaged, lost or wrong state."""

from __future__ import annotations

import os
import shutil
import signal
import time

from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from tests.drills.drilling import drill
from tests.drills.exercise import KEYS, STORE, WORKING, Exercise
from tests.kafka.hanging import leave_hanging, unverified
from tests.parts.operated import PARTITIONS

CONFIG_MATCHES, NO_HANGING_TRANSACTION = "config_matches_spec", "no_hanging_transaction"
MATCHES_CHANGELOG = "matches_changelog"
HANGS_FOR_S = 3_600.0


@drill(4, "changelog altered to `cleanup.policy=delete`")
def altered(it: Exercise) -> None:
    it.begin()
    it.green(it.changelog_asset, CONFIG_MATCHES)
    it.broken()
    it.topics.alter(it.changelog, {"cleanup.policy": "delete"})
    it.says(it.changelog_asset, CONFIG_MATCHES, "cleanup.policy is delete, expected compact")
    it.launch("__ASSET_JOB", {}, it.changelog_asset)
    it.mended()
    assert it.topics.describe([it.changelog])[it.changelog].config["cleanup.policy"] == "compact"
    it.exact()


@drill(5, "changelog deleted")
def changelog_lost(it: Exercise) -> None:
    it.begin()
    it.green(it.changelog_asset, CONFIG_MATCHES)
    it.broken()
    it.topics.delete(it.changelog)
    it.says(it.changelog_asset, CONFIG_MATCHES, "is missing", "apply backfill")
    it.red_since(it.processor_asset, WORKING, it.broke_at, "What to do: holdfast apply backfill")
    it.act("apply", "backfill", it.name, "--store", STORE, "--from", "local", "--yes")
    it.mended()
    it.green(it.processor_asset, WORKING)
    it.exact()


@drill(6, "changelog recreated empty behind a warm store")
def changelog_anew(it: Exercise) -> None:
    it.begin()
    it.green(it.changelog_asset, CONFIG_MATCHES)
    kept = dict(it.topics.describe([it.changelog])[it.changelog].config)
    it.broken()
    it.topics.delete(it.changelog)
    it.topics.create(TopicSpec(it.changelog, PARTITIONS, 1, {"cleanup.policy": kept["cleanup.policy"]}))
    it.says(it.changelog_asset, CONFIG_MATCHES, "was deleted and created again", "apply backfill")
    it.red_since(it.processor_asset, WORKING, it.broke_at, "What to do: holdfast apply backfill")
    it.act("apply", "backfill", it.name, "--store", STORE, "--from", "local", "--yes")
    it.mended()
    it.green(it.processor_asset, WORKING)
    it.exact()


@drill(9, "a hung transaction pins a changelog")
def hung(it: Exercise) -> None:
    it.begin()
    it.green(it.changelog_asset, NO_HANGING_TRANSACTION)
    it.broken()
    with unverified(it.topics.bootstrap):
        leave_hanging(it.topics.bootstrap, it.changelog, 0, producer_id=987_654, age_s=HANGS_FOR_S)
    it.says(it.changelog_asset, NO_HANGING_TRANSACTION, "A transaction hangs", "holdfast apply compact")
    it.act("apply", "compact", it.name)
    it.mended()
    it.exact()


@drill(10, "state folder corrupted")
def corrupted(it: Exercise) -> None:
    it.begin()
    files = [*it.state_folder.glob("*/MANIFEST-*"), *it.state_folder.glob("*/*.sst")]
    assert files
    it.broken()
    os.kill(it.pid, signal.SIGKILL)
    for file in files:
        file.write_bytes(b"not what was written" * 10)
    it.says(it.processor_asset, WORKING, "SIGKILL")
    it.mended()
    it.exact()
    assert list(it.state_folder.glob("*.corrupt")), "what was damaged is kept"


@drill(11, "state folder deleted")
def state_lost(it: Exercise) -> None:
    it.begin()
    it.broken()
    shutil.rmtree(it.state_folder)
    it.says(it.processor_asset, WORKING, "local state")
    it.mended()
    it.exact()


@drill(20, "a wrong key in the state: cleared, and rebuilt for that key alone")
def wrong_key(it: Exercise) -> None:
    it.begin()
    # a key without further input, because the next write of the key would correct the wrong value
    quiet = f"k{KEYS + 1}"
    it.feed(quiet, 5)
    it.processed()
    it.materialise(it.state_asset)
    it.green(it.state_asset, MATCHES_CHANGELOG)
    it.broken()
    stranger = Producer({"bootstrap.servers": it.topics.bootstrap})
    wrong = encode_value(1_000_000, int(time.time() * 1000))
    stranger.produce(it.changelog, wrong, key_prefix(quiet.encode()) + b"n", partition=(KEYS + 1) % PARTITIONS)
    assert stranger.flush(60) == 0
    it.materialise(it.state_asset)  # the schedule of the state asset launches the same run
    it.says(it.state_asset, MATCHES_CHANGELOG, "1 key", "--key KEY", "--from topic")
    it.act("apply", "clear", it.name, "--store", STORE, "--key", quiet, "--yes")
    it.act("apply", "backfill", it.name, "--store", STORE, "--from", "topic", "--yes")
    it.materialise(it.state_asset)
    it.mended()
    it.feed(quiet, 5)  # the key continues to count from its corrected value
    it.exact()
