"""The demo's terminal output: a line with the duration of each step, progress bars, figures, and the report at the end.

``stderr_to`` redirects stderr to a log file, because libraries and the JVM write to stderr and would damage the
progress bars.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from holdfast.infra.settings import Settings
from holdfast.orchestration.demo.verification import ProcessorVerdict, figures_of


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


def report(
    settings: Settings,
    terminal: Terminal,
    figures: Mapping[str, str],
    verdicts: Sequence[ProcessorVerdict],
    seconds: float,
) -> None:
    """Print the figures of a demo, its duration in ``seconds``, its mismatches, and commands to run next."""
    paths, mismatches = settings.paths, sum(one.mismatches for one in verdicts)
    counts = {"mismatches": f"{mismatches}", "whole demo": f"{seconds:.0f} s"}
    terminal.table("Figures", {**figures, **figures_of(verdicts), **counts})
    if mismatches:
        terminal.console.print(f"\n[bold red]{mismatches} mismatches[/]")
        for sentence in (sentence for one in verdicts for sentence in one.sentences()):
            terminal.console.print(f"  {escape(sentence)}", highlight=False)
    else:
        terminal.console.print("\n[bold green]Nothing was lost, nothing was doubled.[/]")
    terminal.console.print(
        f"\nWhat to do next\n"
        f"  {command(settings, 'up')}\n      the graph of this demo in Dagster, with its checks and plots\n"
        f"  {command(settings, 'incidents list')}\n      the kills and the recoveries\n"
        f"  {command(settings, 'down')}\n      stops all services; the next demo empties the folder\n"
        f"Logs of the processors: {paths.logs}\n"
        f"Warehouse tables: {paths.warehouse}",
        highlight=False,
        soft_wrap=True,
    )


def command(settings: Settings, words: str) -> str:
    """A ``holdfast`` command for the demo's home folder; for example, ``words="down"`` gives ``… holdfast down``."""
    return f"HOLDFAST_HOME={shlex.quote(str(settings.home))} holdfast {words}"
