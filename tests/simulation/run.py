"""Runs seeds of the simulation: one seed with its trace, or thousands on all cores.

python -m tests.simulation.run --seed 17                   one seed, with its trace if an invariant breaks
python -m tests.simulation.run --seeds 10000               seeds 0 to 9999; prints progress and every failing seed
python -m tests.simulation.run --of timed --seeds 5000     with windows, sessions and timers
python -m tests.simulation.run --of grouped --seeds 5000   with a stream grouped by another key
python -m tests.simulation.run --of live --seeds 5000      with a grouped stream, produced while workers run and die
python -m tests.simulation.run --of joined --seeds 5000    with joins of two topics
python -m tests.simulation.run --of sourced --seeds 5000   with a table that is restored from its topic
python -m tests.simulation.run --of scheduled --seeds 5000 with functions of messages and schedules
python -m tests.simulation.run --of called --seeds 5000    with functions behind durable calls, and many crashes
python -m tests.simulation.run --of asked --seeds 5000     with queries at random points, standbys, and many freezes
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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from holdfast.infra.settings import Settings
from tests.simulation.faults import Faults
from tests.simulation.questions import AskedWorld
from tests.simulation.schedule import (
    asked_schedule,
    called_schedule,
    draw_schedule,
    grouped_schedule,
    joined_schedule,
    live_schedule,
    scheduled_schedule,
    sourced_schedule,
    timed_schedule,
)
from tests.simulation.verifier import InvariantBroken
from tests.simulation.world import World

#: A function that draws a seed's schedule, for each kind of processor.
SCHEDULES = {
    "functions": draw_schedule,
    "timed": timed_schedule,
    "grouped": grouped_schedule,
    "live": live_schedule,
    "joined": joined_schedule,
    "sourced": sourced_schedule,
    "scheduled": scheduled_schedule,
    "called": called_schedule,
    "asked": asked_schedule,
}
#: The number of last lines of a failing trace that are printed.
TAIL = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a seed: the broken invariant (None if all invariants hold), and facts about the simulation."""

    seed: int
    invariant: str | None
    detail: str
    trace_hash: str
    points: int
    virtual_s: float
    exits: tuple[str, ...]
    struck: tuple[str, ...]
    tail: tuple[str, ...]
    of: str

    def text(self) -> str:
        """The failure as text for people: the broken invariant, the end of the trace, and how to reproduce it."""
        return "\n".join(
            [
                f"seed {self.seed} broke {self.invariant!r}: {self.detail}",
                *(f"  {line}" for line in self.tail),
                f"trace {self.trace_hash[:16]}, {self.points} points, {self.virtual_s:.1f} virtual seconds",
                f"reproduce: python -m tests.simulation.run --of {self.of} --seed {self.seed}",
            ]
        )


class SeedRunner:
    """Runs seeds in this process, one after the other. ``of`` is the kind of processor, a key of ``SCHEDULES``."""

    def __init__(self, folder: Path, *, of: str = "functions") -> None:
        self._folder, self._of = folder, of
        self._settings = Settings()

    def run(self, seed: int, *, hashed: bool = False) -> Outcome:
        """Run a seed. If an invariant breaks or an error is raised, the returned outcome contains it."""
        schedule = SCHEDULES[self._of](seed)
        world = (AskedWorld if schedule.asked else World)(schedule, self._folder, self._settings)
        faults = Faults(world)
        invariant, detail = None, ""
        try:
            world.run()
        except InvariantBroken as broken:
            invariant, detail = broken.invariant, broken.detail
            if broken.__cause__ is not None:
                detail += "\n" + "".join(traceback.format_exception(broken.__cause__))[-3000:]
        except Exception as failure:
            invariant, detail = "simulation", "".join(traceback.format_exception(failure))[-3000:]
        simulation = world.simulation
        wanted = hashed or invariant is not None
        return Outcome(
            seed=seed,
            invariant=invariant,
            detail=detail,
            trace_hash=simulation.trace_hash if wanted else "",
            points=simulation.points,
            virtual_s=world.clock.monotonic(),
            exits=tuple(type(failure).__name__ for failure in world.exits),
            struck=tuple(kind.value for kind in faults.struck.elements()),
            tail=tuple(simulation.trace_lines(TAIL)) if invariant is not None else (),
            of=self._of,
        )


@contextmanager
def runner(*, of: str = "functions") -> Iterator[SeedRunner]:
    """A runner with its own temporary folder. While the block runs, logging is off."""
    former = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    memory = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
            yield SeedRunner(Path(folder), of=of)
    finally:
        structlog.configure(**former)


def _share(job: tuple[int, int, int], of: str, results: multiprocessing.Queue[Outcome]) -> None:
    first, last, step = job
    with runner(of=of) as seeds:
        for seed in range(first, last, step):
            results.put(seeds.run(seed))


def run_many(first: int, count: int, jobs: int, *, of: str = "functions") -> int:
    """Run many seeds on several cores. Returns the number of seeds that failed."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[Outcome] = context.Queue()
    workers = [
        context.Process(target=_share, args=((first + job, first + count, jobs), of, results), daemon=True)
        for job in range(jobs)
    ]
    for worker in workers:
        worker.start()
    started, failed = time.monotonic(), []
    exits: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    points = 0
    for done in range(1, count + 1):
        outcome = results.get(timeout=600)
        exits.update(outcome.exits)
        struck.update(outcome.struck)
        points += outcome.points
        if outcome.invariant is not None:
            failed.append(outcome)
            print(outcome.text(), flush=True)
        if done % 500 == 0 or done == count:
            spent = time.monotonic() - started
            print(f"{done} seeds, {len(failed)} failed, {spent:.0f} s, {1000 * spent / done:.1f} ms each", flush=True)
    for worker in workers:
        worker.join()
    print(f"{points} points; faults: {dict(struck.most_common())}")
    print(f"exits that were recovered from: {dict(exits.most_common())}")
    if failed:
        print("failing seeds:", " ".join(str(outcome.seed) for outcome in sorted(failed, key=lambda out: out.seed)))
    return len(failed)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Simulated schedules of the production engine.")
    parser.add_argument("--seed", type=int, help="run this one, and print its trace")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--of", choices=sorted(SCHEDULES), default="functions", help="what the processors do")
    asked = parser.parse_args()
    if asked.seed is None:
        return 1 if run_many(asked.first, asked.seeds, asked.jobs, of=asked.of) else 0
    with runner(of=asked.of) as seeds:
        outcome = seeds.run(asked.seed, hashed=True)
    if outcome.invariant is None:
        print(f"seed {asked.seed} holds; trace {outcome.trace_hash[:16]}, {outcome.points} points")
        return 0
    print(outcome.text())
    return 1


if __name__ == "__main__":
    sys.exit(main())
