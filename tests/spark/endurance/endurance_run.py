"""``make endurance``: takes snapshots on a real broker during clears, rebuilds, restores and ``kill -9``.

A processor counts a source topic for the given number of seconds. Snapshots of it are taken one after the other on a
standalone Spark cluster. Meanwhile keys are cleared, the store is rebuilt, the changelog is lost, the input is read
again, and earlier versions are restored. Driver, executor and worker are killed with ``kill -9``. A seed draws the
order.

Every published version of the table (an Iceberg snapshot) is compared with counts that DuckDB computes. DuckDB reads
the source topic up to the version's input offsets. The independent program ``docs/verify.py`` compares each version
with its changelog, its manifest and its base (the version that it extends).
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import structlog

from tests.parts.brokers import started_broker
from tests.spark.endurance.disturbances import WEIGHTS, Disturbances
from tests.spark.endurance.surroundings import PATIENCE_S, Feed, Run, surroundings
from tests.spark.endurance.verdicts import Verdicts

#: Maximum number of snapshots between two disturbances, and maximum pause in seconds after them. Because the pause is
#: random, a disturbance can hit the next snapshot at any of its steps.
QUIET_MAX, BREAK_IN_MAX_S = 3, 5.0
#: Maximum time between two checks of new versions, in seconds.
CHECK_EVERY_S = 60.0


def main() -> int:
    """Run with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.endurance.endurance_run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of load; it starts and ends beside that")
    parser.add_argument("--versions", type=int, default=0, help="the load goes on until so many versions are verified")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one, and prints it")
    parser.add_argument("--bootstrap", default="", help="a broker; without it, one is started")
    parser.add_argument("--folder", type=Path, help="an empty folder for all files; without it, a temporary one")
    given = parser.parse_args()
    # Exit normally, because a normal exit stops the started processes first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    seed = given.seed or random.SystemRandom().randrange(1, 1_000_000)
    with ExitStack() as opened:
        folder = given.folder or Path(opened.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        bootstrap = given.bootstrap or opened.enter_context(started_broker(folder / "kafka")).address.bootstrap
        print(f"seed {seed}, {given.seconds:g} s; {conditions()}", flush=True)
        run = opened.enter_context(surroundings(bootstrap, folder, f"endures-{os.getpid()}-{seed}"))
        return endure(run, seed, given.seconds, given.versions)


def conditions() -> str:
    """The machine, its load, the Python version and the time of the run."""
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def endure(run: Run, seed: int, seconds: float, versions: int) -> int:
    """Feed, disturb and check. Returns 0 if every version is correct."""
    rng = random.Random(seed)
    feed = Feed(run.topics.bootstrap, run.source, random.Random(rng.random()))
    feed.start()
    for request in Disturbances.beginning(run.group):
        run.verbs.apply(plan := run.verbs.plan(request), confirmed=plan.hash)
    run.wait_running()
    verdicts = Verdicts(run, random.Random(rng.random()))
    run.at_end(verdicts.publisher.abandon)
    disturb = Disturbances(run, verdicts.publisher, verdicts.lives, rng, verdicts.before_a_life_ends)
    verdicts.publisher.start()
    verdicts.await_first()
    began, checked = time.monotonic(), time.monotonic()
    # first each disturbance once in random order, then random choices by weight
    waiting = rng.sample(list(WEIGHTS), len(WEIGHTS))
    while time.monotonic() < began + seconds or waiting or len(verdicts.folded) < versions:
        verdicts.pause(rng.randrange(QUIET_MAX + 1), rng.uniform(0.0, BREAK_IN_MAX_S))
        name = disturb.do(waiting.pop()) if waiting else disturb.one()
        if name:
            print(f"{time.monotonic() - began:6.0f} s  {name}; {verdicts.line()}", flush=True)
        if time.monotonic() > checked + CHECK_EVERY_S:
            verdicts.check_published()
            checked = time.monotonic()
    loaded = time.monotonic() - began
    feed.finish()
    verdicts.finish(PATIENCE_S)
    print(f"loaded for {loaded:.0f} s with {feed.sent:,} messages; {conditions()}")
    print(f"disturbances: {dict(sorted(disturb.counts.items()))}; broken off and resumed: {disturb.resumed}")
    print(f"the driver: {dict(sorted(verdicts.publisher.counts.items()))}")
    print(f"why docs/verify.py is unsure: {verdicts.doubts()}")
    print(f"RESULT seed {seed}: {verdicts.line()}; hash {verdicts.hash()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
