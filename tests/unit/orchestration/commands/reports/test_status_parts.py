"""The text of `holdfast status`. Each worker has its own row, and reasons that need an action come first."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from holdfast.orchestration.commands.reports.processor_rows import bare_row, subtopologies_of
from holdfast.orchestration.commands.reports.status_parts import (
    partitions_in_words,
    print_reasons,
    print_workers,
    ranges,
)
from holdfast.orchestration.view.reasons import Reason
from holdfast.processors.engine.serving.status import ProcessorStatus
from tests.unit.processors.engine.serving.test_metrics import status


def part(name: str, *partitions: int) -> dict[str, Any]:
    return {
        "subtopology": name,
        "tasks": len(partitions),
        "running": len(partitions),
        "lags": {name: 0},
        "lag": 0,
        "awaited": [],
        "partitions": list(partitions),
    }


def row(slot: str, *parts: dict[str, Any], **others: Any) -> dict[str, Any]:
    known = {"slot": slot, "phase": "running", "desired": "deployed", "subtopologies": list(parts), "lag": 0}
    return bare_row("shop", "healthy", "It is running.") | known | {"code_version": "b4d1dd6be3b6"} | others


def lines_of(*rows: dict[str, Any], width: int = 120) -> list[str]:
    out = StringIO()
    print_workers(rows, Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_an_idle_worker_differs_from_the_busy_one() -> None:
    lines = lines_of(row("0", part("orders", 0, 1, 2)), row("1"))
    (busy,) = (line for line in lines if "│ 0-2 " in line)
    (idle,) = (line for line in lines if "│ none " in line)
    assert "│ 0 " in busy
    assert "│ 1 " in idle
    assert all("b4d1dd6be3b6" in line for line in (busy, idle))
    assert max(map(len, lines)) <= 120


def test_a_slot_without_an_answer_has_the_deployed_version() -> None:
    dead = row("0", phase=None, code_version=None, deployed_version="2c414ce4976a", lag=None)
    (line,) = (line for line in lines_of(dead) if "shop" in line)
    assert "2c414ce4976a │ - " in line


def test_columns_that_say_nothing_are_left_out() -> None:
    text = "\n".join(lines_of(row("0", part("orders", 0))))
    assert not any(word in text for word in ("desired", "stream time", "timers"))
    stopped = lines_of(row("0", desired="stopped", diagnosis="not-deployed", phase=None))
    assert any("stopped" in line and "down" in line for line in stopped)


@pytest.mark.parametrize(("numbers", "text"), [([0], "0"), ([0, 1, 2, 5], "0-2, 5"), ([3, 7, 8], "3, 7-8"), ([], "")])
def test_runs_of_partitions_are_shortened(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_partitions_of_several_subtopologies_have_their_names_where_they_differ() -> None:
    assert partitions_in_words(row("0", part("by", 0, 1), part("orders", 0, 1))) == "0-1"
    assert partitions_in_words(row("0", part("by", 1), part("orders", 0))) == "by 1; orders 0"


def test_partitions_are_those_that_the_worker_answers() -> None:
    (told,) = subtopologies_of(ProcessorStatus.decode(status()))
    assert told["partitions"] == sorted(each["partition"] for each in status()["tasks"])


def shown(*reasons: Reason, each_grey: bool = False) -> str:
    out = StringIO()
    print_reasons(reasons, Console(file=out, width=200), each_grey=each_grey)
    return out.getvalue()


SOON = [Reason(f"asset a{number}", "grey", f"Reason {number}.", "Nothing; it is on its way.") for number in range(7)]
RED = Reason("processor shop", "red", "It is dead.", "Nothing; it passes without an action.")
GREY = Reason("asset own", "grey", "It was never materialised.", "Free memory.")


def test_what_turns_green_by_itself_is_one_line_behind_the_rest() -> None:
    lines = shown(RED, *SOON[:3], GREY, *SOON[3:]).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("  red processor shop: It is dead.")
    assert lines[2].startswith("  grey asset own")
    assert lines[4].startswith(
        "  grey 7 subjects turn green without an action: asset a0, asset a1, asset a2 and 4 more."
    )
    assert "`holdfast status a0` says why" in lines[4]


def test_one_name_has_all_its_reasons() -> None:
    text = shown(*SOON[:2], each_grey=True)
    assert "Reason 0." in text
    assert "Reason 1." in text


def test_nothing_to_say_is_green() -> None:
    assert "All is green." in shown()
