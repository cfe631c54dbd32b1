"""The engine against the raw client, in one run on one real broker: ``make bench``.

The *floor* reads and writes every message unchanged, with the raw client, in transactions of one second: what Kafka
and the client library cost by themselves. *Ours* is an ordinary Python function with a running count, total, least
and greatest value of each key, one output for each input, exactly-once, commits every second.

Invariants:
    - Both take turns on the same messages, each time in a new process with a new group, output topic and state.
    - A rate is messages by the seconds from the first message to the end of the process's work (last commit, clients
      closed). CPU seconds and peak memory are those of the whole process, its start included.
    - Every run's outputs are read back: one for each input; the final state of each key in ours has the hash that
      plain Python computes from the messages. Anything else ends with exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, libversion

from infra.jars import JarSource, fetch_jars
from infra.java import Java, find_java
from infra.kafka.broker import EmbeddedBroker
from infra.kafka.feeder import Feeder
from infra.kafka.reader import read_range
from infra.kafka.records import Record, TopicSpec
from infra.kafka.topics import Topics, TransactionUndecided
from infra.settings import load_settings
from processors import Application, State

PROJECT = Path(__file__).resolve().parent.parent.parent
SOURCE = "bench-in"
MESSAGE_BYTES = 119
PARTITIONS = 4
RECORDS_PER_POLL = 2_000
COMMIT_INTERVAL_S = 1.0
#: A run without any message for so long has failed, in seconds.
SILENCE_S = 60.0
#: How long the last transaction's markers may take, in seconds.
SETTLE_S = 30.0
#: The first event's time; each message is one millisecond later. Fixed, so that every run has the same bytes.
FIRST_TIMESTAMP_MS = 1_735_689_600_000
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: ``rate`` in messages per second, CPU seconds and peak memory of its whole process."""

    rate: float
    cpu_s: float
    peak_bytes: int


class RunWrong(Exception):
    """A run ended without the outputs that it must have."""


