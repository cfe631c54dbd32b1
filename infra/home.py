"""Creates the home folder, and records the project that owns the folder.

    <home>/project.json    {"folder": "/srv/shop"}

Two projects must not share a home folder. Otherwise each project would run the processors of the other project, and
would report the other project's state as orphans (resources without an owner).

Invariants:
    - A home folder that belongs to another existing project is refused before a file is written.
    - Without a project, every home folder is accepted and no owner is recorded, so that an operator can use any folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import Settings
from holdfast.infra.settings.project_file import find_project
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json


class HomeNotUsable(HoldfastError):
    """The home folder can't be written, or belongs to another project. Field: home."""

    exit_code = EXIT_BAD_CONFIGURATION


class _Note(msgspec.Struct, frozen=True):
    folder: str


def claim_home(settings: Settings) -> None:
    """Create the home folder, and record the settings' project in it.

    Raises:
        HomeNotUsable: The folder can't be written, or is the home of another project that still exists.
    """
    home, project = settings.home, settings.project
    other = None if project is None else _other_project(settings.paths.project_note, home, project)
    if other is not None:
        raise HomeNotUsable(
            f"The home folder {home} belongs to the project {other}, but this is the project {project}.",
            action=f"Give this project its own home: delete `home` from its project file, or unset `HOLDFAST_HOME`. To "
            f"move the home to this project, delete {settings.paths.project_note}.",
            home=str(home),
            other=str(other),
        )
    try:
        home.mkdir(parents=True, exist_ok=True)
        if project is not None:
            replace_text(settings.paths.project_note, json.dumps({"folder": str(project)}) + "\n")
    except OSError as failure:
        raise HomeNotUsable(
            f"The home folder {home} can't be written: {failure.strerror}.",
            action="Give this user the right to write there, or set `HOLDFAST_HOME` to another folder.",
            home=str(home),
        ) from failure


def _other_project(note: Path, home: Path, project: Path) -> Path | None:
    """The folder of another project that owns this home folder.

    None if no other project owns the home folder, or if the other project no longer exists.
    """
    noted = read_json(note, _Note)
    if noted is None or home.is_relative_to(project):
        return None
    other = Path(noted.folder)
    if other == project:
        return None
    try:
        return other if find_project(other, other) is not None else None
    except HoldfastError:
        return None  # The other project no longer exists at its recorded path, so it does not own the home folder.
