"""Kills ``own_loop.py`` (kill -9) at a step of its commit, starts it again, and compares everything with plain Python.

    python own_loop_kills.py --broker localhost:9092 --kill-at committed

Without ``--kill-at`` it does so for each step. It makes topics with new names, and deletes them at the end.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from own_loop import PATIENCE_S, QUIET, STEPS, end_of
from rocksdict import Options, Rdict

LOOP = Path(__file__).with_name("own_loop.py")
PARTITIONS, MESSAGES, KEYS = 2, 250, 101
KILLED = -9


class NotExact(AssertionError):
    """Something was lost or doubled."""


def main() -> None:
    """Runs the demonstration with the arguments of the command line."""
    given = argparse.ArgumentParser(description="Kills a loop at each step of its commit, and compares the results.")
    given.add_argument("--broker", default="localhost:9092")
    given.add_argument("--kill-at", choices=STEPS, help="only this step")
    chosen = given.parse_args()
    for step in [chosen.kill_at] if chosen.kill_at else STEPS:
        with tempfile.TemporaryDirectory() as folder:
            demonstrate(chosen.broker, step, Path(folder))


def demonstrate(broker: str, step: str, folder: Path) -> None:
    """Kills the loop at a step, starts it again, and checks outputs, changelog and RocksDB.

    Raises:
        NotExact: Something was lost or doubled.
    """
    name = f"visits-{uuid.uuid4().hex[:8]}"
    topics = [name, f"{name}-counts", f"{name}-changelog"]
    admin = AdminClient({"bootstrap.servers": broker})
    compacted = {"cleanup.policy": "compact"}
    made = [NewTopic(each, PARTITIONS, config=compacted if each.endswith("changelog") else {}) for each in topics]
    for each in admin.create_topics(made).values():
        each.result(PATIENCE_S)
    try:
        truth = fill(broker, name)
        print(f"kill -9 at: {step}")
        # A restore has something to replay only after a kill between the commit and the write.
        for kill in ["committed", "restoring"] if step == "restoring" else [step]:
            run(broker, name, folder, "--kill-at", kill, ends=KILLED)
        run(broker, name, folder, "--until-end", ends=0)
        compare("outputs", outputs(broker, topics[1]), {key: [*range(1, n + 1)] for key, n in truth.items()})
        compare("changelog", changelog(broker, topics[2]), truth)
        compare("RocksDB", rocksdb(folder), truth)
        print(f"  exact: {truth.total()} outputs, {len(truth)} keys in changelog and RocksDB\n", flush=True)
    finally:
        admin.delete_topics(topics)


def fill(broker: str, name: str) -> Counter[str]:
    """Sends the input, and returns the counts that it must give."""
    producer = Producer({"bootstrap.servers": broker})
    keys = [f"visitor-{number * number % KEYS}" for number in range(MESSAGES)]
    for number, key in enumerate(keys):
        producer.produce(name, str(number), key, partition=sum(key.encode()) % PARTITIONS)
    if producer.flush(PATIENCE_S):
        raise NotExact(f"The input did not reach the broker {broker}.")
    return Counter(keys)


def run(broker: str, name: str, folder: Path, *more: str, ends: int) -> None:
    """Runs the loop in a process of its own, and checks how it ends."""
    command = [sys.executable, str(LOOP), "--broker", broker, "--name", name, "--state", str(folder), *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    for line in [*ended.stdout.splitlines(), ended_by(ended.returncode)]:
        print(f"  {line}", flush=True)
    if ended.returncode != ends:
        raise NotExact(f"The loop ended with {ended.returncode}, expected {ends}:\n{ended.stderr}")


def ended_by(code: int) -> str:
    """Says how a process ended."""
    return "killed" if code == KILLED else f"ended with {code}"


def compare(what: str, seen: object, expected: object) -> None:
    """Raises NotExact if something differs."""
    if seen != expected:
        raise NotExact(f"The {what} differ.\nSeen:     {json.dumps(seen, sort_keys=True)}\nExpected: {expected}")


def outputs(broker: str, topic: str) -> dict[str, list[int]]:
    """Reads the committed counts of each key, in their order."""
    found: dict[str, list[int]] = {}
    for key, value in committed(broker, topic):
        found.setdefault(key.decode(), []).append(int(value))
    return found


def changelog(broker: str, topic: str) -> dict[str, int]:
    """Reads the newest committed value of each key."""
    return {key[1:].decode(): int(value) for key, value in committed(broker, topic) if key.startswith(b"k")}


def rocksdb(folder: Path) -> dict[str, int]:
    """Reads all counts of the RocksDBs."""
    found = {}
    for each in folder.iterdir():
        database = Rdict(str(each), Options(raw_mode=True))
        found |= {key[1:].decode(): int(value) for key, value in database.items() if key.startswith(b"k")}
        database.close()
    return found


def committed(broker: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Reads all committed records of a topic."""
    settings = {"bootstrap.servers": broker, "group.id": f"{topic}-check", "isolation.level": "read_committed"}
    reader = Consumer({**settings, "enable.auto.commit": False})
    places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    ends = [end_of({"bootstrap.servers": broker, "log_level": QUIET}, each) for each in places]
    reader.assign(places)
    found, deadline = [], time.monotonic() + PATIENCE_S
    # Markers of transactions have offsets and are no messages, so only the position tells the end.
    while any(at.offset < end for at, end in zip(reader.position(places), ends, strict=True)):
        if time.monotonic() > deadline:
            raise NotExact(f"Topic {topic} could not be read to its ends {ends}.")
        if (message := reader.poll(0.1)) is None:
            continue
        if message.error() is not None:
            raise KafkaException(message.error())
        found.append((message.key(), message.value()))
    reader.close()
    return found


if __name__ == "__main__":
    main()
