"""Bugs that tests plant in durable calls, in sinks and in queries, and that courses of operation must catch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from sqlalchemy import true

from holdfast.processors.engine.sinks.staging import StagedPart
from holdfast.processors.sinks import http, sql_table
from holdfast.processors.sinks.files import STAGED, FileSink
from tests.simulation.planted_calls import forgotten_by_owners
from tests.simulation.planted_questions import former_positions


def older_overwrites(patch: pytest.MonkeyPatch) -> None:
    """The bug: a repeated result of an older message overwrites the row of a newer one."""
    patch.setattr(sql_table, "_not_newer", lambda *given: true())


def removed_first(patch: pytest.MonkeyPatch) -> None:
    """The bug: a new owner removes staged files before it publishes those of committed results."""

    def recover(sink: FileSink, task: Any, parts: Sequence[StagedPart]) -> None:
        for name in sink._files.names(f"{STAGED}/{task.label}"):
            sink._files.remove(f"{STAGED}/{task.label}/{name}")

    patch.setattr(FileSink, "recover", recover)


def early_files(patch: pytest.MonkeyPatch) -> None:
    """The bug: a file of results is at its place before the commit of the results."""
    stage = FileSink.stage

    def stages(sink: FileSink, batch: Any) -> Any:
        name = stage(sink, batch)
        if name:
            sink._files.move(f"{STAGED}/{sink.task_of(batch).label}/{name}", name)
        return name

    patch.setattr(FileSink, "stage", stages)


def other_keys(patch: pytest.MonkeyPatch) -> None:
    """The bug: a repeated request has another idempotency key."""
    numbers = count()
    patch.setattr(http, "_digest", lambda item, content: str(next(numbers)))


PLANTS = {
    "a new owner does not look for the answers of durable calls": forgotten_by_owners,
    "a repeated result of an older message overwrites a newer row": older_overwrites,
    "a new owner removes staged files before it publishes them": removed_first,
    "a file is at its place before the commit of its results": early_files,
    "a repeated request has another idempotency key": other_keys,
    "an answer about state carries the position of a former commit": former_positions,
}
