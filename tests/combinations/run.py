"""Runs seeds of the combination tests: each seed is a topology, which runs under several schedules.

python -m tests.combinations.run --seeds 5000 --from 0     seeds 0 to 4999; prints progress and every failing seed
python -m tests.combinations.run --seeds 50000 --jobs 2    seeds 0 to 49999, on two processes
python -m tests.combinations.run --seed 17                 one seed; prints its topology if it fails
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from tests.combinations.draw import draw_topology
from tests.combinations.judge import Result, Wrong
from tests.combinations.schedules import REFERENCE, Schedule, draw_schedules, reference_of
from tests.combinations.shrink import shrunk
from tests.combinations.topology import Topology
from tests.combinations.trial import Trial

#: The number of schedules of each seed.
SCHEDULES = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a seed. A failure has its kind and its schedule; the kind is empty if all schedules passed."""

    seed: int
    topology: Topology
    schedule: Schedule | None = None
    kind: str = ""
    detail: str = ""

    def text(self) -> str:
        """The failure as text for people."""
        schedule = self.schedule.text() if self.schedule is not None else "no schedule"
        return f"seed {self.seed}: {self.kind}: {self.detail}\n{schedule}\n{self.topology.code()}"


def outcome_of(seed: int, topology: Topology, schedules: list[Schedule], folder: Path) -> Outcome:
    """Run a topology under each schedule and under the schedule's reference, until one result differs."""
    known: dict[Schedule, Result] = {}
    schedule = REFERENCE
    try:
        for schedule in schedules:
            reference = reference_of(topology, schedule)
            if reference not in known:
                known[reference] = run(topology, reference, folder)
            expected = known[reference]
            wrong = expected.differs(run(topology, schedule, folder, expected), schedule)
            if wrong is not None:
                raise wrong
    except Wrong as wrong:
        cause = "\n" + "".join(traceback.format_exception(wrong.__cause__))[-2500:] if wrong.__cause__ else ""
        return Outcome(seed, topology, schedule, wrong.kind, wrong.detail + cause)
    except Exception as failure:
        return Outcome(seed, topology, schedule, "net", "".join(traceback.format_exception(failure))[-2500:])
    return Outcome(seed, topology)


def shrunk_of(outcome: Outcome, folder: Path, attempts: int = 150) -> Outcome:
    """Reduces topology, input and schedule as long as the failure is of the same kind; returns the last failure."""
    assert outcome.schedule is not None
    last = outcome

    def shows(topology: Topology, schedule: Schedule) -> bool:
        nonlocal last
        seen = outcome_of(outcome.seed, topology, [schedule], folder)
        if seen.kind == outcome.kind:
            last = seen
        return seen.kind == outcome.kind

    topology, schedule = shrunk(outcome.topology, outcome.schedule, shows, attempts)
    return replace(last, topology=topology, schedule=schedule)


def run(topology: Topology, schedule: Schedule, folder: Path, expected: Result | None = None) -> Result:
    """Runs a topology once under a schedule."""
    return Trial(topology, schedule, folder, expected).run()


def run_seed(seed: int, folder: Path, schedules: int = SCHEDULES, also: tuple[str, ...] = ()) -> Outcome:
    """Runs a seed's topology under this many schedules, each with these further changes to the declaration."""
    topology = draw_topology(seed)
    drawn = draw_schedules(topology, seed, schedules)
    return outcome_of(seed, topology, [replace(each, changes=(*each.changes, *also)) for each in drawn], folder)


@contextmanager
def quiet() -> Iterator[Path]:
    """A temporary folder for lock files. While the block runs, logging is off."""
    former = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    memory = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
            yield Path(folder)
    finally:
        structlog.configure(**former)


def _share(first: int, last: int, step: int, shrinks: bool) -> int:
    """Runs every ``step``-th seed, prints those that fail, and returns their number."""
    began, failed = time.monotonic(), 0
    with quiet() as folder:
        for done, seed in enumerate(range(first, last, step), 1):
            outcome = run_seed(seed, folder)
            if outcome.kind:
                failed += 1
                print(outcome.text(), flush=True)
                if shrinks and outcome.kind != "net":
                    small = shrunk_of(outcome, folder)
                    print(f"shrunk: {small.text()}{small.topology.script()}", flush=True)
            if done % 50 == 0:
                spent = time.monotonic() - began
                print(f"seed {seed}: {done} done, {failed} failed, {spent / done:.2f} s each", flush=True)
    return failed


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Seeded topologies under schedules.")
    parser.add_argument("--seed", type=int, help="run this one, and shrink it if it fails")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--shrink", type=int, default=1, help="0 prints failing seeds as they are")
    asked = parser.parse_args()
    first, count = (asked.seed, 1) if asked.seed is not None else (asked.first, asked.seeds)
    jobs = max(1, min(asked.jobs, count))
    shares = [(first + job, first + count, jobs, bool(asked.shrink)) for job in range(jobs)]
    if jobs == 1:
        failed = _share(*shares[0])
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            failed = sum(pool.starmap(_share, shares))
    print(f"{count} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
