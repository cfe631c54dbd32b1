"""Lists known vulnerabilities of the locked packages with pip-audit: ``make advisories``.

pip-audit asks an advisory service over the network. If no service answers, this program reports that; it never treats
a missing answer as a good result.

Exit codes: 0 without known vulnerabilities, or without a service (then stdout says so); 1 with known vulnerabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent.parent
#: Time limits of the service for one package, and for all packages, in seconds.
ONE_WITHIN_S, ALL_WITHIN_S = 60.0, 900.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an audit: vulnerabilities as sentences, and the number of packages that were not judged."""

    judged: int
    unjudged: int
    holes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        if not self.judged:
            return "Advisories were NOT checked: no advisory service answers from this machine. Run it where one does."
        left = f"; {self.unjudged} packages were NOT judged" if self.unjudged else ""
        found = "\n".join(self.holes) or "no known hole"
        return f"Advisories of {self.judged} packages: {found}{left}."


def verdict(output: str) -> Verdict:
    """The verdict in pip-audit's JSON output; a skipped package counts as not judged."""
    try:
        rows: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Verdict(0, 0, ())
    judged = [row for row in rows if "skip_reason" not in row]
    holes = tuple(
        f"{row['name']} {row['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version'}"
        for row in judged
        for hole in row["vulns"]
    )
    return Verdict(len(judged), len(rows) - len(judged), holes)


def ask(requirements: str, within_s: float) -> Verdict:
    """The advisory service's verdict on these pinned packages."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(requirements)
        command = [sys.executable, "-m", "pip_audit", "-r", str(file), "--no-deps", "--disable-pip", "-f", "json"]
        command += ["--progress-spinner", "off", "--cache-dir", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)
        except subprocess.TimeoutExpired:
            return Verdict(0, 0, ())
    return verdict(done.stdout)


def main() -> int:
    """Audit one package first. If no service answers, skip the other packages."""
    lock = (PROJECT / "requirements.lock").read_text()
    pins = [line.split(" ")[0] for line in lock.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    found = ask(pins[0] + "\n", ONE_WITHIN_S)
    if found.judged:
        found = ask("\n".join(pins) + "\n", ALL_WITHIN_S)
    print(found.sentence)
    return 1 if found.holes else 0


if __name__ == "__main__":
    sys.exit(main())
