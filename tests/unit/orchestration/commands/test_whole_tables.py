"""Tables of the command line show all their content: in a pipe of 120 columns, on terminals of 80 and 30 columns."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from holdfast.orchestration.commands.reports.status import _print
from holdfast.orchestration.commands.tables import PIPE_WIDTH, print_table

STATUS = ("processor", "desired", "state", "phase", "lag, records", "stream time", "processed", "pid")
ROW = (
    "customers_of_orders",
    "deployed",
    "unresponsive",
    "restoring",
    "1234567",
    "2026-11-26 00:22:33Z",
    "98765432",
    "1",
)
LONG = "Correct the function or the message and restart: processing resumes at this offset. " * 3


def printed(rows: list[tuple[str, ...]], columns: tuple[str, ...], *, width: int, terminal: bool) -> list[str]:
    out = StringIO()
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    print_table(table, Console(file=out, width=width, force_terminal=terminal, color_system=None))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 80, 120])
@pytest.mark.parametrize("cells", [ROW, (*ROW[:-1], LONG), ("x" * 200, *ROW[1:])])
def test_a_terminal_gets_every_character_within_its_width(width: int, cells: tuple[str, ...]) -> None:
    lines = printed([cells], STATUS, width=width, terminal=True)
    assert max(map(len, lines)) <= width
    text = "".join(lines)
    assert "…" not in text
    for cell in (*STATUS, *cells):
        assert not set(cell) - set(text)
    if width == 30:
        assert all(word in text for word in " ".join(STATUS).split())


def test_words_are_whole_on_80_columns() -> None:
    text = "\n".join(printed([ROW], STATUS, width=80, terminal=True))
    for word in " ".join((*STATUS, *ROW)).split():
        assert word in text
    reasons = printed(
        [("3", "my_project", "poison-message", LONG)], ("id", "who", "kind", "what"), width=80, terminal=True
    )
    assert all(word in " ".join(reasons) for word in ("my_project", "poison-message", *LONG.split()))


def test_a_pipe_gets_one_line_for_each_row_that_fits_and_more_lines_for_others() -> None:
    lines = printed([ROW], STATUS, width=80, terminal=False)
    assert any(all(cell in line for cell in ROW) for line in lines)
    lines = printed([(*ROW[:-1], LONG.strip())], STATUS, width=80, terminal=False)
    assert 80 < max(map(len, lines)) <= PIPE_WIDTH
    text = "".join(lines)
    assert all(word in text for word in ROW[:-1] if word != ROW[5])
    assert not set(LONG) - set(text)


def test_status_names_a_processor_whole_on_80_columns() -> None:
    row = {
        "processor": "customers_of_orders",
        "desired": "deployed",
        "diagnosis": "healthy",
        "paused": False,
        "subtopologies": [],
    }
    row |= {"phase": "running", "lag": 0, "stream_time": 1_790_000_000.0, "timers": None, "processed": 12, "pid": 4711}
    row |= {"warnings": [], "arrivals": None, "slot": "0", "code_version": "v1", "deployed_version": "v1"}
    for terminal in (True, False):
        out = StringIO()
        document = {"services": {}, "processors": [row], "adopted": [], "incidents": [], "applies": [], "reasons": []}
        _print(document, Console(file=out, width=80, force_terminal=terminal, color_system=None))
        for word in ("customers_of_orders", "processed", "processor", "2026-09-21"):
            assert word in out.getvalue()
