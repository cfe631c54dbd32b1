"""Runs one drill.

It starts a processor, causes a fault, waits for the check that reports the fault, repairs it, and proves the result.

All times are those of Dagster's events, not of the moments when the test looked.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.infra.database.records import Deployment
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.orchestration.world import open_registry
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.apply import EXIT_REFUSED
from holdfast.processors.lifecycle.plans.requests import Deploy, Stop
from tests.drills.dagster_answers import Evaluation
from tests.drills.drill_results import Result
from tests.drills.home import Home, Told
from tests.drills.patience import PATIENCE_S, wait_for
from tests.oracles.fold import fold_changelog
from tests.parts.operated import PARTITIONS

KEYS = 10
#: The number of messages that are processed before the fault.
BEFORE = 200
#: Messages per second during the drill.
PACE = 20.0
STORE = "counts"
WORKING = "working"


class Feeder:
    """Feeds numbers at a steady rate until it is stopped. Counts the messages of each key that the broker accepted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: Counter[str] = Counter()
        self._topic = topic
        self._ended = threading.Event()
        self._idle = threading.Lock()
        self._producer = Producer(
            # messages that are sent while the broker is down are delivered once when it runs again
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 900_000, "linger.ms": 5}
        )
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def send(self, key: str, value: bytes = b"1", *, counted: bool = True) -> None:
        def delivered(error: Any, _: Any) -> None:
            assert error is None, error
            self.sent[key] += counted

        # a key keeps its partition, even if the topic gets more partitions
        place = int(key[1:]) % PARTITIONS
        self._producer.produce(self._topic, value, key.encode(), partition=place, on_delivery=delivered)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop feeding, and wait until everything is delivered."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        self.flush()

    def pause(self) -> None:
        """Pause the feed, and wait until everything is delivered."""
        self._idle.acquire()
        self.flush()

    def resume(self) -> None:
        """Resume the feed after a pause."""
        self._idle.release()

    def _feed(self) -> None:
        number = 0
        while not self._ended.wait(1 / PACE):
            with self._idle:
                self.send(f"k{number % KEYS}")
                self._producer.poll(0)
            number += 1


