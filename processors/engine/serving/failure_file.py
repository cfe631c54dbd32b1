"""The failure file of a worker: its last status with the error that ended it.

The file tells the error even if the worker ended before its HTTP server could answer requests. It is in the same folder
as the endpoint file (the file with the worker's URL).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.infra.log import get_logger
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.process import own_identity

_log = get_logger("serving.last_words")


def failure_file(endpoint: Path) -> Path:
    """Returns the path of a worker's failure file, given the path of its endpoint file."""
    return endpoint.with_suffix(".failed.json")


def write_failure(endpoint: Path, document: Mapping[str, Any]) -> None:
    """Writes a worker's last status to its failure file.

    The field ``process`` is added, with the identity of this process. If the file can't be written, the problem is
    logged.
    """
    file = failure_file(endpoint)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**document, "process": str(own_identity())}))
    except OSError as why:
        _log.error("the failure file can't be written", path=str(file), error=str(why))


def record_failure(endpoint: Path, processor: str, slot: str, error: dict[str, Any], started_at: float) -> None:
    """Writes the error that ends this process to the failure file, unless this process already wrote one.

    ``error`` has the form of ``HoldfastError.as_dict``. ``started_at`` is in seconds since 1970.
    """
    file = failure_file(endpoint)
    if _process_of(file) == str(own_identity()):
        return
    document = {"processor": processor, "slot": slot, "pid": os.getpid(), "phase": "failed", "error": error}
    unknown: dict[str, Any] = {"guarantee": "", "code_version": "", "records": {}, "commits": {}, "tasks": []}
    write_failure(endpoint, {**document, **unknown, "started_at": started_at, "heartbeat_at": started_at})


class _Whose(msgspec.Struct):
    """The field of a failure file that identifies the process that wrote the file.

    Older Holdfast versions lack this field.
    """

    process: str = ""


def _process_of(file: Path) -> str:
    """Returns the identity of the process that wrote the file; empty if the file does not contain it."""
    found = read_json(file, _Whose)
    return "" if found is None else found.process
