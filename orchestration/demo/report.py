"""Prints the end of the demo on the terminal: figures, mismatches, and commands to run next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rich.markup import escape

from holdfast.infra.settings import Settings
from holdfast.orchestration.demo.terminal import Terminal
from holdfast.orchestration.demo.verification import ProcessorVerdict, figures_of


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
