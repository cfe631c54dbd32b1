"""Lists all settings with value, source of the value, and meaning, for ``holdfast config``. Secrets are masked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.infra.masking import MASK, masked_data
from holdfast.infra.settings import Settings
from holdfast.infra.settings.names import SettingsInvalid, is_group, nearest_setting, settings_of
from holdfast.infra.settings.project_file import ProjectFile
from holdfast.infra.settings.project_source import Origin, origin_of


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting with its value, the source of the value, and its meaning; secret values are masked."""

    name: str
    variable: str
    value: Any
    origin: Origin
    meaning: str
    secret: bool


def explain(settings: Settings, project: ProjectFile | None) -> Iterator[Explained]:
    """Yields every setting (not the groups), in the order of declaration."""
    for each in settings_of(Settings):
        if is_group(each.field):
            continue
        value: Any = settings
        for part in each.key:
            value = getattr(value, part)
        shown = MASK if each.secret and value else masked_data(_plain(value))
        origin = origin_of(each.key, project)
        yield Explained(each.name, each.variable, shown, origin, each.field.description or "", each.secret)


def find_explained(settings: Settings, project: ProjectFile | None, name: str) -> list[Explained]:
    """The setting with this name or variable; or all settings of the group with this name.

    Raises:
        SettingsInvalid: There is no such setting; the error names the most similar setting.
    """
    asked = name.lower()
    rows = list(explain(settings, project))
    found = [each for each in rows if asked in (each.name, each.variable.lower())]
    found = found or [each for each in rows if each.name.startswith(f"{asked}.")]
    if found:
        return found
    near = nearest_setting(Settings, name)
    raise SettingsInvalid(
        f"There is no setting {name}" + ("." if near is None else f"; the nearest is {near.name}."),
        action="Correct the name; `holdfast config` lists all settings.",
        variable=name,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
