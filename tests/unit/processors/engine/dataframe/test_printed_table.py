"""`print_table` prints a table when it is full, and an incomplete one after a timeout."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast import InMemoryCluster
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from tests.window_apps import T, build, send


def shown(capsys: pytest.CaptureFixture[str], count: int, **given: Any) -> str:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for number in range(count):
        send(cluster, number, {"n": number, "name": "a long name of a thing" * 5})
    cluster.run(build(lambda sdf: sdf.print_table(**given)))
    assert len(cluster.read("out")) == count
    return capsys.readouterr().out


def test_full_tables_with_the_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, 6, size=3, title="Things", timeout=600)
    assert out.count("Things") == 2
    assert all(text in out for text in ("_key", "_timestamp", "b'k'", str(T + 5), "a long name"))


def test_columns_and_widths(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, 2, size=2, columns=["name", "none"], column_widths={"name": 8}, timeout=600)
    assert "a long " in out
    assert "…" in out
    assert "_key" not in out
    assert "none" in out


def test_a_table_that_is_not_full_is_shown_after_its_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, 2, size=5, metadata=False, timeout=0.02)
    until = time.monotonic() + 30
    while "a long name" not in out and time.monotonic() < until:
        time.sleep(0.02)
        out += capsys.readouterr().out
    assert out.count("a long name") >= 1
    assert "_key" not in out


@pytest.mark.parametrize("given", [{"size": 0}, {"timeout": -1}, {"live_slowdown": "slow"}])
def test_numbers_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(StepInvalid, match="of `print_table` is"):
        build(lambda sdf: sdf.print_table(**given))
