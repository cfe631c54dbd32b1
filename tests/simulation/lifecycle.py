"""Runs random sequences of verbs (operator commands), input, crashes and damage, and checks the result of each.

python -m tests.simulation.lifecycle --seed 17         one seed, with the end of its trace if it fails
python -m tests.simulation.lifecycle --seeds 1000      seeds 0 to 999
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from holdfast.infra.database.registry import Registry
from holdfast.processors.engine.commands import sweep
from tests.simulation.letters import records_in_memory
from tests.simulation.lifecycle_sequence import Sequence
from tests.simulation.lifecycle_world import LifecycleWorld, quiet, virtual_time
from tests.simulation.schedule import plain_schedule
from tests.simulation.scheduler import signals_kept
from tests.simulation.small_portions import tuned
from tests.simulation.verifier import InvariantBroken


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed; ``invariant`` is None if no check failed."""

    seed: int
    invariant: str | None
    detail: str
    struck: int
    told: tuple[str, ...]
    tail: tuple[str, ...] = ()


class LifecycleRunner:
    """Runs seeds in this process, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._template = folder, template_in(folder)

    def run(self, seed: int) -> Outcome:
        """Run a seed. If an invariant breaks or an error is raised, the returned outcome contains it."""
        schedule = quiet(plain_schedule(seed))
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            world = LifecycleWorld(schedule, Path(folder), self._template)
            sequence = Sequence(world)
            former, sweep.ENTRIES_MAX = sweep.ENTRIES_MAX, world.random.choice([1, 2, 3, 10_000])
            invariant, detail = None, ""
            try:
                with signals_kept(), tuned(schedule), virtual_time(world), records_in_memory(world):
                    try:
                        sequence.run()
                    finally:
                        world.end()
            except InvariantBroken as broken:
                invariant, detail = broken.invariant, broken.detail
            except Exception as failure:
                invariant, detail = "simulation", "".join(traceback.format_exception(failure))[-3000:]
            finally:
                sweep.ENTRIES_MAX = former
            tail = tuple(world.simulation.trace_lines(60)) if invariant is not None else ()
            return Outcome(seed, invariant, detail, sequence.struck, tuple(sequence.told), tail)


def template_in(folder: Path) -> Path:
    """Create an empty database of Holdfast's registry in a folder. Each seed starts with a copy of it."""
    template = folder / "template.db"
    registry = Registry(f"sqlite:///{template}")
    registry.migrate()
    registry.close()
    return template


@contextmanager
def lifecycle_runner() -> Iterator[LifecycleRunner]:
    """A runner with its own temporary folder. While the block runs, logging is off."""
    with unlogged_folder() as folder:
        yield LifecycleRunner(folder)


@contextmanager
def unlogged_folder() -> Iterator[Path]:
    """A temporary folder, in memory if the machine allows it. While the block runs, logging is off."""
    former = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False
    )
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            yield Path(folder)
    finally:
        structlog.configure(**former)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Simulated operators.")
    parser.add_argument("--seed", type=int, help="run this one, and print what happened")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    began, failed, struck = time.monotonic(), 0, 0
    with lifecycle_runner() as runner:
        for seed in seeds:
            outcome = runner.run(seed)
            struck += outcome.struck
            if outcome.invariant is not None:
                failed += 1
                print(f"seed {seed} broke {outcome.invariant!r}: {outcome.detail[:1500]}")
            if asked.seed is not None:
                print("\n".join((*outcome.told, *outcome.tail)))
    print(f"{len(seeds)} seeds, {failed} failed, {struck} kills, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
