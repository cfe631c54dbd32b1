"""``sdf.print_table()``: shows the last values as a table while a processor is developed."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.formats.typed import fields_of
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.step import Step

#: Names of the columns for the message's key, its timestamp, and a value that is not a dict.
KEY, TIMESTAMP, VALUE = "_key", "_timestamp", "0"
#: Maximum characters of a cell, unless ``column_widths`` sets the width of its column. Longer texts are cut.
CELL_MAX = 60


class PrintedTable(Step):
    """Keeps the last rows and prints them as a table.

    In a terminal, one table is redrawn in place. In other outputs, a table is printed each time it is full.
    """

    def __init__(  # tidy: allow-wide because these are the arguments of print_table.
        self,
        size: int,
        title: str | None,
        metadata: bool,
        timeout: float,
        live: bool,
        slowdown: float,
        columns: tuple[str, ...],
        widths: Mapping[str, int],
    ) -> None:
        for name, given, least in (("size", size, 1), ("timeout", timeout, 0), ("live_slowdown", slowdown, 0)):
            if isinstance(given, bool) or not isinstance(given, (int, float)) or given < least:
                raise StepInvalid(
                    f"`{name}` of `print_table` is {given!r}, expected a number from {least}.",
                    action="Correct it, or leave it out.",
                    seen=repr(given)[:80],
                )
        self._title, self._metadata, self._columns, self._widths = title, metadata, columns, widths
        self._timeout_s, self._live, self._slowdown_s = timeout, live, slowdown
        self._rows: deque[dict[str, Any]] = deque(maxlen=int(size))
        self._lock = threading.Lock()
        self._drawn_at, self._drawn_lines = 0.0, 0
        self._timer: threading.Timer | None = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Returns Python's ``print``, which the version hash contains. The step calls no user function."""
        return (print,)

    def describe(self) -> str:
        """Returns a text without the options, so that the options do not change the processor's version."""
        return "print_table"

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers) -> None:
        """Adds a row. Redraws the table in place if the output allows it; otherwise, prints a full table."""
        row = {KEY: key, TIMESTAMP: timestamp} if self._metadata else {}
        fields = _fields(value)
        row |= {VALUE: value} if fields is None else fields
        with self._lock:
            self._rows.append({name: each for name, each in row.items() if not self._columns or name in self._columns})
            if self._redraws:
                self._draw_again()
            elif len(self._rows) == self._rows.maxlen:
                self._print()
            elif self._timer is None:
                self._begin_timer(self._timeout_s)

    @property
    def _redraws(self) -> bool:
        return self._live and sys.stdout.isatty()

    def _begin_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._timed)
        self._timer.daemon = True
        self._timer.start()

    def _timed(self) -> None:
        with self._lock:
            self._timer = None
            if self._redraws:
                self._draw_again()
            elif self._rows:
                self._print()

    def _print(self) -> None:
        """Prints the table, and starts an empty table."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        print(self.text())
        self._rows.clear()

    def _draw_again(self) -> None:
        left_s = self._drawn_at + self._slowdown_s - time.monotonic()
        if left_s > 0:
            if self._timer is None:
                self._begin_timer(left_s)
            return
        text = self.text()
        # Moves the cursor up to the first line of the previous drawing, and clears the screen below it.
        print(f"\x1b[{self._drawn_lines}F\x1b[J" * bool(self._drawn_lines) + text)
        self._drawn_at, self._drawn_lines = time.monotonic(), text.count("\n") + 1

    def text(self) -> str:
        """Returns the rows that the table has now, as text."""
        # rich is imported here, because only development needs it.
        from io import StringIO

        from rich.console import Console
        from rich.table import Table

        names = [*self._columns] or list(dict.fromkeys(name for row in self._rows for name in row))
        table = Table(title=self._title)
        for name in names:
            width = self._widths.get(name)
            most = None if width else CELL_MAX
            table.add_column(name, width=width, max_width=most, no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            table.add_row(*(_cell(row[name]) if name in row else "" for name in names))
        out = StringIO()
        width = sum(self._widths.get(name, CELL_MAX) + 3 for name in names) + 2
        Console(file=out, width=max(width, 20), color_system=None, markup=False, emoji=False).print(table)
        return out.getvalue().rstrip("\n")


def _fields(value: Any) -> dict[str, Any] | None:
    """Returns the fields of a dict or an instance; None for a value without fields, or with a field of no JSON."""
    try:
        fields = fields_of(value)
    except (TypeError, ValueError):
        return None
    return None if fields is None else dict(fields)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
