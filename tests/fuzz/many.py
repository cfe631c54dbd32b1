"""Many examples of the property, in processes of their own: ``make fuzz``.

python -m tests.fuzz.many                       100,000 examples, on all cores
python -m tests.fuzz.many --examples 500        fewer
python -m tests.fuzz.many --seed 17             the examples of one share again
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

#: The examples of one seed: a new generator then begins, so that memory stays bounded.
SHARE = 500
#: Where there is one, examples keep their files in this file system: a kill here is one of a process, not of a machine.
IN_MEMORY = Path("/dev/shm")


def run_share(job: tuple[int, int]) -> tuple[int, str]:
    """Check the examples of one seed; returns their number, and the smallest one that fails with its error."""
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
    """The command line."""
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
