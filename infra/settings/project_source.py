"""Makes the project file a source of settings for pydantic, and finds the origin of each setting's value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from holdfast.infra.settings.names import PREFIX
from holdfast.infra.settings.project_file import VARIABLE, ProjectFile, find_project

#: Settings that are paths. In a project file, such a path is relative to the project's folder.
_PATHS = ("home", "cache", "ivy_settings")
#: Environment variable -> command-line option that set the variable in this process (``infra.settings.flags``).
FLAGS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a setting's value; ``place`` is a file with line number, a variable, an option, or ``default``."""

    kind: Literal["default", "project", "file", "variable", "flag"]
    place: str

    @property
    def in_file(self) -> bool:
        """Whether the value comes from the project file."""
        return self.kind == "file"


class ProjectSource(PydanticBaseSettingsSource):
    """Source of settings for pydantic: the project file's values, and the defaults that every project has.

    By default, a project has the home folder ``.holdfast`` and no processors.
    """

    def __init__(self, settings_cls: type[BaseSettings], project: ProjectFile | None) -> None:
        super().__init__(settings_cls)
        self._project = project

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one field, the field's name, and False because the value is not JSON text."""
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """All values of this source: name of a setting or group -> value."""
        if self._project is None:
            return {}
        folder = self._project.folder
        values: dict[str, Any] = {"home": ".holdfast", "processors": [], **self._project.table, "project": folder}
        for name in _PATHS:
            if isinstance(values.get(name), str):
                values[name] = folder / Path(values[name]).expanduser()
        return values


def project_of(given: Mapping[str, Any]) -> ProjectFile | None:
    """The project file for settings that are created with the arguments ``given``.

    It is the file of the argument ``project``; without this argument, the file that the environment selects.

    Raises:
        ProjectInvalid: The project file is missing, can't be parsed, or belongs to another user.
    """
    chosen = given["project"] or "" if "project" in given else os.environ.get(VARIABLE)
    try:
        here = Path.cwd()
    except FileNotFoundError:  # The working directory was deleted, so no folder above it can be searched.
        return None if chosen is None else find_project(Path("/"), chosen)
    return find_project(here, chosen)


def origin_of(key: tuple[str, ...], project: ProjectFile | None) -> Origin:
    """The origin of the value of the setting at this key.

    If several places set parts of an object, the place with the highest priority is returned.
    """
    variable = PREFIX + "__".join(key).upper()
    seen = {name.upper(): name for name in os.environ if name.upper().startswith(PREFIX)}
    exact = seen.get(variable) or next((seen[name] for name in sorted(seen) if name.startswith(f"{variable}__")), None)
    if exact is None and len(key) > 1:
        exact = _of_group(seen.get(PREFIX + key[0].upper()), key[1:])
    if exact is not None:
        flag = FLAGS.get(exact.upper())
        return Origin("variable", exact) if flag is None else Origin("flag", flag)
    if project is not None:
        if project.has(*key):
            return Origin("file", project.place(*key))
        if key in (("project",), ("home",), ("processors",)):
            return Origin("project", str(project.path))
    return Origin("default", "default")


def _of_group(variable: str | None, rest: tuple[str, ...]) -> str | None:
    """Returns ``variable`` if it sets a whole group as JSON and this JSON contains the key ``rest``; otherwise None."""
    if variable is None:
        return None
    try:
        found: Any = json.loads(os.environ[variable])
        for part in rest:
            found = found[part]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return variable
