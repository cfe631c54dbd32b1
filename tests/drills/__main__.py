"""``python -m tests.drills`` runs all drills from a cold start, and writes their table into docs/drills.md.

python -m tests.drills                     all drills
python -m tests.drills 4 17                only these; the table keeps the lines of the others
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.drills.all_drills import DRILLS
from tests.drills.drill_results import Result, read_results, table_of

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGE = PROJECT / "docs" / "drills.md"
#: The results of the table, one JSON line each; the newest line of each drill counts.
LINES = PROJECT / "docs" / "drills.jsonl"
BEGIN, END = "<!-- begin of the table, written by make drills -->", "<!-- end of the table -->"


def main() -> int:
    """Run the drills, print the table and write it. Returns the exit code of the tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="only these drills")
    wanted = parser.parse_args().numbers or sorted(DRILLS)
    print(f"Drills {', '.join(map(str, wanted))}; {conditions()}", flush=True)
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as results:
        code = _run([each for each in wanted if not DRILLS[each].alone], Path(results.name), ())
        # these drills fill a small disk, which needs private mounts
        code |= _run([each for each in wanted if DRILLS[each].alone], Path(results.name), ("unshare", "-rm"))
        found = read_results(Path(results.name))
    print(table_of(found))
    missing = sorted(set(wanted) - {each.number for each in found})
    print(f"{len(found)} of {len(wanted)} passed" + (f"; failed: {missing}" if missing else ""))
    _write([each for each in found if each.passed])
    return code


def conditions() -> str:
    """The machine, its load, the Python version and the time of the run."""
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f} at the start, "
        f"Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )


def _run(wanted: list[int], results: Path, within: tuple[str, ...]) -> int:
    if not wanted:
        return 0
    names = [f"{number:02}-{DRILLS[number].name}" for number in wanted]
    command = [
        *within,
        sys.executable,
        "-m",
        "pytest",
        "tests/drills/test_drills.py",
        "--tier=thorough",
        "-v",
        "--no-header",
    ]
    environment = {**os.environ, "HOLDFAST_DRILLS_RESULTS": str(results), "HOLDFAST_TEST_NO_SKIPS": "1"}
    return subprocess.run([*command, "-k", " or ".join(names)], cwd=PROJECT, env=environment, check=False).returncode


def _write(found: list[Result]) -> None:
    """Append the results to the file, and write the table again from its newest lines."""
    with LINES.open("a") as file:
        file.writelines(each.line() + "\n" for each in found)
    newest = read_results(LINES)
    LINES.write_text("".join(each.line() + "\n" for each in newest))
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table_of(newest)}\nMeasured on {conditions()}.\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
