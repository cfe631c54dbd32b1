"""Runs ``docs/verify.py`` as an independent user does, in a Python environment without Holdfast."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.properties import warehouse_location
from holdfast.processors.snapshots.names import SNAPSHOT_TAG

VERIFIER = Path(__file__).resolve().parents[2] / "docs" / "verify.py"
CHECKS = ("rows", "changelog", "chain")


@dataclass(frozen=True)
class Verdict:
    """The result of ``docs/verify.py``: its exit code, and what each check reports about each version of the table.

    A version is an Iceberg snapshot of the table. ``versions`` maps its name to the verdicts by check. The name is the
    tag ``snap-<id>``; a version without such a tag has its Iceberg snapshot id as name.
    """

    code: int
    versions: dict[str, dict[str, str]]
    output: str

    def of(self, check: str) -> set[str]:
        """The different verdicts that one check reports for the table's versions, each without its explanation.

        A verdict is, for example, ``agree``. An explanation follows after a semicolon.
        """
        return {said[check].split(";")[0] for said in self.versions.values()}

    @property
    def wrong(self) -> dict[str, set[str]]:
        """Table version -> the checks that report a difference. Versions without a difference are left out."""
        found = {
            name: {check for check, said in checks.items() if said.startswith("DIFFER")}
            for name, checks in self.versions.items()
        }
        return {name: checks for name, checks in found.items() if checks}


def verify(settings: Settings, bootstrap: str, changelog: str, table: str, version: str = "all") -> Verdict:
    """Run ``docs/verify.py`` on the versions of a table, and parse its output."""
    given = {
        "bootstrap": bootstrap,
        "changelog": changelog,
        "table": table,
        "catalog": settings.catalog,
        "warehouse": warehouse_location(settings),
        "version": version,
    }
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", str(VERIFIER), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    versions = {}
    for line in done.stdout.splitlines():
        named, *said = line.split(" | ")
        checks = dict(each.split(" ", 1) for each in said)
        assert tuple(checks) == CHECKS, line
        number, *names = named.split()
        versions[next((name for name in names if name.startswith(SNAPSHOT_TAG)), number)] = checks
    return Verdict(done.returncode, versions, done.stdout + done.stderr)
