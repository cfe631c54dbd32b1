"""Compares two processes of one group with one process on the same work, on a real broker.

    python -m tests.bench.pair                     600,000 messages, 3 rounds of each
    python -m tests.bench.pair --size 200000 --rounds 1

All messages are written before the start in an open transaction, which hides them from the processes. The transaction
is committed after every process has its partitions. So all messages become visible at once, with one process and with
two. Rates are those of the ``warm`` part of the outputs. CPU is seconds per million messages of all processes together,
including their starts. CPU shows the cost even if processes and broker share few cores.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench.contenders import Work
from tests.bench.measured import RunWrong
from tests.bench.outputs import WARM_AFTER, read_outputs
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.stream import PARTITIONS, bodies, expected, hash_of
from tests.bench.workers import Worker, await_all

KEYS = 10_000
MILLION = 1_000_000
#: The transaction timeout in milliseconds. It is the broker's maximum, because the transaction must stay open until all
#: processes have their partitions.
TRANSACTION_MS = 900_000
#: By number of processes: the name of the measurement in the results.
WAYS = {1: "one process", 2: "two processes"}


@contextmanager
def unseen(work: Work, keys: int) -> Iterator[Producer]:
    """Write the work's messages in an open transaction, which the block commits."""
    producer = Producer(
        {
            "bootstrap.servers": work.bootstrap,
            "transactional.id": f"{work.group}-filler",
            "transaction.timeout.ms": TRANSACTION_MS,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "compression.type": "lz4",
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition, key, value in bodies(work.count, keys):
        while True:
            try:
                producer.produce(work.source, value, key, partition)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RunWrong(f"{work.source} could not be filled")
    yield producer


def share(place: Place, topics: Topics, number: int, processes: int) -> Figures:
    """One run with this number of processes.

    Raises:
        RunWrong: The run failed, or its outputs differ from plain Python's.
    """
    name = f"bench-pair-{place.size}-{number}-{processes}"
    bootstrap, state_dir, keys = place.broker.bootstrap, str(place.folder / name), min(KEYS, place.size)
    work = Work(bootstrap, name, f"{name}-in", f"{name}-out", place.size, "exactly-once", 1.0, state_dir)
    topics.create(TopicSpec(work.source, PARTITIONS, 1))
    topics.create(TopicSpec(work.output, PARTITIONS, 1, {"message.timestamp.type": "LogAppendTime"}))
    workers: list[Worker] = []
    with unseen(work, keys) as filler:
        try:
            for count in range(1, processes + 1):
                workers.append(Worker(work, place.folder / "home", {}))
                _await_runs(workers, workers[-1], PARTITIONS // count)
            filler.commit_transaction(60)
            ends = topics.settled_end_offsets(work.source, 60)
            await_all(lambda: _is_done(topics, work, ends), "all messages", workers)
            cpu_s = sum(worker.stop() for worker in workers)
        finally:
            for worker in workers:
                worker.kill()
    outputs = read_outputs(bootstrap, topics, work.output)
    wanted = hash_of(expected(place.size, keys).items())
    if outputs.count != place.size or hash_of(outputs.final().items()) != wanted:
        raise RunWrong(f"{name} has other outputs than plain Python: {outputs.count} for {place.size} messages")
    first, warm, last = outputs.moments()
    rate = place.size * (1 - WARM_AFTER) / (last - warm)
    shutil.rmtree(state_dir, ignore_errors=True)
    for topic in (work.source, work.output):
        topics.delete(topic)
    return {"rate /s": round(rate), "CPU s/M": cpu_s / place.size * MILLION, "seconds": last - first}


def _await_runs(workers: list[Worker], worker: Worker, count: int) -> None:
    await_all(lambda: len(worker.events("task runs")) >= count, f"{count} tasks to run", workers)


def _is_done(topics: Topics, work: Work, ends: dict[int, int]) -> bool:
    done = topics.committed_offsets(work.group)
    return sum(done.values()) >= sum(ends.values()) - len(ends)


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Run one process and two processes in turns, and yield the figures of each run."""
    topics = Topics(place.broker.bootstrap)
    for number in range(place.rounds):
        for processes, way in WAYS.items():
            yield way, share(place, topics, number, processes)


SCENARIO = Scenario(
    "pair",
    "two processes of one group against one, {size:,} messages, exactly-once, commit every 1 s",
    size=600_000,
    small=2_000,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
