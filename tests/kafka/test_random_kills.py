"""kill -9 at random moments: the processor fleet, on a real broker, neither loses nor doubles a flight.

Each round kills the running process at a moment drawn from a seed, be it starting, joining, restoring, processing
or committing, and starts it again at once. Afterwards the state, its changelog and the outputs are compared with what
plain Python makes of the same flights.

By hand, for many rounds: ``python tests/kafka/random_kills.py --rounds 20 --seed 7``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.java import Java
from infra.kafka.broker import EmbeddedBroker
from infra.kafka.reader import read_range
from infra.kafka.records import Partition, TopicSpec
from infra.kafka.topics import Topics
from infra.paths import Paths
from infra.sample_data.feed import DEPARTURES_TOPIC, FLIGHTS_TOPIC, feed
from infra.sample_data.flights import FLIGHTS, read_flights
from orchestration.demo.sequences import check_sequences, committed_updates
from processors.changelog.format import META_KEY, decode_value, split_key
from processors.definitions.fleet import application, update_aircraft
from processors.lifecycle import provision
from processors.state.checkpoint_reader import iterate_checkpoint

PROJECT = Path(__file__).resolve().parent.parent.parent
ROUNDS = int(os.environ.get("HOLDFAST_KILL_ROUNDS", "3"))
#: 0 draws one, and prints it.
SEED = int(os.environ.get("HOLDFAST_KILL_SEED", "0"))
#: So many flights are fed for each round, at this pace.
FLIGHTS_PER_ROUND = 16_000
FLIGHTS_PER_SECOND = 2_000
#: Of the kills so many come after the process has committed something, the others at any moment of its start.
WORKING_SHARE = 0.75
CATCH_UP_S = 120.0


class DictState(dict[str, Any]):
    """One key's state, in plain Python."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default)


