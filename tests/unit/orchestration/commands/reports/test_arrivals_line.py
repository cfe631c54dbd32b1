"""`holdfast status` prints how many messages were not processed, and why the newest was not.

It names a command to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.orchestration.commands.reports.processor_rows import describe_processor
from holdfast.orchestration.commands.reports.status import _print
from holdfast.processors.engine.runtime.task.arrivals import Newest
from holdfast.processors.engine.serving.status import ProcessorStatus, TaskArrivals
from holdfast.processors.lifecycle.recovery.limits import Limits
from tests.unit.processors.lifecycle.in_memory import NAME, NOW, Installation, open_installation


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    opened = open_installation(tmp_path)
    yield opened
    opened.registry.close()


def printed(installation: Installation, arrivals: TaskArrivals) -> tuple[str, dict[str, Any]]:
    """Return the text of `holdfast status` for a worker with these counts, and the processor's row as in its JSON."""
    source = installation.world.statuses(NAME, "0")

    class Counted:
        last_heartbeat, last_failure = source.last_heartbeat, source.last_failure

        def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
            told = source.status()
            assert told is not None
            return replace(told, tasks=tuple(replace(each, arrivals=arrivals) for each in told.tasks))

    (deployment,) = installation.registry.deployments()
    answering: Any = Counted
    world = replace(installation.world, statuses=lambda *place: answering())
    rows, _ = describe_processor(deployment, world, Limits())
    document = {"services": {}, "processors": rows, "adopted": [], "incidents": [], "applies": [], "reasons": []}
    _print(document, Console(file=(out := StringIO()), width=80, color_system=None))
    (row,) = rows
    return out.getvalue(), row


@pytest.mark.parametrize(
    ("kind", "count", "words", "command"),
    [
        ("late", {"late": 3}, "3 too late", "`grace_ms`"),
        ("put_aside", {"put_aside": 2, "late": 1}, "1 too late, 2 put aside", "`holdfast dead-letters orders`"),
        ("skipped", {"skipped": 4}, "4 skipped by the failure policy", "`holdfast logs orders`"),
        ("misplaced", {"misplaced": 5}, "5 in a partition where their key finds no match", "`holdfast consume placed`"),
    ],
)
def test_status_prints_what_does_not_arrive(
    installation: Installation, kind: str, count: dict[str, int], words: str, command: str
) -> None:
    newest = Newest(kind, "ValueError at placed[0] offset 7", NOW.timestamp() - 60, topic="placed")
    text, row = printed(installation, TaskArrivals(**count, newest=newest, per_minute=0.5))
    said = f"{NAME}, slot 0: Messages do not arrive: {words}, 0.5 per minute lately. The newest: {newest.reason}."
    assert said in text
    assert command in text
    assert row["arrivals"]["per_minute"] == 0.5
    assert {name: row["arrivals"][name] for name in count} == count


def test_status_prints_nothing_where_all_messages_arrive(installation: Installation) -> None:
    text, row = printed(installation, TaskArrivals())
    assert "arrive" not in text
    assert row["arrivals"] is None