def messages(count: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, the same ones each time: JSON of 119 bytes."""
    for number in range(count):
        key = f"k{(number * 2_654_435_761 % 2**32) % keys:06d}"
        fields = {"key": key, "sequence": number, "value": number * 7_919 % 1_000 - 250, "note": ""}
        fields["note"] = "n" * (MESSAGE_BYTES - len(_json(fields)))
        yield key.encode(), _json(fields)


def expected(count: int, keys: int) -> dict[bytes, dict[str, int]]:
    """The final state of each key, in plain Python."""
    state: dict[bytes, dict[str, int]] = {}
    for key, body in messages(count, keys):
        value = json.loads(body)["value"]
        seen = state.get(key)
        state[key] = {
            "count": (seen["count"] if seen else 0) + 1,
            "total": (seen["total"] if seen else 0) + value,
            "min": min(seen["min"], value) if seen else value,
            "max": max(seen["max"], value) if seen else value,
        }
    return state


def hash_of(state: dict[bytes, dict[str, int]]) -> str:
    """sha256 over the keys in order, each with its count, total, least and greatest value."""
    digest = hashlib.sha256()
    for key, of in sorted(state.items()):
        digest.update(b"%s %d %d %d %d\n" % (key, of["count"], of["total"], of["min"], of["max"]))
    return digest.hexdigest()


# -- what is measured, each in a process of its own -----------------------------------------------------------------


def run_floor(bootstrap: str, name: str, count: int) -> float:
    """Copy ``count`` messages with the raw client; the seconds from the first one on."""
    # The client settings of the engine, so that the difference is the engine and nothing else.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "range",
            "fetch.wait.max.ms": 50,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 15_000,
            "linger.ms": 5,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(30)
    consumer.subscribe([SOURCE])
    done, started = 0, 0.0
    last_seen = time.monotonic()
    while done < count:
        producer.begin_transaction()
        commit_at = time.monotonic() + COMMIT_INTERVAL_S
        while done < count and time.monotonic() < commit_at:
            batch = consumer.consume(RECORDS_PER_POLL, 0.1)
            if batch:
                last_seen = time.monotonic()
                started = started or last_seen
            elif time.monotonic() - last_seen > SILENCE_S:
                raise RunWrong(f"the floor got {done} of {count} messages, then none for {SILENCE_S:g} s")
            for message in batch:
                if message.error() is not None:
                    raise RunWrong(f"the floor can't read {SOURCE}: {message.error()}")
                producer.produce(f"{name}-out", message.value(), message.key(), timestamp=message.timestamp()[1])
            done += len(batch)
            producer.poll(0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
    consumer.close()
    return time.monotonic() - started


def run_ours(bootstrap: str, name: str, count: int) -> float:
    """Run the function over ``count`` messages in the engine; the seconds from the first one on."""
    started: list[float] = []

    def statistics_of_key(value: dict[str, Any], state: State) -> dict[str, Any]:
        if not started:
            started.append(time.monotonic())
        number = value["value"]
        seen: dict[str, Any] | None = state.get("statistics")
        if seen is None:
            seen = {"count": 1, "total": number, "min": number, "max": number}
        else:
            seen["count"] += 1
            seen["total"] += number
            seen["min"] = min(seen["min"], number)
            seen["max"] = max(seen["max"], number)
        state.set("statistics", seen)
        return seen

    application = Application(
        bootstrap,
        consumer_group=name,
        auto_offset_reset="earliest",
        commit_interval=COMMIT_INTERVAL_S,
        processing_guarantee="exactly-once",
        loglevel="WARNING",
    )
    frame = application.dataframe(application.topic(SOURCE)).apply(statistics_of_key, stateful=True)
    frame.to_topic(application.topic(f"{name}-out"))
    application.run(count=count, timeout=SILENCE_S)
    if not started:
        raise RunWrong(f"the engine got none of {count} messages")
    return time.monotonic() - started[0]


CONTENDERS: dict[str, Callable[[str, str, int], float]] = {"floor": run_floor, "ours": run_ours}


def measured_process(contender: str, bootstrap: str, name: str, count: int) -> int:
    """What a measured process does: its work, then one line of JSON about it."""
    seconds = CONTENDERS[contender](bootstrap, name, count)
    print(json.dumps({"seconds": seconds, "peak_bytes": _peak_bytes()}))
    return 0


# -- measuring ------------------------------------------------------------------------------------------------------


class Bench:
    """The measured runs on one broker.

    Args:
        bootstrap: The broker.
        home: A folder for the runs' state.
        count: The number of messages.
        keys: The number of keys.
    """

    def __init__(self, bootstrap: str, home: Path, count: int, keys: int) -> None:
        self._bootstrap, self._home, self._count, self._keys = bootstrap, home, count, keys
        self._topics = Topics(bootstrap)
        self.hashes: set[str] = set()

    def feed(self) -> None:
        """Produce the messages."""
        self._topics.create(TopicSpec(SOURCE, PARTITIONS, 1))
        with Feeder(self._bootstrap) as feeder:
            for number, (key, value) in enumerate(messages(self._count, self._keys)):
                feeder.send(SOURCE, key, value, FIRST_TIMESTAMP_MS + number)

    def run(self, contender: str, number: int) -> Measured:
        """One run, and the check of its outputs.

        Raises:
            RunWrong: It failed, or its outputs are not what they must be.
        """
        name = f"bench-{contender}-{number}"
        self._topics.create(TopicSpec(f"{name}-out", PARTITIONS, 1))
        environment = {**os.environ, "HOLDFAST_HOME": str(self._home / name), "PYTHONPATH": str(PROJECT)}
        command = [sys.executable, __file__, "--only", contender, self._bootstrap, name, str(self._count)]
        before = _children_cpu_s()
        process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        cpu_s = _children_cpu_s() - before
        if process.returncode != 0:
            raise RunWrong(f"{name} ended with exit code {process.returncode}; what it said is above")
        told = json.loads(process.stdout.splitlines()[-1])
        self._check(contender, name)
        return Measured(self._count / told["seconds"], cpu_s, told["peak_bytes"])

    def _check(self, contender: str, name: str) -> None:
        count, final = 0, {}
        for record in self._outputs(f"{name}-out"):
            count += 1
            final[record.key or b""] = record.value or b"{}"
        if count != self._count:
            raise RunWrong(f"{name} has {count} outputs for {self._count} messages")
        if contender == "ours":
            self.hashes.add(hash_of({key: json.loads(value) for key, value in final.items()}))

    def _outputs(self, topic: str) -> Iterator[Record]:
        for partition, end in sorted(self._topics.settled_end_offsets(topic, SETTLE_S).items()):
            yield from read_range(self._bootstrap, topic, partition, 0, end)


def conditions(given: argparse.Namespace, java: Java, jars: Iterable[Path]) -> str:
    """Where and on what was measured."""
    kafka = next((jar.stem.rpartition("-")[2] for jar in jars if jar.name.startswith("kafka-server-")), "?")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("confluent-kafka", "rocksdict", "msgspec"))
    return "\n".join(
        (
            f"machine    {os.cpu_count()} cores, {platform.system()} {platform.machine()}; the broker runs on it too",
            f"python     {platform.python_implementation()} {platform.python_version()}",
            f"versions   Kafka {kafka} (Java {java.version}), librdkafka {libversion()[0]}, {libraries}",
            f"messages   {given.messages:,} of {MESSAGE_BYTES} bytes, {given.keys:,} keys, {PARTITIONS} partitions",
            f"runs       {given.rounds} of each, in turns; one process; commit every {COMMIT_INTERVAL_S:g} s",
        )
    )


def table(runs: dict[str, list[Measured]], count: int) -> str:
    """The results, one line for each contender; the ratio is that of the median rates."""
    lines = [f"{'':<6} {'best':>10} {'median':>10} {'CPU s per':>10} {'peak':>9} {'ratio to':>9}"]
    lines.append(f"{'':<6} {'msg/s':>10} {'msg/s':>10} {'million':>10} {'RSS MiB':>9} {'floor':>9}")
    floor = statistics.median(run.rate for run in runs["floor"])
    for name, measured in runs.items():
        rates = [run.rate for run in measured]
        cpu_s = statistics.median(run.cpu_s for run in measured) / count * 1_000_000
        peak = max(run.peak_bytes for run in measured) / MIB
        median = statistics.median(rates)
        lines.append(
            f"{name:<6} {max(rates):>10,.0f} {median:>10,.0f} {cpu_s:>10.2f} {peak:>9.0f} {median / floor:>9.2f}"
        )
    return "\n".join(lines)


def measure(given: argparse.Namespace) -> int:
    """Start a broker, run everything, print it; the exit code."""
    settings, java = load_settings(), find_java()
    jars = fetch_jars("broker", settings.cache, JarSource(java, settings.ivy_settings))
    wanted = hash_of(expected(given.messages, given.keys))
    print(conditions(given, java, jars), flush=True)
    runs: dict[str, list[Measured]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        broker = EmbeddedBroker(Path(folder) / "broker", heap_mb=512, java=java, jars=jars)
        try:
            bench = Bench(broker.start().bootstrap, Path(folder), given.messages, given.keys)
            bench.feed()
            for number in range(1, given.rounds + 1):
                for name, done in runs.items():
                    done.append(bench.run(name, number))
                    print(f"run {number}      {name:<6} {done[-1].rate:>10,.0f} msg/s", flush=True)
        except (RunWrong, TransactionUndecided) as wrong:
            print(f"WRONG      {wrong}", file=sys.stderr)
            return 1
        finally:
            broker.stop()
    print(table(runs, given.messages))
    print(f"result     sha256 {' '.join(sorted(bench.hashes))}")
    if bench.hashes != {wanted}:
        print(f"WRONG      plain Python's result has sha256 {wanted}", file=sys.stderr)
        return 1
    print(f"           the same in all {given.rounds} runs of ours and in plain Python")
    return 0


def main(arguments: list[str]) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog="engine.py", description="Measure the engine against the raw client.")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs=4, metavar=("CONTENDER", "BOOTSTRAP", "NAME", "COUNT"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.only is not None:
        contender, bootstrap, name, count = given.only
        return measured_process(contender, bootstrap, name, int(count))
    if min(given.messages, given.keys, given.rounds) < 1:
        parser.error("--messages, --keys and --rounds are at least 1")
    # The broker would outlive us: an ended bench takes it along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return measure(given)


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _peak_bytes() -> int:
    """This process's own peak memory. Linux' rusage has the starter's in it, so it is asked elsewhere there."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
