"""Writes and reads two files: code locations that can't be loaded, and processor definitions that can't be used.

A process that does not import the project's code reads these files to report the errors. The daemon writes the file of
code locations. The project's code location writes the file of definitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from holdfast.infra.log import get_logger
from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json
from holdfast.processors.application.broken_definition import BrokenDefinition

log = get_logger(__name__)


def _file(settings: Settings) -> Path:
    return settings.paths.dagster / "unloaded.json"


def write_unloaded(settings: Settings, errors: dict[str, str]) -> None:
    """Save the errors of the code locations that do not load: name -> error.

    If the file can't be written, this is only logged, so that the daemon continues.
    """
    try:
        replace_text(_file(settings), json.dumps({name: masked(error) for name, error in errors.items()}))
    except OSError as failed:
        log.warning("locations.not_written", reason=str(failed))
    for name, error in errors.items():
        log.error("location.not_loaded", location=name, error=masked(error))


def write_broken(settings: Settings, broken: Iterable[BrokenDefinition]) -> None:
    """Save the processor definitions that can't be used in ``broken.json``, with the reason and the user's next action.

    If the file can't be written, this is only logged, so that the code server continues.
    """
    told = {each.target: {"sentence": masked(each.sentence), "action": masked(each.action)} for each in broken}
    try:
        if told != read_broken(settings):
            settings.paths.dagster.mkdir(parents=True, exist_ok=True)
            replace_text(_broken_file(settings), json.dumps(told))
    except OSError as failed:
        log.warning("definitions.not_written", reason=str(failed))


def read_broken(settings: Settings) -> dict[str, dict[str, str]]:
    """Name of a definition that can't be used -> its ``sentence`` and ``action``, from the project's last load."""
    return read_json(_broken_file(settings), dict[str, dict[str, str]]) or {}


def _broken_file(settings: Settings) -> Path:
    return settings.paths.dagster / "broken.json"


def read_unloaded(settings: Settings) -> dict[str, str]:
    """Name of a code location -> error of its load; empty if all are loaded, or the daemon has not checked yet."""
    return read_json(_file(settings), dict[str, str]) or {}
