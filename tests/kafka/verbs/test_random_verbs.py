"""A random sequence of verbs (commands that change state) on a real broker, while operators and a worker are killed.

``tests/simulation/lifecycle.py`` runs thousands of such sequences in memory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.engine.changelog.format import key_prefix
from tests.parts.operated import Operated

PROJECT = Path(__file__).resolve().parents[3]
SEED = 7
#: A changelog key that no message uses.
NOBODY = key_prefix(b"nobody") + b"n"
KEYS = [f"key-{number}" for number in range(12)]


class Sequence:
    """One processor, the verbs (operator commands) that are applied to it, and the expected count of each key."""

    def __init__(self, operated: Operated, random: Random) -> None:
        self.operated = operated
        self.random = random
        self.sent: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start an operator's `holdfast apply` command as a process."""
        verb, *rest = words
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.orchestration.cli", "apply", verb, self.operated.group, *rest],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": f"{PROJECT}:{os.environ['PYTHONPATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def apply(self, *words: str, code: int = 0) -> str:
        """Run an apply command, and wait until it has ended."""
        process = self.begin(*words)
        said, _ = process.communicate(timeout=150)
        assert process.returncode == code, said
        return said

    def feed(self) -> None:
        """Send random messages, and add them to the expected counts."""
        producer = Producer({"bootstrap.servers": self.operated.topics.bootstrap})
        for key in self.random.choices(KEYS, k=40):
            producer.produce(f"{self.operated.group}-in", b"1", key.encode())
            self.sent[key] += 1
            self.counts[key] += 1
        assert producer.flush(30) == 0

    def forget(self, prefix: str) -> None:
        self.counts = Counter({key: count for key, count in self.counts.items() if not key.startswith(prefix)})

    def check(self) -> None:
        """Assert that the running processor has counted all messages, in its state and in its changelog."""
        self.operated.processed(self.sent.total())
        assert self.operated.logged() == dict(self.counts)
        (audit,) = self.operated.verbs.audit(self.operated.group, ())
        assert audit.differences == ()

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def keys_go_while_it_runs(self) -> None:
        keys = self.random.sample(KEYS, 3)
        self.apply("clear", *(word for key in keys for word in ("--key", key)), "--yes")
        for key in keys:
            del self.counts[key]

    def a_clear_is_killed_with_its_worker(self) -> None:
        self.apply("stop")
        process = self.begin("clear", "--prefix", "key-1", "--yes")
        client = self.operated.client
        self.operated.wait_for(lambda: client.status() is not None or process.poll() is not None, "the paused worker")
        status = client.status()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if status is not None:
            os.kill(status.pid, signal.SIGKILL)
        self.apply("clear", "--prefix", "key-1", "--yes")
        self.forget("key-1")
        assert self.operated.logged() == dict(self.counts)
        self.apply("deploy")

    def everything_is_built_anew(self) -> None:
        self.apply("clear", "--all", "--rewind", "earliest", "--yes", code=3)
        self.check()
        self.apply("stop")
        self.apply("clear", "--all", "--rewind", "earliest", "--yes")
        assert self.operated.logged() == {}
        self.apply("deploy")
        self.counts = Counter(self.sent)

    def a_restore_is_killed(self) -> None:
        process = self.begin("restore", "--from", "changelog")

        def far_enough() -> bool:
            newest = self.operated.verbs.applies(self.operated.group, limit=1)[0]
            return process.poll() is not None or (newest.verb == "restore" and len(newest.done) >= 2)

        self.operated.wait_for(far_enough, "two stages")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.apply("restore", "--from", "changelog")
        assert not list(self.operated.settings.paths.state.rglob("*aside*"))

    def stores_are_rewritten(self) -> None:
        self.apply("compact")

    def compact_for_real(self) -> None:
        """Make the log cleaner compact the changelog to one record per key."""
        topics, changelog = self.operated.topics, self.operated.changelog
        eager = {"segment.ms": "1000", "min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.0"}
        topics.alter(changelog, eager)
        producer = Producer({"bootstrap.servers": topics.bootstrap})

        def cleaned() -> bool:
            for number in topics.start_offsets(changelog):
                # A tombstone of an unused key starts a new segment, so that the cleaner may compact the old segment.
                producer.produce(changelog, None, NOBODY, partition=number)
            assert producer.flush(30) == 0
            return all(self.is_clean(number, end) for number, end in topics.settled_end_offsets(changelog).items())

        self.operated.wait_for(cleaned, "the cleaner")

    def is_clean(self, number: int, end: int) -> bool:
        """Whether a partition of the changelog has only one record of each key."""
        records = read_range(self.operated.topics.bootstrap, self.operated.changelog, number, 0, end)
        keys = [record.key for record in records if record.key != NOBODY]
        return len(keys) == len(set(keys))


@pytest.mark.thorough
def test_what_is_asked_in_any_order_comes_about_whoever_is_killed(operated: Operated) -> None:
    sequence = Sequence(operated, Random(SEED))
    operated.bring_up()
    steps = [
        sequence.keys_go_while_it_runs,
        sequence.a_clear_is_killed_with_its_worker,
        sequence.everything_is_built_anew,
        sequence.a_restore_is_killed,
        sequence.stores_are_rewritten,
        sequence.keys_go_while_it_runs,
    ]
    sequence.random.shuffle(steps)
    for step in steps:
        sequence.feed()
        sequence.check()
        step()
        sequence.check()
    assert operated.verbs.applies(operated.group, limit=1)[0].finished_at is not None

    sequence.apply("stop")
    sequence.compact_for_real()
    shutil.rmtree(operated.settings.paths.state)
    sequence.apply("deploy")
    sequence.check()
