"""Finds and reads the project file: ``holdfast.toml``, or the table ``[tool.holdfast]`` in ``pyproject.toml``.

Keys are the names of settings: ``memory_max_mb = 512``, or ``bootstrap_servers = "kafka-1:9092"`` in ``[kafka]``.

Invariants:
    - The project is the nearest folder with a project file, from the working directory upwards. Project files farther
      up have no effect.
    - A found file of another user is refused, because it names code that will run. A user who trusts the file names its
      folder in ``HOLDFAST_PROJECT``.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.infra.settings.names import SettingsInvalid

#: Environment variable with the project's folder. If it is empty, no project file is read.
VARIABLE: Final = "HOLDFAST_PROJECT"
#: File name of the project file.
FILE: Final = "holdfast.toml"
_SHARED: Final = "pyproject.toml"
_TABLE: Final = ("tool", "holdfast")
#: ``_KEY`` matches one part of a dotted TOML key, bare or quoted. ``_STATEMENT`` matches a key before ``=``, or the
#: header of a table.
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_STATEMENT = re.compile(rf"\s*(\[\s*)?({_KEY}(?:\s*\.\s*{_KEY})*)\s*([=\]])")


class ProjectInvalid(SettingsInvalid):
    """The project file is missing, can't be read or parsed, or belongs to another user. Field: file."""


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A project file: its path, its text, and the parsed table with the settings.

    ``within`` is the key of this table in the file, for example ``("tool", "holdfast")``.
    """

    path: Path
    text: str
    table: Mapping[str, Any]
    within: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The project's folder: relative paths in the file start here, and modules are imported from here."""
        return self.path.parent

    def has(self, *key: str) -> bool:
        """Whether the project file sets the setting with this key."""
        found: Any = self.table
        for part in key:
            if not isinstance(found, Mapping) or part not in found:
                return False
            found = found[part]
        return True

    def place(self, *key: str) -> str:
        """File and line of a setting, for example ``/srv/shop/holdfast.toml, line 7``.

        For a value inside an inline table, it is the line of the table.
        """
        lines = self._lines()
        full = (*self.within, *key)
        line = next((lines[full[:end]] for end in range(len(full), 0, -1) if full[:end] in lines), None)
        return str(self.path) if line is None else f"{self.path}, line {line}"

    def _lines(self) -> dict[tuple[str, ...], int]:
        """Key or table -> its line number.

        A line counts as the start of a statement only if all text before it is valid TOML.
        """
        lines: dict[tuple[str, ...], int] = {}
        table: tuple[str, ...] = ()
        texts = self.text.splitlines()
        for number, line in enumerate(texts, 1):
            found = _STATEMENT.match(line)
            if found is None or not _is_complete("\n".join(texts[: number - 1])):
                continue
            names = tuple(part.strip().strip("\"'") for part in re.findall(_KEY, found[2]))
            if found[1]:
                table = names
            for end in range(len(names)):
                place = names[: end + 1] if found[1] else (*table, *names[: end + 1])
                lines.setdefault(place, number)
        return lines


def find_project(start: Path, chosen: str | Path | None) -> ProjectFile | None:
    """The project file in the folder ``chosen``; without ``chosen``, the nearest project file from ``start`` upwards.

    None if no project file is found, or if ``chosen`` is empty.

    Raises:
        ProjectInvalid: The chosen folder has no project file, the file is no TOML, or it belongs to another user.
    """
    if chosen is not None:
        if not str(chosen):
            return None
        folder = Path(chosen).expanduser().absolute()
        found = _in(folder)
        if found is None:
            raise ProjectInvalid(
                f"{VARIABLE} or `--project` names {folder}, which has no {FILE} and no [tool.holdfast] in a {_SHARED}.",
                action="Name the folder of a project, or make one with `holdfast init my_project`.",
                file=str(folder / FILE),
            )
        return found
    for folder in (start, *start.parents):
        found = _in(folder)
        if found is not None:
            _refuse_foreign(found)
            return found
    return None


def _in(folder: Path) -> ProjectFile | None:
    own, shared = _text(folder / FILE), _text(folder / _SHARED)
    below = None if shared is None or "tool.holdfast" not in shared else _parse(folder / _SHARED, shared)
    for part in _TABLE:
        below = None if below is None else below.get(part)
    if own is not None and below is not None:
        raise ProjectInvalid(
            f"{folder} has two project files: {FILE}, and the table [tool.holdfast] in {_SHARED}.",
            action=f"Move the settings of [tool.holdfast] into `{FILE}`, and delete the table.",
            file=str(folder / FILE),
        )
    if own is not None:
        return ProjectFile(folder / FILE, own, _parse(folder / FILE, own))
    if below is not None and shared is not None:
        return ProjectFile(folder / _SHARED, shared, below, _TABLE)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as failure:
        if path.name == _SHARED:
            return None  # This is no error, because the file may have nothing to do with Holdfast.
        reason = failure.strerror if isinstance(failure, OSError) else str(failure)
        raise ProjectInvalid(
            f"{path} can't be read: {reason}.",
            action=f"Correct the file's rights and its encoding, UTF-8, or set `{VARIABLE}` to another project.",
            file=str(path),
        ) from failure


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as failure:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(failure))
        line = text.count("\n") + 1 if found is None else int(found[1])
        reason = re.sub(r" \(at [^)]*\)$", "", str(failure))
        raise ProjectInvalid(
            f"{path}, line {line}, is not TOML: {reason}.",
            action='Correct that line. Texts have quotes, as in `bootstrap_servers = "kafka-1:9092"`.',
            file=str(path),
            line=line,
        ) from failure


def _is_complete(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _refuse_foreign(found: ProjectFile) -> None:
    owner = found.path.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise ProjectInvalid(
            f"{found.path} belongs to another user (uid {owner}), and its settings name code that would run as you.",
            action=f"Set `{VARIABLE}` to {found.folder} if you trust that user. An empty `{VARIABLE}` reads no file.",
            file=str(found.path),
        )
