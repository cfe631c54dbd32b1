"""A script that runs the kills of ``test_random_kills.py`` by hand, for a chosen number of rounds."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run the rounds. Returns 0 if no message was lost and none was doubled beyond the processing guarantee."""
    parser = argparse.ArgumentParser(description="kill -9 a processor's processes at random moments, then verify.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1, help="how many share the work, one slot each")
    parser.add_argument("--guarantee", choices=("exactly-once", "at-least-once"), default="exactly-once")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one, and prints it")
    given = parser.parse_args()
    here = Path(__file__).resolve()
    wanted = {f"HOLDFAST_KILL_{name.upper()}": str(value) for name, value in vars(given).items()}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--timeout", str(600 + given.rounds * 40)]
    target = str(here.parent / "test_random_kills.py")
    return subprocess.run([*command, target], cwd=here.parents[2], env={**os.environ, **wanted}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
