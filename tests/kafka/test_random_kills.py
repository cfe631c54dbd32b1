"""Processes on a real broker are killed at random moments. No flight (input message) is lost or counted twice.

Each round kills one process, or all of them, at a random moment: while it starts, joins, restores, processes or
commits. A killed process restarts at once, or stays down for a round so that other processes take over.
Afterwards all state and outputs are compared with results that plain Python computes from the source topic.

Every state folder must hold the state at its own input offsets. For each partition, one folder must hold the state of
all input. Changelogs must match exactly. With exactly-once, each output and dead letter is sent once, in order. With
at-least-once, some outputs may be repeated, but none is missing or wrong.

By hand: ``python tests/kafka/random_kills.py --rounds 100 --processes 3 --guarantee at-least-once --seed 7``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from holdfast.infra.kafka.clients.feeder import Feeder
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition, Record, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.infra.sample_data.flights import FLIGHTS, due_ms, read_flights
from holdfast.processors.definitions.fleet import update_aircraft
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.rocksdb import StateReader

PROJECT = Path(__file__).resolve().parent.parent.parent
PARTITIONS = 4
STORES = ("aircraft", "flown")
#: Maximum rate of the feed. The feed lasts for about as long as the rounds.
FLIGHTS_PER_SECOND = 2_000
SECONDS_PER_ROUND = 8 if "HOLDFAST_KILL_ROUNDS" in os.environ else 5
#: The share of kills for which the test waits for a new commit. The other kills hit a random moment after the start.
WORKING_SHARE = 0.75
#: With several processes: the share of kills that hit all processes at once, and the share after which one process
#: stays down for a round.
ALL_SHARE, AWAY_SHARE = 0.2, 0.3
CATCH_UP_S = 180.0

#: The runs of each test, each as (processes, guarantee, rounds, seed). Seed 0 draws a seed and prints it.
KINDS = [[(processes, "exactly-once", 2, 0), (processes, "at-least-once", 2, 0)] for processes in (2, 1, 3)]
if "HOLDFAST_KILL_ROUNDS" in os.environ:
    _given = {name: os.environ[f"HOLDFAST_KILL_{name}"] for name in ("PROCESSES", "GUARANTEE", "ROUNDS", "SEED")}
    KINDS = [[(int(_given["PROCESSES"]), _given["GUARANTEE"], int(_given["ROUNDS"]), int(_given["SEED"]))]]

DEFINITION = """
import os
from holdfast import Application
from holdfast.processors.definitions.fleet import update_aircraft

application = Application(
    consumer_group=os.environ["KILLS_GROUP"],
    auto_offset_reset="earliest",
    commit_interval=0.25,
    processing_guarantee=os.environ["KILLS_GUARANTEE"],
    dead_letter_topic=os.environ["KILLS_GROUP"] + "-dead",
    consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700},
)

def note_flight(flight, state):
    state.set("ids", [*state.get("ids", []), flight["id"]])
    return flight

def update(flight, state):
    return {"id": flight["id"], **update_aircraft(flight, state)}

flights = application.dataframe(application.topic(application.consumer_group + "-in"))
updates = flights.apply(note_flight, stateful=True, store="flown").apply(update, stateful=True, store="aircraft")
updates.to_topic(application.topic(application.consumer_group + "-out"))
"""


Guarantee = Literal["exactly-once", "at-least-once"]


class DictState(dict[str, Any]):
    """The state of one key, as a model in plain Python."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default)


