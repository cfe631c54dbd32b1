"""The home folder that a demonstration starts from: empty, and its own.

Invariants:
    - A folder that something running uses is never deleted.
    - Only what a former demonstration made is deleted; a folder without its marker is left alone.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.kafka.broker import running_broker
from holdfast.infra.paths import Paths

#: The file that says that a demonstration made this folder.
MARKER = "made-by-demo"


class HomeNotFree(HoldfastError):
    """The home folder can't be used for a demonstration."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class PreparedHome:
    """The folder, empty but for its marker; ``removed`` when a former demonstration's had to go."""

    folder: Path
    removed: bool


def prepare_home(paths: Paths) -> PreparedHome:
    """Make the home folder empty and mark it.

    Raises:
        HomeNotFree: Something runs in it, or it holds what no demonstration made.
    """
    home = paths.home
    held = sorted(path.name for path in home.iterdir()) if home.is_dir() else []
    runs = _what_runs(paths)
    if runs:
        raise HomeNotFree(
            f"In the home folder {home} there run: {', '.join(runs)}.",
            action="Stop them with `holdfast down`, or name another folder with HOLDFAST_HOME.",
            home=str(home),
            running=", ".join(runs),
        )
    if held and MARKER not in held:
        raise HomeNotFree(
            f"The home folder {home} holds {', '.join(held[:6])}, which no demonstration made.",
            action="Remove it with `make clean` if it is not needed, or name another folder with HOLDFAST_HOME.",
            home=str(home),
        )
    if held:
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / MARKER).write_text("Everything here was made by `holdfast demo`; the next one starts over.\n")
    return PreparedHome(home, removed=bool(held))


def _what_runs(paths: Paths) -> list[str]:
    runs = []
    broker = running_broker(paths.kafka)
    if broker is not None:
        runs.append(f"a broker (process {broker.pid})")
    supervisor = open_deployer(paths).pid()
    if supervisor is not None:
        runs.append(f"a supervisor (process {supervisor})")
    return runs