class Worker:
    """The real process, started as the supervisor starts it."""

    def __init__(self, home: Path, bootstrap: str) -> None:
        self._log = home / "worker.log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "processors", "--processor", "fleet", "--slot", "0"],
                cwd=PROJECT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def lives_for(self, seconds: float) -> bool:
        """Whether it is still there after so long."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(30)

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])


@pytest.fixture
def own_broker(tmp_path: Path, java: Java, broker_jars: tuple[Path, ...]) -> Iterator[str]:
    """A broker for this test alone: the processors that ship have fixed topics and groups."""
    broker = EmbeddedBroker(tmp_path / "broker", heap_mb=384, java=java, jars=broker_jars)
    yield broker.start().bootstrap
    broker.stop()


@pytest.fixture
def worker(tmp_path: Path, own_broker: str) -> Iterator[Worker]:
    (tmp_path / "home").mkdir()
    worker = Worker(tmp_path / "home", own_broker)
    yield worker
    worker.kill()


def test_no_flight_is_lost_or_doubled(tmp_path: Path, own_broker: str, worker: Worker) -> None:
    rounds, seed = ROUNDS, SEED or random.SystemRandom().randrange(1, 1_000_000)
    print(f"seed {seed}, {rounds} rounds")
    topics = Topics(own_broker)
    topology = application.topology()
    provision.apply(provision.plan(topology, provision.read_facts(topics, topology)), topics)
    topics.create(TopicSpec(DEPARTURES_TOPIC, 4, 1))
    limit = min(FLIGHTS_PER_ROUND * rounds, FLIGHTS)
    feeding = threading.Thread(
        target=feed,
        args=(own_broker,),
        kwargs={"limit": limit, "flights_per_second": FLIGHTS_PER_SECOND},
    )

    moments = random.Random(seed)
    feeding.start()
    worker.start()
    for round_number in range(rounds):
        working, moment = feeding.is_alive() and moments.random() < WORKING_SHARE, moments.uniform(0.05, 3.0)
        if working:
            _await_commit(topics, worker, feeding, seed)
        assert worker.lives_for(moment), f"seed {seed}, round {round_number}: it ended by itself\n{worker.last_words()}"
        done = sum(topics.committed_offsets("fleet").values())
        when = "its first commit" if working else "its start"
        print(f"round {round_number}: kill -9 {moment:.2f} s after {when}, {done} flights committed")
        worker.kill()
        worker.start()
    feeding.join(CATCH_UP_S)
    assert not feeding.is_alive()
    seconds = _await_caught_up(topics, worker, seed)
    print(f"caught up {seconds:.1f} s after the feed's end")
    assert worker.stop() == 0, worker.last_words()

    expected, without_aircraft = _recomputed(limit)
    outputs = check_sequences(
        committed_updates(topics, "fleet-updates"), {key: state["flights"] for key, state in expected.items()}
    )
    assert outputs.mismatches == 0, f"seed {seed}: {outputs}"
    assert outputs.records == limit - without_aircraft
    changelog = _changelog(topics, topology.changelogs[0].topic.name)
    assert {split_key(key)[0].decode(): decode_value(value) for key, value in changelog.items()} == expected, seed
    assert _stored(Paths(tmp_path / "home")) == changelog, f"seed {seed}: store and changelog differ"
    assert _dead_letters(topics) == without_aircraft, seed


def _await_commit(topics: Topics, worker: Worker, feeding: threading.Thread, seed: int) -> None:
    began, before = time.monotonic(), topics.committed_offsets("fleet")
    while feeding.is_alive() and topics.committed_offsets("fleet") == before:
        assert worker.lives_for(0.05), f"seed {seed}: it ended by itself\n{worker.last_words()}"
        assert time.monotonic() - began < CATCH_UP_S, f"seed {seed}: it commits nothing\n{worker.last_words()}"


def _await_caught_up(topics: Topics, worker: Worker, seed: int) -> float:
    began = time.monotonic()
    ends = {Partition(FLIGHTS_TOPIC, n): end for n, end in topics.end_offsets(FLIGHTS_TOPIC, committed=True).items()}
    while topics.committed_offsets("fleet") != ends:
        assert worker.lives_for(0.2), f"seed {seed}: it ended by itself\n{worker.last_words()}"
        assert time.monotonic() - began < CATCH_UP_S, f"seed {seed}: it gets no further\n{worker.last_words()}"
    return time.monotonic() - began


def _recomputed(limit: int) -> tuple[dict[str, Any], int]:
    states: dict[str, DictState] = {}
    without_aircraft = 0
    for flight in read_flights(limit=limit):
        if flight["tailnum"] is None:
            without_aircraft += 1
        else:
            update_aircraft(flight, states.setdefault(flight["tailnum"], DictState()))
    return {tailnum: state["aircraft"] for tailnum, state in states.items()}, without_aircraft


def _changelog(topics: Topics, name: str) -> dict[bytes, bytes]:
    newest: dict[bytes, bytes] = {}
    for partition, end in topics.end_offsets(name, committed=True).items():
        for record in read_range(topics.bootstrap, name, partition, 0, end):
            assert record.key is not None
            assert record.value is not None
            if record.key != META_KEY:
                newest[record.key] = record.value
    return newest


def _stored(paths: Paths) -> dict[bytes, bytes]:
    stored: dict[bytes, bytes] = {}
    for task in sorted(path for path in (paths.state / "fleet" / "0").iterdir() if path.is_dir()):
        stored.update(iterate_checkpoint(task, "aircraft"))
    return stored


def _dead_letters(topics: Topics) -> int:
    name = "fleet-dead-letters"
    places = [
        tuple(
            sorted((field, text) for field, text in record.headers or [] if field.endswith((".partition", ".offset")))
        )
        for partition, end in topics.end_offsets(name, committed=True).items()
        for record in read_range(topics.bootstrap, name, partition, 0, end)
    ]
    assert len(set(places)) == len(places), "a dead letter is there twice"
    return len(places)