class Fleet:
    """The worker processes, one for each slot (a worker's place), started as the supervisor starts them."""

    def __init__(self, home: Path, bootstrap: str, group: str, guarantee: Guarantee, processes: int) -> None:
        home.mkdir()
        (home / "kills_definition.py").write_text(DEFINITION)
        self.paths, self.group, self.guarantee, self.topics = Paths(home), group, guarantee, Topics(bootstrap)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
            "PYTHONPATH": f"{PROJECT}{os.pathsep}{home}",
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "HOLDFAST_PROCESSORS": '["kills_definition:application"]',
            "KILLS_GROUP": group,
            "KILLS_GUARANTEE": guarantee,
        }
        self.slots = [str(number) for number in range(processes)]
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def topic(self, name: str) -> str:
        return f"{self.group}-{name}"

    def create_topics(self) -> None:
        for name in ("in", "out", "dead"):
            self.topics.create(TopicSpec(self.topic(name), PARTITIONS, 1))
        for store in STORES:
            config = {"cleanup.policy": "compact", "retention.ms": "-1"}
            self.topics.create(TopicSpec(changelog_topic(self.group, store), PARTITIONS, 1, config))
        self._await_coordinator()

    def _await_coordinator(self) -> None:
        """Wait until the group has a coordinator.

        Without a coordinator, the client library crashes or hangs when it fetches a group's offsets.
        """
        impatient, began = Topics(self.topics.bootstrap, timeout_s=2.0), time.monotonic()
        while True:
            try:
                impatient.members(self.group)
                return
            except KafkaFailed:
                assert time.monotonic() - began < CATCH_UP_S

    def start(self, slot: str) -> None:
        with (self.paths.home / f"worker-{slot}.log").open("ab") as log:
            self.running[slot] = subprocess.Popen(
                [sys.executable, "-m", "holdfast.processors", "--processor", self.group, "--slot", slot],
                cwd=self.paths.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start_absent(self) -> None:
        for slot in self.slots:
            if slot not in self.running:
                self.start(slot)

    def live_for(self, seconds: float) -> None:
        """Let the workers run for some seconds. Assert that none of them exits."""
        deadline = time.monotonic() + seconds
        for slot, process in self.running.items():
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"slot {slot} ended by itself with {code}:\n{self.last_words(slot)}")

    def kill(self, slot: str) -> None:
        process = self.running.pop(slot)
        process.kill()
        process.wait(30)

    def kill_all(self) -> None:
        for slot in list(self.running):
            self.kill(slot)

    def await_running(self) -> None:
        began = time.monotonic()
        while not all(self._is_running(slot) for slot in self.slots):
            self.live_for(0.1)
            assert time.monotonic() - began < CATCH_UP_S, self.last_words("0")

    def _is_running(self, slot: str) -> bool:
        status = ProcessorClient(self.group, slot, self.paths).status()
        return status is not None and status.pid == self.running[slot].pid and status.phase == "running"

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for slot, process in self.running.items():
            assert process.wait(60) == 0, self.last_words(slot)
        self.running.clear()

    def committed(self) -> int:
        return sum(self.topics.committed_offsets(self.group).values())

    def last_words(self, slot: str) -> str:
        log = self.paths.home / f"worker-{slot}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-25:])


class Feed(threading.Thread):
    """Feeds numbered flights at a fixed rate until all are sent, or until ``finish`` is called."""

    def __init__(self, fleet: Fleet, rounds: int) -> None:
        super().__init__(daemon=True)
        self._flights = min(FLIGHTS_PER_SECOND * SECONDS_PER_ROUND * rounds, FLIGHTS)
        self._per_second = self._flights / (SECONDS_PER_ROUND * rounds)
        self._address, self._topic = fleet.topics.bootstrap, fleet.topic("in")
        self._enough = threading.Event()
        self._failed: BaseException | None = None
        self.sent = 0

    def run(self) -> None:
        try:
            self._feed()
        except BaseException as failure:
            self._failed = failure

    def finish(self) -> int:
        """Stop feeding. Returns the number of flights that were sent."""
        self._enough.set()
        self.join(CATCH_UP_S)
        assert not self.is_alive()
        assert self._failed is None, self._failed
        return self.sent

    def _feed(self) -> None:
        encode, began = msgspec.json.Encoder().encode, time.monotonic()
        with Feeder(self._address) as feeder:
            for flight in read_flights(limit=self._flights):
                while not self.sent % 100 and (early := self.sent / self._per_second - (time.monotonic() - began)) > 0:
                    feeder.poll(min(early, 0.2))
                    if self._enough.is_set():
                        return
                key, value = flight["tailnum"], encode({"id": self.sent, **flight})
                feeder.send(self._topic, None if key is None else key.encode(), value, due_ms(flight))
                self.sent += 1


@pytest.fixture
def fleet_of(tmp_path: Path, broker: str, unique: Callable[[str], str]) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(processes: int, guarantee: Guarantee) -> Fleet:
        group = unique("kills")
        made.append(Fleet(tmp_path / group, broker, group, guarantee, processes))
        made[-1].create_topics()
        return made[-1]

    yield make
    for fleet in made:
        fleet.kill_all()


# Only in thorough runs. In `make test`, other tests kill workers at each step of a commit, and behind `group_by`.
@pytest.mark.thorough
@pytest.mark.parametrize("kinds", [pytest.param(kinds, id=f"{kinds[0][0]} processes") for kinds in KINDS])
def test_killed_processes_lose_nothing(
    fleet_of: Callable[..., Fleet], kinds: list[tuple[int, Guarantee, int, int]]
) -> None:
    fleets = [fleet_of(processes, guarantee) for processes, guarantee, _, _ in kinds]
    with ThreadPoolExecutor(len(kinds)) as pool:
        runs = [
            pool.submit(_run, fleet, rounds, seed) for fleet, (_, _, rounds, seed) in zip(fleets, kinds, strict=True)
        ]
    for run in runs:
        run.result()


