"""The demo's terminal output: a line with the duration of each step, progress bars, and a table of figures.

``stderr_to`` redirects stderr to a log file, because libraries and the JVM write to stderr and would damage the
progress bars.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Terminal:
    """Prints the steps, progress bars and figures of a demo on the terminal."""

    console: Console

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Callable[[str], None]]:
        """Context manager for one step: shows a spinner, then prints the step's outcome and duration.

        The block gets a function that sets the text of the outcome; by default the text is ``doing``. An error in the
        block is printed and raised again.
        """
        outcome, began = [doing], time.monotonic()
        try:
            with self.console.status(f"{escape(doing)} …"):
                yield outcome.append
        except BaseException:
            self.line(name, f"failed: {doing}", time.monotonic() - began, mark="[red]✗[/]")
            raise
        self.line(name, outcome[-1], time.monotonic() - began)

    def line(self, name: str, text: str, seconds: float | None = None, *, mark: str = "[green]✓[/]") -> None:
        """Print a line with four parts: a symbol, the name of a step, a text, and a duration in seconds."""
        took = "" if seconds is None else f" [dim]({seconds:.1f} s)[/]"
        self.console.print(f"{mark} [bold]{escape(name):<11}[/] {escape(text)}{took}", highlight=False)

    @contextmanager
    def bars(self, totals: Mapping[str, int]) -> Iterator[Callable[[str, int], None]]:
        """Context manager that shows a progress bar for each name; ``totals`` has the maximum of each bar.

        The block gets a function that sets a bar's value: ``move(name, completed)``.
        """
        columns = (TextColumn("  {task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            tasks = {name: progress.add_task(name, total=total) for name, total in totals.items()}
            yield lambda name, completed: progress.update(tasks[name], completed=completed)

    def table(self, title: str, figures: Mapping[str, str]) -> None:
        """Print a table of names and figures."""
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column(justify="right")
        for name, figure in figures.items():
            table.add_row(name, figure)
        self.console.print()
        self.console.print(table)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Context manager that redirects stderr of this process, and of child processes started in the block, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