@dataclass
class Exercise:
    """A processor in a home folder that counts messages by key, with the steps and observations of a drill."""

    home: Home
    name: str
    result: Result
    #: Expected counts by key that come in addition to the counts of the continuous feed.
    beside: Counter[str] = field(default_factory=Counter)
    _feeder: Feeder | None = None
    _broke_at: float = 0.0
    _red: tuple[dg.AssetKey, str, Evaluation] | None = None
    _acted_at: float = 0.0
    _acted: list[str] = field(default_factory=list)

    # -- parts of the installation -------------------------------------------------------------

    @property
    def topics(self) -> Topics:
        return self.home.topics

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def sink(self) -> str:
        return f"{self.name}-out"

    @property
    def changelog(self) -> str:
        return f"{self.name}-{STORE}-changelog"

    @property
    def processor_asset(self) -> dg.AssetKey:
        return keys.processor_key(self.name)

    @property
    def changelog_asset(self) -> dg.AssetKey:
        return keys.changelog_key(self.name, STORE)

    @property
    def state_asset(self) -> dg.AssetKey:
        return keys.state_key(self.name, STORE)

    @property
    def snapshot_asset(self) -> dg.AssetKey:
        return keys.snapshot_key(self.name, STORE)

    @property
    def source_asset(self) -> dg.AssetKey:
        return keys.topic_key(self.source)

    @property
    def client(self) -> ProcessorClient:
        return ProcessorClient(self.name, "0", self.home.settings.paths)

    @property
    def pid(self) -> int:
        status = self.client.status()
        assert status is not None, f"{self.name} does not answer"
        return int(status.pid)

    def statuses(self) -> dict[str, ProcessorStatus | None]:
        """The status of each worker, by slot (the worker's number); None for a worker that does not answer."""
        programs = open_deployer(self.home.settings.paths).programs()
        slots = [name.removeprefix(f"{self.name}-") for name in programs if name.startswith(f"{self.name}-")]
        found = {slot: ProcessorClient(self.name, slot, self.home.settings.paths).status() for slot in sorted(slots)}
        return {slot: status for slot, status in found.items() if slot.isdecimal()}

    def running_pids(self) -> dict[str, int]:
        """The process id of each running worker, by slot (the worker's number)."""
        return {
            slot: each.pid for slot, each in self.statuses().items() if each is not None and each.phase == "running"
        }

    def versions(self) -> dict[str, str]:
        """The code version of each running worker, by slot (the worker's number)."""
        found = self.statuses().items()
        return {slot: each.code_version for slot, each in found if each is not None and each.phase == "running"}

    def deployment(self) -> Deployment:
        """The deployment record of the processor in the registry (Holdfast's database)."""
        with closing(open_registry(self.home.settings)) as registry:
            found = registry.deployment(self.name)
        assert found is not None
        return found

    @property
    def state_folder(self) -> Path:
        """The folder with the state of the processor's tasks."""
        return self.home.settings.paths.state / self.name / "0"

    @property
    def feeder(self) -> Feeder:
        assert self._feeder is not None
        return self._feeder

    # -- the steps of a drill ---------------------------------------------------------------------

    def begin(self) -> None:
        """Deploy the processor with messages that are already processed, and start the feed."""
        self.topics.create(TopicSpec(self.source, PARTITIONS, 1))
        self._feeder = Feeder(self.topics.bootstrap, self.source)
        for number in range(BEFORE):
            self._feeder.send(f"k{number % KEYS}")
        self._feeder.flush()
        with self.home.verbs() as verbs:
            verbs.apply(verbs.plan(Deploy(self.name)), sure=True)
        self.processed()
        self._feeder.start()
        self.green(self.processor_asset, WORKING)

    def feed(self, key: str, count: int) -> None:
        """Feed this number of messages of one key, in addition to the continuous feed."""
        for _ in range(count):
            self.feeder.send(key)
        self.feeder.flush()

    def broken(self) -> None:
        """Record the current time as the time of the fault."""
        self._broke_at = time.time()

    def says(self, key: dg.AssetKey, check: str, *words: str) -> str:
        """Wait until the check fails in Dagster's event log with these words. Returns the check's whole text."""
        assert self._broke_at, "nothing was broken"

        def red() -> Evaluation | None:
            for told in self.home.dagster.evaluations(key, check):
                if told.at >= self._broke_at and not told.passed and all(word in told.words for word in words):
                    return told
            return None

        found = self._wait(red, f"{check} of {key.to_user_string()} to say {words}", key, check)
        self._red = (key, check, found)
        self._acted_at = found.at
        words_shown = self._shown(found.words)
        self.result.said(key.to_user_string(), check, words_shown, found.at - self._broke_at)
        return found.words

    def refused(self, home: Home, command: tuple[str, ...], *words: str) -> str:
        """Run a command that must be refused with these words.

        Returns the text of the refusal. No check reports the fault.
        """
        assert self._broke_at, "nothing was broken"
        told = home.cli(*command, check=False)
        text = " ".join(told.text.replace(str(home.settings.home.parent), "HOME").split())
        assert told.code == EXIT_REFUSED, f"holdfast {' '.join(command)} ended with {told.code}: {text}"
        assert all(word in text for word in words), f"not all of {words} in: {text}"
        self._acted_at = time.time()
        self.result.said("", f"holdfast {' '.join(command)}", text, self._acted_at - self._broke_at)
        return text

    def status_says(self, subject: str, words: str) -> None:
        """Wait until `holdfast status` reports a subject as red with these words."""

        def told() -> str | None:
            found = [each["reason"] for each in self._reasons(subject) if words in each["reason"]]
            return found[0] if found else None

        text = wait_for(told, f"status to say {words!r} of {subject}")
        self._acted_at = time.time()
        self.result.said("", "holdfast status", self._shown(text), self._acted_at - self._broke_at)

    def _shown(self, words: str) -> str:
        """The text without paths of this machine."""
        home = self.home.settings.home
        return words.replace(str(home), "HOME").replace(str(home.parent), "PROJECT").replace(sys.executable, "python")

    def status_is_silent(self, subject: str) -> None:
        """Wait until `holdfast status` reports nothing about a subject."""
        wait_for(lambda: not self._reasons(subject), f"status to say nothing of {subject}")
        self.result.mended(time.time() - self._acted_at)

    def _reasons(self, subject: str) -> list[dict[str, str]]:
        text = self.home.cli("status", "--json", check=False).text
        return [each for each in json.loads(text)["reasons"] if each["subject"] == subject]

    def act(self, *words: str) -> Told:
        """Repair the fault with one `holdfast` command."""
        self._acted_at = self._acted_at if self._acted else time.time()
        self._acted.append(f"`holdfast {shlex.join(words)}`")
        self.result.acted(", then ".join(self._acted))
        return self.home.cli(*words)

    def act_outside(self, what: str, act: Callable[[], object]) -> None:
        """Repair the fault with one action outside of Holdfast."""
        self._acted_at = time.time()
        self.result.acted(what)
        act()

    @property
    def broke_at(self) -> float:
        """The time of the fault, in seconds since the epoch."""
        return self._broke_at

    @property
    def acted_at(self) -> float:
        """The time of the repair action, in seconds since the epoch."""
        return self._acted_at

    def launch(self, job: str, config: dict[str, Any], *assets: dg.AssetKey) -> None:
        """Repair the fault with one run in Dagster."""
        self._acted_at = time.time()
        named = f"materialise `{assets[0].to_user_string()}`" if assets else f"run `{job}`"
        self.result.acted(f"{named} in Dagster")
        run = self.home.dagster.launch(job, config, assets)
        assert self.home.dagster.ended(run) == "SUCCESS", f"run {run} of {job} did not succeed"

    def materialise(self, key: dg.AssetKey) -> str:
        """Materialise an asset in Dagster, as a schedule does. Returns the status of the run."""
        return self.home.dagster.ended(self.home.dagster.launch("__ASSET_JOB", {}, [key]))

    def mended(self) -> None:
        """Wait until the check that reported the fault passes again."""
        assert self._red is not None
        key, check, red = self._red

        def green() -> Evaluation | None:
            newest = self.home.dagster.evaluations(key, check)[0]
            return newest if newest.passed and newest.at > red.at else None

        found = self._wait(green, f"{check} of {key.to_user_string()} to be green again", key, check)
        self.result.mended(found.at - self._acted_at)

    def red_since(self, key: dg.AssetKey, check: str, moment: float, words: str = "") -> None:
        """Wait until a check has failed with these words, after the given moment."""

        def was_red() -> bool:
            told = self.home.dagster.evaluations(key, check)
            return any(not each.passed and each.at > moment and words in each.words for each in told)

        self._wait(was_red, f"{check} of {key.to_user_string()} to be red", key, check)

    def green(self, key: dg.AssetKey, check: str, since: float = 0.0) -> float:
        """Wait until a check passes with a result after ``since``. Returns the time of that result."""

        def is_green() -> Evaluation | None:
            told = self.home.dagster.evaluations(key, check)
            return told[0] if told and told[0].passed and told[0].at > since else None

        found = self._wait(is_green, f"{check} of {key.to_user_string()} to be green", key, check)
        return float(found.at)

    def exact(self, *, outputs: Callable[[dict[str, int]], None] | None = None) -> None:
        """Stop feeding. Prove that each message took effect once in state, changelog and outputs."""
        self.feeder.stop()
        self.processed()
        expected = dict(self.feeder.sent + self.beside)
        assert self.logged() == expected
        (outputs or self.outputs_are)(expected)
        with self.home.verbs() as verbs:
            assert {each.differences for each in verbs.audit(self.name, ())} == {()}
        self.result.exact(sum(expected.values()))

    def outputs_are(self, expected: dict[str, int]) -> None:
        """Assert that each key's outputs are 1 to n, in order and without a repetition."""
        seen = self.sent()
        wrong = {key: seen.get(key) for key, total in expected.items() if seen.get(key) != list(range(1, total + 1))}
        assert not wrong, f"expected {expected}, seen {wrong}"
        assert set(seen) == set(expected)

    def outputs_begin_again(self, expected: dict[str, int]) -> None:
        """Assert the outputs after a rebuild from all input: first the earlier outputs, then 1 to n for each key."""
        for key, seen in self.sent().items():
            total = expected[key]
            assert seen[-total:] == list(range(1, total + 1)), f"{key}: {seen}"
            assert seen[:-total] == list(range(1, len(seen) - total + 1)), f"{key}: {seen}"

    def end(self) -> None:
        """Stop the feed and the processor."""
        if self._feeder is not None:
            self._feeder.stop()
        with self.home.verbs() as verbs:
            verbs.apply(verbs.plan(Stop(self.name)), sure=True)

    def works(self) -> bool:
        """Whether the worker answers that it runs."""
        status = self.client.status()
        return status is not None and status.phase == "running"

    def sent(self) -> dict[str, list[int]]:
        """The committed outputs, by key."""
        seen: dict[str, list[int]] = {}
        for record in self.read(self.sink):
            seen.setdefault((record.key or b"").decode(), []).append(json.loads(record.value or b"0"))
        return seen

    # -- observations ---------------------------------------------------------------------------

    def processed(self) -> None:
        """Wait until all fed messages are committed."""

        def committed() -> bool:
            ends = self.topics.end_offsets(self.source, committed=True)
            at = self.topics.committed_offsets(self.name)
            return all(at.get(Partition(self.source, number), 0) >= end for number, end in ends.items())

        wait_for(committed, f"{self.name} to process all of {self.source}")

    def logged(self, store: str = STORE) -> dict[str, int]:
        """The count of each key, from the changelog."""
        found: dict[str, int] = {}
        changelog = f"{self.name}-{store}-changelog"
        for number, end in self.topics.settled_end_offsets(changelog).items():
            start = self.topics.start_offsets(changelog)[number]
            records = read_range(self.topics.bootstrap, changelog, number, start, end)
            for key, value in fold_changelog(records).items():
                assert key != META_KEY
                found[split_key(key)[0].decode()] = decode_value(value)
        return found

    def open_apply(self, stages: int = 0) -> Any:
        """Return the processor's unfinished apply (execution of a plan).

        None if fewer than ``stages`` of its stages (steps of the plan) are done.
        """
        registry = open_registry(self.home.settings)
        try:
            found = registry.journal.applies(1, processor=self.name, open_only=True)
            return next((each for each in found if len(each.done) >= stages), None)
        finally:
            registry.close()

    def incidents(self) -> list[Any]:
        """The processor's incidents, newest first."""
        registry = open_registry(self.home.settings)
        try:
            return list(registry.incidents(50, processor=self.name))
        finally:
            registry.close()

    def read(self, topic: str) -> list[Any]:
        starts = self.topics.start_offsets(topic)
        ends = sorted(self.topics.settled_end_offsets(topic, PATIENCE_S).items())
        return [
            each
            for number, end in ends
            for each in read_range(self.topics.bootstrap, topic, number, starts[number], end)
        ]

    def _wait(self, condition: Callable[[], Any], what: str, key: dg.AssetKey, check: str) -> Any:
        try:
            return wait_for(condition, what)
        except AssertionError as failed:
            told = [
                f"{one.at - self._broke_at:.1f} s {one.passed} {one.words!r}"
                for one in self.home.dagster.evaluations(key, check)
            ]
            raise AssertionError(f"{failed}; it has said: {told}") from None