def _run(fleet: Fleet, rounds: int, seed: int) -> None:
    seed = seed or random.SystemRandom().randrange(1, 1_000_000)
    kind = f"seed {seed}, {rounds} rounds, {len(fleet.slots)} processes, {fleet.guarantee}"
    print(f"\n{kind}", flush=True)
    feed, began = Feed(fleet, rounds), time.monotonic()
    feed.start()
    fleet.start_absent()
    try:
        _kill_at_random(fleet, feed, rounds, random.Random(seed))
        fleet.start_absent()
        flights = feed.finish()
        _await_caught_up(fleet)
        fleet.await_running()
        fleet.stop()
        print(f"caught up; {time.monotonic() - began:.0f} s in all", flush=True)
        print(f"RESULT {kind}: {_verify(fleet, flights=flights)}", flush=True)
    except BaseException:
        print(f"FAILED {kind}", flush=True)
        raise


def _kill_at_random(fleet: Fleet, feed: Feed, rounds: int, moments: random.Random) -> None:
    for number in range(rounds):
        working, moment = moments.random() < WORKING_SHARE, moments.uniform(0.02, 2.5)
        many = len(fleet.slots) > 1
        everyone, away = many and moments.random() < ALL_SHARE, many and moments.random() < AWAY_SHARE
        drawn = moments.choice(sorted(fleet.running))
        if working and feed.is_alive():
            _await_commit(fleet, feed)
        fleet.live_for(moment)
        when = "a commit" if working else "a start"
        victims = sorted(fleet.running) if everyone else [drawn]
        told = f"{fleet.guarantee}, round {number}: kill -9 {','.join(victims)} {moment:.2f} s after {when}"
        print(f"{told}, {fleet.committed()} committed", flush=True)
        for slot in victims:
            fleet.kill(slot)
        for slot in fleet.slots:
            if slot not in fleet.running and not (away and slot == drawn and fleet.running):
                fleet.start(slot)


def _await_commit(fleet: Fleet, feed: Feed) -> None:
    began, before = time.monotonic(), fleet.committed()
    while feed.is_alive() and fleet.committed() == before:
        fleet.live_for(0.02)
        assert time.monotonic() - began < CATCH_UP_S, f"no commit\n{fleet.last_words('0')}"


def _await_caught_up(fleet: Fleet) -> None:
    began, source = time.monotonic(), fleet.topic("in")
    ends = {Partition(source, n): end for n, end in fleet.topics.end_offsets(source, committed=True).items() if end}
    while fleet.topics.committed_offsets(fleet.group) != ends:
        fleet.live_for(0.2)
        assert time.monotonic() - began < CATCH_UP_S, f"it gets no further\n{fleet.last_words('0')}"


# -- expected and actual results ----------------------------------------------------------------------------------

#: The content of one store: (message key, state key) -> value.
StoreContent = dict[tuple[bytes, str], Any]


