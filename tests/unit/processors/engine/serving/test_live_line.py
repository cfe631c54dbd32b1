"""The status line of a worker that runs in the foreground."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Application, InlineProcess, InMemoryCluster, State
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.runtime.loop import Phase, Worker
from holdfast.processors.engine.serving import live_line as module
from holdfast.processors.engine.serving.live_line import Figures, line_of, live_line


def figures(processed: int = 0, lag: int | None = 0, at_s: float = 0.0, phase: str = "running") -> Figures:
    return Figures(phase, processed, lag, 3, at_s)


def test_the_line_has_phase_rate_lag_and_commits() -> None:
    now = figures(30_000, lag=1_200, at_s=12.0)
    assert line_of("orders", now, figures(at_s=10.0)) == (
        "orders  running  15,000 messages/s  lag 1,200  3 commits  30,000 messages"
    )
    assert line_of("orders", figures(lag=None, phase="joining"), None) == (
        "orders  joining  -  lag unknown  3 commits  0 messages"
    )


def test_messages_that_were_dropped_to_be_read_again_give_no_negative_rate() -> None:
    assert figures(5, at_s=2.0).rate_since(figures(9, at_s=1.0)) == 0.0
    assert figures(5, at_s=2.0).rate_since(figures(5, at_s=2.0)) is None


def counting(tmp_path: Path, during: Any) -> Application:
    app = Application("unused:1", consumer_group="counts", auto_offset_reset="earliest", state_dir=tmp_path)

    def count(value: dict[str, Any], state: State) -> dict[str, Any]:
        during()
        state.set("n", state.get("n", default=0) + 1)
        return value

    app.dataframe(app.topic("in")).apply(count, stateful=True)
    return app


def run_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: Any = lambda: None) -> None:
    """Run an application on the in-memory cluster with the status line of `app.run()`."""
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(3):
        cluster.produce("in", json.dumps({"n": number}).encode(), b"k")
    app = counting(tmp_path, during)
    monkeypatch.setattr(app, "_settings", lambda: load_settings(home=tmp_path, project=None))
    monkeypatch.setattr(app, "cluster", lambda settings: cluster.connect(InlineProcess(cluster.clock)))
    app.run(timeout=1.0)


def test_without_a_terminal_the_figures_are_log_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with capture_logs() as events:
        run_shown(tmp_path, monkeypatch)
    (ended,) = [event for event in events if event["event"] == "ended"]
    assert (ended["processor"], ended["messages"]) == ("counts", 3)
    assert ended["commits"] > 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_what_is_printed_meanwhile_stands_above_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.01)
    lines: list[str] = []
    monkeypatch.setattr(module, "line_of", lambda *_: lines.append("the line") or "the line")

    def during() -> None:
        print("a word of the function", file=sys.stderr)

    run_shown(tmp_path, monkeypatch, during)
    text = shown.getvalue()
    assert text.count("a word of the function") == 3
    assert "counts  ended: " in text.splitlines()[-1]
    assert "3 messages" in text.splitlines()[-1]


def test_a_loop_that_is_silent_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_AFTER_S", 0.01)

    requests: list[Any] = []
    committer = SimpleNamespace(count=0)
    silent = SimpleNamespace(requests=requests, phase=Phase.RUNNING, committer=committer, processed=0)
    worker: Worker = silent  # type: ignore[assignment]
    line = module._Line(worker, "orders", "0")
    assert line._figures() is None
    assert line._figures() is None
    assert len(requests) == 1
    assert "silent" in line._silence()
    with capture_logs(), live_line(worker, "orders", "0"):
        pass
