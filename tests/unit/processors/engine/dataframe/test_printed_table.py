"""`print_table` prints a full table at once, and an incomplete table after a timeout."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from holdfast import InMemoryCluster
from holdfast.processors.engine.dataframe.printed_table import PrintedTable
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


class Thing(msgspec.Struct):
    n: int
    name: str


class Model(BaseModel):
    n: int
    name: str


class Odd:
    pass


class Held(msgspec.Struct):
    odd: Any


@pytest.mark.parametrize("model", [Thing, Model])
def test_fields_of_instances_are_columns(model: Any) -> None:
    table = PrintedTable(2, None, False, 600, True, 0.5, (), {})
    table(model(n=1, name="x"), b"k", 0, None)
    assert [line.split() for line in table.text().splitlines()[1:4:2]] == [
        ["┃", "n", "┃", "name", "┃"],
        ["│", "1", "│", "x", "│"],
    ]


def test_an_instance_that_has_no_form_in_json_is_one_column() -> None:
    table = PrintedTable(2, None, False, 600, True, 0.5, (), {})
    table(Held(Odd()), b"k", 0, None)
    assert "Held(odd=" in table.text()
