"""Creates a new project: a folder with a processor, its test, Dagster's definitions and the settings.

The files are copied from ``template/``, and the name ``my_project`` in paths and contents is replaced.

Invariants:
    - Files are written only to a folder that is empty or does not exist yet.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION

#: The name in the template that is replaced by the name of the new project.
TEMPLATE_NAME = "my_project"
_SUFFIX = ".txt"
#: Names that a project can't have, because they would hide packages that the project imports.
_TAKEN = {"holdfast", "dagster", "test", "tests", "pytest"}
_LENGTH_MAX = 60


class ProjectRefused(HoldfastError):
    """The project can't be created, because its name is unsuitable or its folder can't be used. Field: folder."""

    exit_code = EXIT_BAD_CONFIGURATION


def package_name(folder: Path) -> str:
    """The Python package of a project in this folder: the folder's name, with underscores for dashes and dots.

    Raises:
        ProjectRefused: The name is no Python identifier, or would hide a module that Python or the project needs.
    """
    name = re.sub(r"[-. ]", "_", folder.name).lower()
    taken = name in _TAKEN or name in sys.stdlib_module_names or keyword.iskeyword(name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > _LENGTH_MAX or taken:
        raise ProjectRefused(
            f"{folder.name!r} can't name a project: "
            + (
                "Python or Holdfast has a module of this name."
                if taken
                else f"expected a letter, then letters, digits, '_', '-' or '.', {_LENGTH_MAX} at most."
            ),
            action="Choose another name, as in `holdfast init my_project`.",
            folder=str(folder),
        )
    return name


def project_files(name: str) -> dict[PurePosixPath, str]:
    """Path in the project's folder -> content of the file, for a project with this package name."""
    root = files("holdfast.orchestration") / "project" / "template"
    return {
        PurePosixPath(_named(str(path), name)): _named(source.read_text(encoding="utf-8"), name)
        for path, source in _templates(root, PurePosixPath())
    }


def make_project(folder: Path) -> tuple[Path, ...]:
    """Write a new project into an empty folder, which is created if absent; returns the project's files.

    Raises:
        ProjectRefused: The name is unsuitable, the folder holds files, or the folder can't be written.
    """
    name = package_name(folder)
    try:
        held = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        if held:
            raise ProjectRefused(
                f"{folder} is not empty: it holds {', '.join(held[:5])}{', ...' if len(held) > 5 else ''}.",
                action="Name a folder that is not there yet, as in `holdfast init my_project`.",
                folder=str(folder),
            )
        made = []
        for path, text in project_files(name).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            made.append(file)
    except OSError as failure:
        raise ProjectRefused(
            f"{folder} can't be written: {failure.strerror}.",
            action="Name a folder that this user may write to.",
            folder=str(folder),
        ) from failure
    return tuple(made)


def _templates(folder: Traversable, within: PurePosixPath) -> list[tuple[PurePosixPath, Traversable]]:
    found: list[tuple[PurePosixPath, Traversable]] = []
    for each in sorted(folder.iterdir(), key=lambda one: one.name):
        if each.is_dir():
            found += _templates(each, within / each.name)
        elif each.name.endswith(_SUFFIX):
            name = each.name.removesuffix(_SUFFIX)
            found.append((within / (".gitignore" if name == "gitignore" else name), each))
    return found


def _named(text: str, name: str) -> str:
    return text.replace(TEMPLATE_NAME, name)
