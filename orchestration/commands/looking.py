"""``holdfast audit`` compares the copies of state; ``holdfast logs`` prints a worker's log. Both only read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.kafka.client import client_config
from holdfast.orchestration.commands.options import Json, Processor, Store, command_settings, print_json
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.audits.comparison import SHOWN, Side
from holdfast.processors.audits.stores import StoreAudit, document
from holdfast.processors.audits.telling import UNJUDGED, told_key

#: Exit code of ``audit`` when copies differ.
DIFFERENT = 1
_FOLLOW_EVERY_S = 0.3
#: Terminal columns that a table of fingerprints needs. In a narrower terminal a table would break fingerprints, which
#: people copy, so each row becomes a line.
WIDE = 120


class NoLog(HoldfastError):
    """The processor has no log in that slot."""

    exit_code = EXIT_BAD_CONFIGURATION


def add_looking(app: typer.Typer) -> None:
    """Add ``audit`` and ``logs`` to the command line."""
    app.command()(audit)
    app.command()(logs)


def audit(
    processor: Processor,
    store: Store = None,
    warehouse: Annotated[bool, typer.Option("--warehouse", help="Compare the stores' warehouse tables, too.")] = False,
    as_json: Json = False,
) -> None:
    """Compare state with its changelog, key by key at the same offset. Exit code 1: they differ."""
    settings = command_settings()
    doing = "workers take a checkpoint; the changelogs are read …"
    with open_verbs(settings) as verbs, Console(stderr=True).status(doing):
        audits = verbs.audit(processor, tuple(store or ()), client_config(settings), warehouse=warehouse)
    if as_json:
        print_json([document(each) for each in audits])
    else:
        _print(audits)
    raise typer.Exit(DIFFERENT if any(each.differences for each in audits) else 0)


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


def _print(audits: tuple[StoreAudit, ...]) -> None:
    console = Console()
    _print_moments(console, audits)
    for each in audits:
        for sentence in each.differences:
            console.print(f"[red]{escape(each.store)}[/]: {escape(sentence)}", soft_wrap=True)
        for sentence in each.warnings:
            console.print(f"[yellow]{escape(each.store)}[/]: {escape(sentence)}", soft_wrap=True)
        if each.unjudged:
            console.print(f"{escape(each.store)}: {escape(UNJUDGED.format(each.unjudged))}", soft_wrap=True)
        rows = [told_key(one) for moment in each.moments for one in moment.first][:SHOWN]
        if rows:
            _print_keys(console, rows, f"First {len(rows)} keys of {each.store} that differ")
        for number, sentence in enumerate(each.repair, 1):
            console.print(f"[bold]What to do, {number}[/]: {escape(sentence)}", soft_wrap=True)


def _print_moments(console: Console, audits: tuple[StoreAudit, ...]) -> None:
    table = Table("store", "partition", "offset", "keys", *(f"{side.value}'s fingerprint" for side in Side), "")
    for each in audits:
        for moment in each.moments:
            wholes = moment.wholes
            prints = {side: wholes[side].hex for side in Side if side in wholes}
            place = (escape(each.store), str(moment.partition), str(moment.place.offset))
            keys = f"{next(iter(wholes.values())).count:,}"
            result = f"[red]{moment.differing:,} keys differ[/]" if moment.differing else "[green]equal[/]"
            if console.width >= WIDE:
                table.add_row(*place, keys, *(prints.get(side, "") for side in Side), result)
                continue
            console.print(f"{place[0]}, partition {place[1]}, offset {place[2]}: {keys} keys, {result}", soft_wrap=True)
            if len({*prints.values()}) > 1:
                for side, fingerprint in prints.items():
                    console.print(f"    {side.value:<10} {fingerprint}", soft_wrap=True)
    if console.width >= WIDE:
        console.print(table)


def _print_keys(console: Console, rows: list[dict[str, Any]], title: str) -> None:
    if console.width >= WIDE:
        table = Table(*rows[0], title=escape(title))
        for row in rows:
            table.add_row(*(escape(str(value)) for value in row.values()))
        console.print(table)
        return
    console.print(f"{escape(title)}:")
    for row in rows:
        values = ", ".join(f"{name} {value}" for name, value in row.items() if value not in ("", None))
        console.print(f"    {escape(values)}", soft_wrap=True)
