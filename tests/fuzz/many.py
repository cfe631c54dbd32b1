"""``make fuzz``: checks the property of ``tests/fuzz/property.py`` with many examples, in several processes.

python -m tests.fuzz.many                       100,000 examples, on all cores
python -m tests.fuzz.many --examples 500        500 examples
python -m tests.fuzz.many --seed 17             only the examples of seed 17, to reproduce a failure
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
from pathlib import Path

import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.property import CASES, Case, check

#: The number of examples per seed. Each seed starts a new generator, which bounds the memory of a process.
SHARE = 500
#: Examples keep their files in this file system in memory, if the machine has one. No disk is needed: the examples kill
#: processes, never the machine.
IN_MEMORY = Path("/dev/shm")


def run_share(job: tuple[int, int]) -> tuple[int, str]:
    """Check the examples of one seed.

    Returns:
        The number of examples that ran, and the smallest failing example with its error; the text is empty if none
        failed.
    """
    number, count = job
    if IN_MEMORY.is_dir():
        tempfile.tempdir = str(IN_MEMORY)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    checked = 0

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(CASES)
    def one(case: Case) -> None:
        nonlocal checked
        checked += 1
        check(case)

    try:
        one()
    except BaseException:
        return checked, f"seed {number}:\n{traceback.format_exc()[-6_000:]}"
    return checked, ""


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Fuzzed messages on the real engine.")
    parser.add_argument("--examples", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, help="only the share of this seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    seeds = range(-(-asked.examples // SHARE)) if asked.seed is None else [asked.seed]
    began, examples, failed = time.monotonic(), 0, 0
    with multiprocessing.get_context("spawn").Pool(asked.jobs, maxtasksperchild=40) as pool:
        jobs = [(number, min(SHARE, asked.examples)) for number in seeds]
        for done, (checked, failure) in enumerate(pool.imap_unordered(run_share, jobs), 1):
            examples += checked
            if failure:
                failed += 1
                print(failure, flush=True)
            if done % 20 == 0 or done == len(jobs):
                print(f"{examples} examples, {failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
