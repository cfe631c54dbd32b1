"""Measures failover on a real broker: a worker is killed and another one takes over, with or without a standby.

    python -m tests.bench.failover                     500,000 changelog records, 3 rounds
    python -m tests.bench.failover --size 200000 --rounds 1

Two workers share four partitions while messages arrive; neither has a checkpoint store. The first is killed with
SIGKILL. ``notices`` is the time until the group assigns its partitions to the second worker (the session timeout).
``takes over`` is the time from then until the last of its tasks runs. ``replayed`` counts the changelog records that
the second worker reads meanwhile. Then the second worker stops, and its state must equal the changelogs.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from tests.bench.contenders import Work
from tests.bench.held import check_state
from tests.bench.measured import RunWrong
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import fill, first_of_each_partition, seed
from tests.bench.stream import PARTITIONS, SeededState, bodies
from tests.bench.workers import Worker, await_all

#: The number of messages in one burst, and the pause between two bursts in seconds.
PORTION, EVERY_S = 500, 0.25
#: The names of the two ways to take over, in the results. A run without a standby takes long and has no goal. So it
#: runs once, and only if the bench has several rounds.
WITH, WITHOUT = "with a standby", "without"


def takeover(work: Work, folder: Path, keys: int, standbys: int) -> Figures:
    """Start two workers, kill the first, and measure the second.

    Raises:
        RunWrong: A step did not finish in time.
    """
    stop, workers = threading.Event(), []
    loading = threading.Thread(target=_load, args=(work, keys, stop))
    loading.start()
    settings = {"HOLDFAST_STANDBY_REPLICAS": str(standbys)}
    try:
        workers.append(one := Worker(work, folder / "home", settings))
        await_all(lambda: len(one.events("task runs")) >= PARTITIONS, "the first worker to run", workers)
        workers.append(two := Worker(work, folder / "home", settings))
        await_all(lambda: len(two.events("task runs")) >= PARTITIONS // 2, "the second worker to run", workers)
        if standbys:
            half = PARTITIONS // 2
            await_all(lambda: len(two.events("standby has the whole changelog")) >= half, "its standbys", workers)
        killed_at = time.time()
        one.kill()
        await_all(lambda: len(two.events("task runs", killed_at)) >= PARTITIONS, "the takeover", [two])
        runs = two.events("task runs", killed_at)
        noticed_at = two.events("partitions assigned", killed_at)[-1]["at"]
        last_at = max(told["at"] for told in runs)
        stop.set()
        loading.join()
        two.stop()
        replayed = sum(told["records"] for told in runs)
        return {"takes over s": last_at - noticed_at, "notices s": noticed_at - killed_at, "replayed": replayed}
    finally:
        stop.set()
        loading.join()
        for worker in workers:
            worker.kill()


def _load(work: Work, keys: int, stop: threading.Event) -> None:
    rows = list(bodies(PORTION, keys))
    while not stop.wait(EVERY_S):
        fill(work.bootstrap, ((work.source, *row, None) for row in rows))


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Run takeovers with a standby. If there are several rounds, run one without a standby as well.

    Raises:
        RunWrong: A takeover with a standby replayed more than a tenth of the changelog. Or a takeover without a standby
            replayed less than a quarter. Or state differs from its changelog.
    """
    topics, records, keys = Topics(place.broker.bootstrap), place.size, max(1, place.size // 2)
    for number, standbys in enumerate(([1, 0] + [1] * place.rounds)[: place.rounds + (place.rounds > 1)]):
        name = f"bench-failover-{records}-{number}"
        state_dir = str(place.folder / name)
        bootstrap = place.broker.bootstrap
        work = Work(bootstrap, name, f"{name}-in", f"{name}-out", 0, "exactly-once", 1.0, state_dir, restore=records)
        for topic in (work.source, work.output):
            topics.create(TopicSpec(topic, PARTITIONS, 1))
        fill(bootstrap, first_of_each_partition(work.source))
        seed("ours", work, topics, SeededState(records, keys))
        figures = takeover(work, place.folder, keys, standbys)
        check_state(work, keys, slot="1")
        shutil.rmtree(state_dir, ignore_errors=True)
        if standbys and figures["replayed"] > max(records // 10, 10_000):
            raise RunWrong(f"with a standby {figures['replayed']} of {records} records were replayed")
        if not standbys and figures["replayed"] < records // 4:
            raise RunWrong(f"without a standby only {figures['replayed']} of {records} records were replayed")
        yield (WITH if standbys else WITHOUT), figures


SCENARIO = Scenario(
    "failover",
    "kill -9 of one of two workers, {size:,} changelog records",
    size=500_000,
    small=20_000,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
