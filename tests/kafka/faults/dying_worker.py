"""A counting worker that kills itself (SIGKILL) at an exact step of its n-th commit.

Usage: ``python dying_worker.py <bootstrap> <group> <state_dir> <home> <guarantee> <step> <commit>``. The step is one
of the guarantee's steps, ``in a replay`` (half-way through the n-th write of a restore), or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from holdfast import Application
from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.clients.producer import EngineProducer
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases

STEPS = (
    "before produce",
    "between flush and offsets",
    "between offsets and commit",
    "between commit and local write",
    "between pieces of the local write",
    "after the local write",
)
#: At-least-once has two more steps, because it first flushes its outputs with a separate producer.
STEPS_AT_LEAST_ONCE = ("before the outputs", "between outputs and changelogs", *STEPS[1:])


class Fuse:
    def __init__(self, step: str, commit: int) -> None:
        self.step, self.commit, self.commits, self.loads = step, commit, 0, 0

    def at(self, step: str) -> None:
        if step == self.step and self.commits == self.commit:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingProducer(EngineProducer):
    fuse: Fuse

    def flush(self, timeout_s):
        self.fuse.commits += 1
        self.fuse.at("before produce")
        super().flush(timeout_s)

    def send_offsets(self, offsets, metadata):
        self.fuse.at("between flush and offsets")
        super().send_offsets(offsets, metadata)

    def commit(self):
        self.fuse.at("between offsets and commit")
        super().commit()
        self.fuse.at("between commit and local write")


class DyingPlainProducer(EngineProducer):
    """The producer of the outputs with at-least-once. The worker flushes it before the producer of the changelogs."""

    fuse: Fuse

    def flush(self, timeout_s):
        if self.fuse.commits + 1 == self.fuse.commit and self.fuse.step in STEPS_AT_LEAST_ONCE[:2]:
            self.fuse.commits += 1  # count commits here, because the worker must die before the changelogs are flushed
        self.fuse.at("before the outputs")
        super().flush(timeout_s)
        self.fuse.at("between outputs and changelogs")


class DyingMember(GroupConsumer):
    fuse: Fuse

    def poll(self, records_max, timeout_s):
        """Poll at most 100 records, so that the worker makes at least as many commits as the test needs."""
        return super().poll(min(records_max, 100), timeout_s)


class DyingDatabase:
    def __init__(self, database, fuse):
        self._database, self._fuse = database, fuse

    def __getattr__(self, name):
        return getattr(self._database, name)

    def write(self, changes):
        if self._fuse.step == "between pieces of the local write" and self._fuse.commits == self._fuse.commit:
            self._database.write(changes[: len(changes) // 2])
            self._fuse.at("between pieces of the local write")
        self._database.write(changes)
        self._fuse.at("after the local write")

    def load(self, keys, values):
        self._fuse.loads += 1
        if self._fuse.step == "in a replay" and self._fuse.loads == self._fuse.commit:
            half = len(keys) // 2
            self._database.load(keys[:half], values[:half])
            os.kill(os.getpid(), signal.SIGKILL)
        self._database.load(keys, values)


class DyingDatabases(RocksDatabases):
    def __init__(self, fuse):
        super().__init__()
        self._fuse = fuse

    def open(self, path, bulk_records=None):
        return DyingDatabase(super().open(path, bulk_records), self._fuse)


class DyingCluster(KafkaCluster):
    fuse: Fuse

    def producer(self, transactional_id, batch_bytes_max):
        made = (DyingProducer if transactional_id else DyingPlainProducer)(self.bootstrap, transactional_id)
        made.fuse = self.fuse
        return made

    def group_consumer(self, group, client_id):
        made = DyingMember(self.bootstrap, group, config=self._consumer)
        made.fuse = self.fuse
        return made


def count(value, state):
    total = state.get("n", 0) + 1
    state.set("n", total)
    return total


def count_and_name(value, state):
    """Output the count together with the message that produced it."""
    return {"n": count(value, state), "of": value}


def main() -> None:
    bootstrap, group, state_dir, home, guarantee, step, commit = sys.argv[1:]
    fuse = Fuse(step, int(commit))
    session_ms = int(os.environ.get("TEST_SESSION_MS", "2000"))
    cluster = DyingCluster(bootstrap, consumer_config={"session.timeout.ms": session_ms, "heartbeat.interval.ms": 500})
    cluster.fuse = fuse
    app = Application(
        bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_every=200,
        state_dir=state_dir,
        slot="0",
        processing_guarantee=guarantee,
    )
    function = count if guarantee == "exactly-once" else count_and_name
    frame = app.dataframe(app.topic(f"{group}-in")).apply(function, stateful=True, store="counts")
    frame.to_topic(app.topic(f"{group}-out"))
    app.run_on(cluster, load_settings(home=Path(home)), databases=DyingDatabases(fuse))


if __name__ == "__main__":
    main()
