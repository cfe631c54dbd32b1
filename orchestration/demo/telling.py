"""What the demonstration prints: one line for each step with its duration, a bar for the feed, a table of figures.

The console is for people; everything that libraries and the JVM write to stderr meanwhile goes to a log file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(slots=True)
class Step:
    """One step while it runs; ``say`` sets what its line tells when it is done."""

    said: str = ""

    def say(self, text: str) -> None:
        """What came of it."""
        self.said = text


@dataclass(slots=True)
class Telling:
    """Prints steps and keeps their durations, seconds."""

    console: Console
    durations: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Step]:
        """Show a step while it runs, then its outcome and duration; a failure is shown and passed on."""
        step, began = Step(), time.monotonic()
        try:
            with self.console.status(f"{escape(doing)} …"):
                yield step
        except BaseException:
            self.line(name, f"failed: {doing}", time.monotonic() - began, mark="[red]✗[/]")
            raise
        self.durations[name] = time.monotonic() - began
        self.line(name, step.said or doing, self.durations[name])

    def line(self, name: str, text: str, seconds: float | None = None, *, mark: str = "[green]✓[/]") -> None:
        """One line."""
        took = "" if seconds is None else f" [dim]({seconds:.1f} s)[/]"
        self.console.print(f"{mark} [bold]{escape(name):<11}[/] {escape(text)}{took}", highlight=False)

    @contextmanager
    def bars(self, totals: Mapping[str, int]) -> Iterator[Bars]:
        """A bar for each name, while the block runs."""
        columns = (TextColumn("  {task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            yield Bars(progress, {name: progress.add_task(name, total=total) for name, total in totals.items()})

    def table(self, title: str, figures: Mapping[str, str]) -> None:
        """Figures by name."""
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column(justify="right")
        for name, figure in figures.items():
            table.add_row(name, figure)
        self.console.print()
        self.console.print(table)


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that are moved by name."""

    progress: Progress
    tasks: Mapping[str, TaskID]

    def move(self, name: str, completed: int) -> None:
        """Set how far a bar is."""
        self.progress.update(self.tasks[name], completed=completed)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send this process's stderr, and that of children started meanwhile, to a file."""
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
