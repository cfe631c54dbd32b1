"""Runs random courses of operation (simulated sequences of operators' commands and faults) on one installation.

The recovery sensor is a part of the simulation. A quiet period follows each course. After it, the machine must match
Holdfast's registry. Otherwise status must be red and name an action that repairs the machine.

python -m tests.simulation.operation --seed 17         one seed; a failing course is reduced to the steps that it needs
python -m tests.simulation.operation --seeds 1000      seeds 0 to 999
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.simulation.lifecycle import template_in, unlogged_folder
from tests.simulation.lifecycle_world import quiet
from tests.simulation.operation_course import CourseRun
from tests.simulation.operation_draw import draw_course, has_letters
from tests.simulation.operation_steps import Course
from tests.simulation.operation_undo import undo_files_checked
from tests.simulation.operation_watched import WatchedWorld
from tests.simulation.operation_world import parts_of_operation
from tests.simulation.schedule import plain_schedule
from tests.simulation.scheduler import signals_kept
from tests.simulation.small_portions import tuned
from tests.simulation.verifier import InvariantBroken

#: The number of courses (simulated sequences of commands and faults) in `make test-thorough`, of those in
#: ``test_operation.py``, and in one test case. `make test` runs two cases.
COURSES, FIRST, SHARE = 5_000, 100, 25
#: The number of test files in ``tests/simulation/courses``.
FILES = 7


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one course (a simulated sequence of operators' commands and faults).

    ``invariant`` is the name of the check that failed; None if no check failed.
    """

    seed: int
    invariant: str | None
    detail: str
    course: Course
    told: tuple[str, ...]
    tail: tuple[str, ...] = ()
    #: The number of actions that status has named and the runner has carried out.
    acted: int = 0

    @property
    def story(self) -> str:
        """The report of one course (a simulated sequence of commands and faults), as text.

        It has the steps of the course, the lines that the run logged, and the details of the failed check.
        """
        return "\n".join((*map(str, self.course), "", *self.told, "", self.detail))


class OperationRunner:
    """Runs courses (simulated sequences of commands and faults) in this process, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._template = folder, template_in(folder)

    def run(self, seed: int, course: Course | None = None) -> Outcome:
        """Run a course (sequence of commands and faults), by default the one that is drawn from the seed.

        A broken invariant or an error is in the outcome; it is not raised.
        """
        schedule = replace(quiet(plain_schedule(seed)), checkpoint_s=1_000.0, dead_letters=has_letters(seed))
        course = draw_course(seed) if course is None else course
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            world = WatchedWorld(schedule, Path(folder), self._template)
            run = CourseRun(world, course)
            invariant, detail = None, ""
            try:
                files = undo_files_checked(world) if run.writes_files else nullcontext()
                with signals_kept(), tuned(schedule), parts_of_operation(world), files:
                    try:
                        run.run()
                    finally:
                        world.end()
                        run.sensor.queue.close()
            except InvariantBroken as broken:
                invariant, detail = broken.invariant, broken.detail
            except Exception as failure:
                invariant, detail = "simulation", "".join(traceback.format_exception(failure))[-3000:]
            tail = tuple(world.simulation.trace_lines(60)) if invariant is not None else ()
            return Outcome(seed, invariant, detail, course, tuple(run.told), tail, run.acted)

    def shrink(self, outcome: Outcome) -> Outcome:
        """Find a shorter course (sequence of commands and faults) that fails in the same way.

        Steps are left out one after the other. A step stays in the course if the same invariant does not break without
        it.
        """
        at = 0
        while at < len(outcome.course):
            fewer = self.run(outcome.seed, outcome.course[:at] + outcome.course[at + 1 :])
            if fewer.invariant == outcome.invariant:
                outcome = fewer
            else:
                at += 1
        return outcome


def shares(file: int) -> range:
    """The first seeds of the test cases in one file of ``tests/simulation/courses``. Files count from 0.

    A test case (share) runs the courses (sequences of commands and faults) of ``SHARE`` consecutive seeds.
    ``test_operation.py`` has the first ``FIRST`` seeds. `make test-thorough` also runs these files, with the rest of
    the ``COURSES`` seeds.
    """
    first, each = FIRST, (COURSES - FIRST) // FILES
    return range(first + file * each, first + (file + 1) * each, SHARE)


def check_share(runner: OperationRunner, first: int) -> None:
    """Run the courses (sequences of commands and faults) of ``SHARE`` seeds, from the seed ``first``.

    Raises:
        pytest.fail.Exception: A course broke an invariant. The message has the steps that are needed to reproduce it.
    """
    for seed in range(first, first + SHARE):
        outcome = runner.run(seed)
        if outcome.invariant is not None:
            pytest.fail(f"seed {seed} broke {outcome.invariant!r}:\n{runner.shrink(outcome).story}")


@contextmanager
def operation_runner() -> Iterator[OperationRunner]:
    """A runner with its own temporary folder. While the block runs, logging is off."""
    with unlogged_folder() as folder:
        yield OperationRunner(folder)


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Simulated operation.")
    parser.add_argument("--seed", type=int, help="run this one, and print what happened")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    began, failed, acted = time.monotonic(), 0, 0
    with operation_runner() as runner:
        for seed in seeds:
            outcome = runner.run(seed)
            acted += outcome.acted
            if outcome.invariant is not None:
                failed += 1
                print(f"seed {seed} broke {outcome.invariant!r}: {outcome.detail[:1500]}", flush=True)
            if asked.seed is not None:
                shown = outcome if outcome.invariant is None else runner.shrink(outcome)
                print("\n".join((shown.story, *shown.tail)))
    print(f"{len(seeds)} courses, {failed} failed, {acted} named actions run, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
