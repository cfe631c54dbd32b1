"""Drills break a running installation, wait for a check in Dagster, carry out one repair, and verify every message.

``make drills`` runs all of them and writes the table in docs/drills.md. `make test` runs two: a processor that recovery
starts again, and one whose state recovery restores.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.drills import busy_machine
from tests.drills.all_drills import DRILLS, Drill
from tests.drills.drill_results import Result
from tests.drills.exercise import Exercise
from tests.drills.home import Home, start_home
from tests.drills.openness import open_to_others

#: The file to which results are added, one JSON line each. Read at import, because tests run without HOLDFAST_
#: environment variables.
RESULTS = os.environ.get("HOLDFAST_DRILLS_RESULTS")
DISK_MIB = 96
#: The timeout of a drill. A drill waits for several conditions, each with its own timeout.
pytestmark = pytest.mark.timeout(1_200)


def each_drill(*, alone: bool = False, project: bool = False) -> list[object]:
    return [
        pytest.param(each, id=f"{each.number:02}-{each.name}", marks=() if each.quick else (pytest.mark.long_drill,))
        for each in sorted(DRILLS.values(), key=lambda one: one.number)
        if (each.alone, each.project) == (alone, project)
    ]


@pytest.mark.parametrize("drill", each_drill())
def test_it_is_told_and_mended_with_nothing_lost(drill: Drill, home: Home) -> None:
    run(drill, home)


@pytest.mark.parametrize("drill", each_drill(alone=True))
def test_a_disk_of_its_own(drill: Drill, tmp_path: Path) -> None:
    """Needs private mounts, as ``unshare -rm`` provides them. ``python -m tests.drills`` uses that command."""
    state = tmp_path / "home" / "state"
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(state)], check=True)
    try:
        home = start_home(tmp_path, {drill.name: drill.definition.format(group=drill.name)})
        try:
            run(drill, home)
        finally:
            home.stop()
    finally:
        # Without private mounts, the mount would outlive the test. So unmount it in any case.
        subprocess.run(["umount", "--lazy", str(state)], check=True)


@pytest.mark.parametrize("drill", each_drill(project=True))
def test_a_project_of_its_own(drill: Drill, tmp_path: Path) -> None:
    definitions = {drill.name: drill.definition.format(group=drill.name), busy_machine.NAME: busy_machine.TEXT}
    home = start_home(tmp_path, definitions, module="import holdfast\n\ndefs = holdfast.definitions()\n")
    try:
        run(drill, home)
    finally:
        home.stop()


def test_nothing_of_the_installation_is_open_to_others(home: Home) -> None:
    """Other users can read nothing of the installation.

    A shell with umask 022 started every process. A home that an older version left readable is made private again.
    """
    folder = home.settings.home
    assert open_to_others(folder) == []
    for path, mode in ((folder, 0o755), (home.settings.paths.registry, 0o644), (home.settings.paths.logs, 0o755)):
        path.chmod(mode)
    told = home.cli("up").text
    # either the command or a sensor has made the files private: the one that found them first
    told += "".join(log.read_text() for log in home.settings.paths.logs.glob("dagster-*.log"))
    assert "other users could reach the home folder" in told
    assert "former_mode=0755" in told.replace("'", "")
    assert open_to_others(folder) == []


def run(drill: Drill, home: Home) -> None:
    result = Result(drill.number, drill.title)
    it = Exercise(home, drill.name, result)
    try:
        drill.act(it)
        result.passed = True
    finally:
        it.end()
    if RESULTS is not None:
        with Path(RESULTS).open("a") as file:
            file.write(result.line() + "\n")
