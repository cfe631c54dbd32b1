"""Settings from the command-line options ``--project`` and ``--set``, which override variables and the project file.

An option sets the environment variable of the setting in this process, so that child processes get the same value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.infra.settings import Settings
from holdfast.infra.settings.names import SettingsInvalid, is_group, nearest_setting, settings_of
from holdfast.infra.settings.project_file import VARIABLE
from holdfast.infra.settings.project_source import FLAGS


def take_flags(project: str | None, values: Iterable[str]) -> Callable[[], None]:
    """Set the project's folder and the settings in ``values`` (``NAME=VALUE``); returns a function that undoes this.

    Raises:
        SettingsInvalid: A text has no ``=``, or the name is no setting.
    """
    given = {} if project is None else {VARIABLE: (str(Path(project).absolute()) if project else "", "--project")}
    known = {each.name: each.variable for each in settings_of(Settings) if not is_group(each.field)}
    for text in values:
        name, sign, value = text.partition("=")
        variable = known.get(name.strip().lower())
        if not sign or variable is None:
            near = nearest_setting(Settings, name)
            raise SettingsInvalid(
                f"`--set {name}` has no value."
                if variable is not None
                else f"`--set {name}`: there is no setting {name}"
                + ("." if near is None else f"; the nearest is {near.name}."),
                action="Write it as `--set NAME=VALUE`; `holdfast config` lists all settings.",
                variable=name,
            )
        given[variable] = (value, f"--set {name.strip()}")
    former = {variable: os.environ.get(variable) for variable in given}
    for variable, (value, option) in given.items():
        os.environ[variable] = value
        FLAGS[variable] = option

    def take_back() -> None:
        for variable, value in former.items():
            FLAGS.pop(variable, None)
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value

    return take_back
