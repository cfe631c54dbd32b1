"""``holdfast logs``: print a worker's log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.orchestration.commands.options import Processor, command_settings

_FOLLOW_EVERY_S = 0.3


class NoLog(HoldfastError):
    """The processor has no log in that slot."""

    exit_code = EXIT_BAD_CONFIGURATION


def logs(
    processor: Processor,
    slot: Annotated[str, typer.Option(help="Slot of the instance.")] = "0",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Number of lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until interrupted.")] = False,
) -> None:
    """Print the last lines of a processor's log."""
    paths = command_settings().paths
    file = paths.program_log(processor, slot)
    if not file.is_file():
        logs = sorted(path.stem for path in paths.logs.glob("*.log"))
        raise NoLog(
            f"Processor {processor} has no log for slot {slot} in {paths.logs}. Logs there: "
            f"{', '.join(logs) or 'none'}.",
            action="Find the deployed processors with `holdfast status`, then give `--slot` if it is not 0.",
            processor=processor,
            slot=slot,
        )
    _print_log(file, lines, follow=follow)


def _print_log(file: Path, lines: int, *, follow: bool) -> None:
    with file.open(encoding="utf-8", errors="replace") as opened:
        for line in opened.readlines()[-lines:]:
            typer.echo(line, nl=False)
        while follow:
            if line := opened.readline():
                typer.echo(line, nl=False)
            elif file.stat().st_size < opened.tell():
                opened.seek(0)  # the log was rotated
            else:
                time.sleep(_FOLLOW_EVERY_S)
