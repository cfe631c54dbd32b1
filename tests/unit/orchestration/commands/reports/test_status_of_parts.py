"""The subtopologies of a processor in `holdfast status` and in the drawing of `holdfast explain`."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.reports.processor_rows import bare_row, subtopologies_of
from holdfast.orchestration.commands.reports.status import _print
from holdfast.processors.engine.serving.status import ProcessorStatus
from tests.unit.processors.engine.serving.test_metrics import status


def printed(*subtopologies: list[dict[str, Any]]) -> str:
    rows = [
        {**bare_row(f"p{number}", "healthy", ""), "slot": "0", "subtopologies": each}
        for number, each in enumerate(subtopologies)
    ]
    console = Console(file=StringIO(), width=240)
    lists: dict[str, Any] = {name: [] for name in ("adopted", "incidents", "applies", "reasons")}
    _print({"services": {}, "processors": rows, **lists}, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_lag_of_each_subtopology_is_told_where_there_are_several() -> None:
    document = status()
    behind = {"committed": 0, "position": 0, "end": 1_200, "lag": 1_200}
    document["tasks"].append(
        {**document["tasks"][0], "task": "by-0", "subtopology": "by", "inputs": {"fleet-by-repartition": behind}}
    )
    told = subtopologies_of(ProcessorStatus.decode(document))
    assert [(each["subtopology"], each["tasks"], each["running"], each["lag"]) for each in told] == [
        ("by", 1, 1, 1_200),
        ("flights", 2, 1, 4),
    ]
    shown = printed(told, told[:1])
    assert "p0, slot 0, by: 1 of 1 tasks run; lag of fleet-by-repartition 1,200 records" in shown
    assert "p0, slot 0, flights: 1 of 2 tasks run; lag of flights 4 records" in shown
    assert "p1, slot" not in shown
    [waiting] = [{**told[1], "awaited": ["weather"]}]
    assert "lag of flights 4 records; messages wait for older ones of weather" in printed([waiting])
    assert subtopologies_of(None) == []


def test_explain_takes_the_topology_in_both_orders(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "topology", "fleet"]) == 0
    drawn = capfd.readouterr().out
    assert "fleet-aircraft-changelog" in drawn
    assert main(["explain", "fleet", "--topology"]) == 0
    assert capfd.readouterr().out == drawn
    assert main(["explain", "fleet"]) != 0
    assert "No such command 'fleet'" in capfd.readouterr().err