@dataclass
class Expected:
    """Results that plain Python computes from the source topic."""

    #: For each partition and input offset of a state folder: the content of each store at that offset.
    at: dict[int, dict[int, dict[str, StoreContent]]] = field(default_factory=dict)
    #: For each message key: its outputs in order.
    outputs: dict[bytes, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    #: Topic, partition and offset of each message without a key. These messages become dead letters.
    dead: list[tuple[str, int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)


@dataclass
class Folder:
    """The state of one task as it is stored on disk."""

    path: Path
    partition: int
    inputs: int
    restoring: bool
    offsets: dict[str, int]
    content: dict[str, dict[bytes, bytes]]


def _verify(fleet: Fleet, *, flights: int) -> str:
    folders, exactly_once = _folders(fleet), fleet.guarantee == "exactly-once"
    expected = _expected(fleet, folders)
    assert sum(expected.ends.values()) == flights
    changelogs = {store: _read(fleet.topics, changelog_topic(fleet.group, store)) for store in STORES}
    for folder in folders:
        _compare_folder(folder, changelogs, expected)
    whole = {folder.partition for folder in folders if folder.inputs == expected.ends[folder.partition]}
    assert whole == set(expected.ends), f"no folder has all of partitions {set(expected.ends) - whole}"
    outputs = _read(fleet.topics, fleet.topic("out"))
    dead = _read(fleet.topics, fleet.topic("dead"))
    for partition, end in expected.ends.items():
        found = {store: _decoded(_fold(changelogs[store][partition])) for store in STORES}
        assert found == expected.at[partition][end], f"the changelogs of partition {partition}"
    if exactly_once:
        _compare_outputs_exact(outputs, expected)
    else:
        _compare_outputs_repeated(outputs, expected)
    places = Counter(_place(letter) for letters in dead.values() for letter in letters)
    assert set(places) == set(expected.dead)
    assert not exactly_once or set(places.values()) <= {1}, "a dead letter is there twice"
    sent = sum(map(len, outputs.values()))
    return (
        f"{flights} flights, {sent} outputs ({sent - sum(map(len, expected.outputs.values()))} repeated), "
        f"{sum(places.values())} dead letters ({sum(places.values()) - len(places)} repeated), "
        f"{len(folders)} state folders; lost 0"
    )


def _read(topics: Topics, name: str) -> dict[int, list[Record]]:
    return {
        partition: list(read_range(topics.bootstrap, name, partition, 0, end))
        for partition, end in sorted(topics.settled_end_offsets(name, 60.0).items())
    }


def _folders(fleet: Fleet) -> list[Folder]:
    found = []
    for path in sorted((fleet.paths.state / fleet.group).glob("*/*-[0-9]*")):
        if not path.is_dir():
            continue
        reader = StateReader(path)
        meta = reader.meta()
        if meta is not None:
            content = {store: dict(reader.items(store)) for store in STORES}
            offsets = {store: at.offset for store, at in meta.stores.items()}
            partition = int(path.name.rsplit("-", 1)[1])
            inputs = meta.inputs.get(fleet.topic("in"), 0)
            found.append(Folder(path, partition, inputs, meta.restoring, offsets, content))
        reader.close()
    return found


def _expected(fleet: Fleet, folders: list[Folder]) -> Expected:
    expected, decode = Expected(), msgspec.json.decode
    for partition, records in _read(fleet.topics, fleet.topic("in")).items():
        expected.ends[partition] = end = len(records)
        wanted = {folder.inputs for folder in folders if folder.partition == partition} | {end}
        aircraft: dict[bytes, DictState] = defaultdict(DictState)
        flown: dict[bytes, list[int]] = defaultdict(list)
        expected.at[partition] = snapshots = {}
        for offset in range(end + 1):
            if offset in wanted:
                snapshots[offset] = {
                    "aircraft": {(key, "aircraft"): state["aircraft"] for key, state in aircraft.items()},
                    "flown": {(key, "ids"): list(ids) for key, ids in flown.items()},
                }
            if offset == end:
                break
            record = records[offset]
            assert record.offset == offset
            if record.key is None:
                expected.dead.append((fleet.topic("in"), partition, offset))
                continue
            flight = decode(record.value or b"")
            flown[record.key].append(flight["id"])
            updated = update_aircraft(flight, aircraft[record.key])
            expected.outputs[record.key].append({"id": flight["id"], **updated})
    return expected


def _compare_folder(folder: Folder, changelogs: dict[str, dict[int, list[Record]]], expected: Expected) -> None:
    if folder.restoring:
        # A killed restore left this folder marked as incomplete, and no worker has used it since. So its content does
        # not matter.
        return
    for store in STORES:
        # A folder without an offset counts as 0: the worker was killed before the task first ran, and the folder was
        # not used again.
        at = folder.offsets.get(store, 0)
        records = [record for record in changelogs[store][folder.partition] if record.offset < at]
        assert folder.content[store] == _fold(records), f"{folder.path}, store {store}: not its changelog"
        wanted = expected.at[folder.partition][folder.inputs][store]
        assert _decoded(folder.content[store]) == wanted, f"{folder.path}, store {store}: not its input"


def _fold(records: list[Record]) -> dict[bytes, bytes]:
    folded: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        assert record.value is not None
        if record.key != META_KEY:
            folded[record.key] = record.value
    return folded


def _decoded(folded: dict[bytes, bytes]) -> StoreContent:
    return {split_key(key): decode_value(value) for key, value in folded.items()}


def _compare_outputs_exact(outputs: dict[int, list[Record]], expected: Expected) -> None:
    seen: dict[bytes, list[dict[str, Any]]] = defaultdict(list)
    for records in outputs.values():
        for record in records:
            value = msgspec.json.decode(record.value or b"")
            seen[record.key or b""].append(value)
    assert seen.keys() == expected.outputs.keys()
    for key, wanted in expected.outputs.items():
        assert seen[key] == wanted, f"the outputs of {key!r}"


def _compare_outputs_repeated(outputs: dict[int, list[Record]], expected: Expected) -> None:
    decode = msgspec.json.decode
    seen = [(record.key, decode(record.value or b"")) for records in outputs.values() for record in records]
    wanted = {value["id"]: (key, value) for key, values in expected.outputs.items() for value in values}
    lost = wanted.keys() - {value["id"] for _, value in seen}
    assert not lost, f"{len(lost)} flights have no output, such as {sorted(lost)[:5]}"
    for key, value in seen:
        assert (key, value) == wanted[value["id"]], f"an output of flight {value['id']} is wrong"


def _place(letter: Record) -> tuple[str, int, int]:
    headers = dict(letter.headers or [])
    texts = [(headers[f"holdfast.{name}"] or b"").decode() for name in ("topic", "partition", "offset")]
    return texts[0], int(texts[1]), int(texts[2])
