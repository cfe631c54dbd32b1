"""Pending timers and the stream time in `holdfast status` and in the metadata of a store's asset."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from holdfast.assets.state import _stream_time, _timers
from holdfast.orchestration.commands.reports.processor_rows import bare_row
from holdfast.orchestration.commands.reports.status import _print
from holdfast.processors.engine.serving.status import ProcessorStatus
from tests.unit.processors.engine.serving.test_metrics import status


def printed(*timers: dict[str, Any] | None) -> str:
    rows = [{**bare_row(f"p{number}", "healthy", ""), "timers": each} for number, each in enumerate(timers)]
    console = Console(file=StringIO(), width=240)
    lists: dict[str, Any] = {name: [] for name in ("adopted", "incidents", "applies", "reasons")}
    _print({"services": {}, "processors": rows, **lists}, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_status_shows_timers_where_a_processor_has_some() -> None:
    told = {"pending": 10_000, "more": True, "next_stream": 1_700_000_060.5, "next_processing": None}
    shown = printed(told, None, {**told, "pending": 0, "more": False, "next_stream": None})
    assert "10,000+, next 2023-11-14 22:14:20Z (stream time)" in shown
    assert "timers" in shown
    assert "timers" not in printed(None)


def test_the_asset_of_a_store_has_its_timers() -> None:
    document = status()
    document["tasks"][1]["timers"] = {
        "aircraft": {"pending": 3, "more": False, "next_stream": 1_700_000_010, "next_processing": 1_700_000_099}
    }
    found = _timers([ProcessorStatus.decode(document)], "aircraft")
    assert {name: each.value for name, each in found.items()} == {
        "timers_pending": 15,
        "next_timer_stream_time": 1_700_000_010,
        "next_timer_processing_time": 1_700_000_099,
    }
    assert _timers([ProcessorStatus.decode(document)], "airports") == {}


def test_the_asset_of_a_store_has_the_least_stream_time_of_all_workers() -> None:
    first, other = status(), status()
    other["tasks"][1]["stream_time"] = 1_700_000_020.0
    workers = [ProcessorStatus.decode(each) for each in (first, other)]
    assert {name: each.value for name, each in _stream_time(workers).items()} == {"stream_time": 1_700_000_020.0}
    for task in first["tasks"]:
        task["stream_time"] = None
    assert _stream_time([ProcessorStatus.decode(first)]) == {}
