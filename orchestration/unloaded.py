"""The code locations that Dagster's daemon can't load, as it tells them to `holdfast status`: a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

from holdfast.infra.files import replace_text
from holdfast.infra.json_file import read_json
from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings

log = structlog.get_logger(__name__)


def _file(settings: Settings) -> Path:
    return settings.paths.dagster / "unloaded.json"


def write_unloaded(settings: Settings, errors: dict[str, str]) -> None:
    """Write the error of each location that does not load; a disk that refuses it is logged, and ends no daemon."""
    try:
        replace_text(_file(settings), json.dumps({name: masked(error) for name, error in errors.items()}))
    except OSError as failed:
        log.warning("locations.not_written", reason=str(failed))
    for name, error in errors.items():
        log.error("location.not_loaded", location=name, error=masked(error))


def read_unloaded(settings: Settings) -> dict[str, str]:
    """Location -> why it does not load; empty when all load, and before the daemon's first look."""
    return read_json(_file(settings), dict[str, str]) or {}
