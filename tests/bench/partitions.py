"""Measures the cost of many partitions on a real broker: per message, and at the start of a worker with local state.

    python -m tests.bench.partitions                     1,000,000 messages over 10 and over 1,000 partitions, 3 rounds
    python -m tests.bench.partitions --size 50000 --rounds 1

One worker has all partitions. It runs twice on the same disk, with a clean stop in between. The first run processes all
messages: CPU (seconds per million messages) and rate are those of the ``warm`` part of its outputs. The second run has
about one more message per partition. ``opened`` is the time from its assignment until its last task runs. Outputs must
equal those that plain Python computes from all messages.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench.contenders import Work
from tests.bench.measured import RunWrong, Usage, run_measured
from tests.bench.outputs import WARM_AFTER, read_outputs
from tests.bench.peers import OURS
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import fill
from tests.bench.stream import PARTITIONS, bodies, expected, hash_of, messages

KEYS = 10_000
MILLION = 1_000_000
LIMIT_S = 900.0
#: By number of partitions: the name of the measurement in the results.
WAYS = {10: "10 partitions", 1_000: "1,000 partitions"}


def measured(place: Place, topics: Topics, number: int, partitions: int) -> Figures:
    """One round with this number of partitions.

    Raises:
        RunWrong: The run failed, or its outputs differ from plain Python's.
    """
    name = f"bench-partitions-{place.size}-{number}-{partitions}"
    count, last = place.size, partitions
    work = Work(
        bootstrap=place.broker.bootstrap,
        group=name,
        source=f"{name}-in",
        output=f"{name}-out",
        count=count,
        guarantee="exactly-once",
        commit_s=1.0,
        state_dir=str(place.folder / name),
    )
    topics.create(TopicSpec(work.source, partitions, 1))
    topics.create(TopicSpec(work.output, PARTITIONS, 1, {"message.timestamp.type": "LogAppendTime"}))
    numbers = (message.user % partitions for message in messages(count + last, KEYS))
    rows = zip(numbers, bodies(count + last, KEYS), strict=True)
    records = ((work.source, partition, key, body, None) for partition, (_, key, body) in rows)
    fill(work.bootstrap, islice(records, count))
    usage = _run(place, work)
    _, warm, end = read_outputs(work.bootstrap, topics, work.output).moments()
    fill(work.bootstrap, records)
    again = _run(place, replace(work, count=last))
    outputs = read_outputs(work.bootstrap, topics, work.output)
    wanted = hash_of(expected(count + last, KEYS).items())
    if outputs.count != count + last or hash_of(outputs.final().items()) != wanted:
        raise RunWrong(f"{name} has other outputs than plain Python: {outputs.count} for {count + last} messages")
    shutil.rmtree(work.state_dir, ignore_errors=True)
    for topic in (work.source, work.output, f"{name}-default-changelog"):
        topics.delete(topic)
    many = count * (1 - WARM_AFTER)
    cpu = usage.cpu_between(warm, end) or 0.0
    return {
        "CPU s/M": cpu / many * MILLION,
        "rate /s": round(many / (end - warm)),
        "opened s": again.told["restore_s"],
        "replayed": again.told["restored"],
        "RSS MiB": round(usage.peak_bytes / 2**20),
    }


def _run(place: Place, work: Work) -> Usage:
    command = (sys.executable, "-m", "tests.bench.ours", *work.arguments())
    return run_measured(command, {**OURS, "HOLDFAST_HOME": work.state_dir}, place.broker.pid, LIMIT_S)


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Run the small and the large number of partitions in turns, and yield the figures of each run."""
    topics = Topics(place.broker.bootstrap)
    for number in range(place.rounds):
        for partitions, way in WAYS.items():
            yield way, measured(place, topics, number, partitions)


SCENARIO = Scenario(
    "partitions",
    "one worker with all partitions, {size:,} messages, exactly-once, commit every 1 s; then its start on a warm disk",
    size=1_000_000,
    small=4_000,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
