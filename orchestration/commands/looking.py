"""``holdfast audit`` and ``holdfast logs``: looking, changing nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.kafka.client import client_config
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import load_settings
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.audits.comparison import SHOWN, Side
from holdfast.processors.audits.stores import StoreAudit, document
from holdfast.processors.audits.telling import UNJUDGED, told_key

#: ``audit`` ends with this code when something differs.
DIFFERENT = 1
_LOOK_EVERY_S = 0.3
#: A terminal of so many columns has room for the tables; in a narrower one they are lines.
WIDE = 120


class NoLog(HoldfastError):
    """There is no log of that processor."""

    exit_code = EXIT_BAD_CONFIGURATION


def add_looking(app: typer.Typer) -> None:
    """Add both commands to the command line."""
    app.command()(audit)
    app.command()(logs)


def audit(
    processor: Annotated[str, typer.Argument(help="The processor's name.", show_default=False)],
    store: Annotated[list[str] | None, typer.Option(help="A store; repeatable. None named: all.")] = None,
    warehouse: Annotated[bool, typer.Option("--warehouse", help="Compare the stores' tables, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False,
) -> None:
    """Prove that state equals its changelog and its table, key by key, at equal offsets. Exit code 1 when not."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    with open_verbs(settings) as verbs, Console(stderr=True).status("the owners take a checkpoint, logs are folded …"):
        found = verbs.audit(processor, tuple(store or ()), client_config(settings), warehouse=warehouse)
    if as_json:
        typer.echo(json.dumps([document(each) for each in found], indent=2))
    else:
        _print(found)
    raise typer.Exit(DIFFERENT if any(each.differences for each in found) else 0)


def logs(
    processor: Annotated[str, typer.Argument(help="The processor's name.", show_default=False)],
    slot: Annotated[str, typer.Option(help="Which instance.")] = "0",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="So many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows, until interrupted.")] = False,
) -> None:
    """Show the last lines of a processor's log."""
    settings = load_settings()
    file = settings.paths.program_log(processor, slot)
    if not file.is_file():
        there = sorted(path.stem for path in settings.paths.logs.glob("*.log"))
        raise NoLog(
            f"There is no log of {processor} slot {slot} in {settings.paths.logs}.",
            action=f"Name one that was deployed; there are logs of {', '.join(there) or 'nothing'}.",
            processor=processor,
            slot=slot,
        )
    _show(file, lines, follow=follow)


def _show(file: Path, lines: int, *, follow: bool) -> None:
    with file.open(encoding="utf-8", errors="replace") as opened:
        for line in opened.readlines()[-lines:]:
            typer.echo(line, nl=False)
        while follow:
            if line := opened.readline():
                typer.echo(line, nl=False)
            elif file.stat().st_size < opened.tell():
                opened.seek(0)  # it was rotated
            else:
                time.sleep(_LOOK_EVERY_S)


def _print(found: tuple[StoreAudit, ...]) -> None:
    console = Console()
    _print_moments(console, found)
    for each in found:
        for sentence in each.differences:
            console.print(f"[red]{escape(each.store)}[/]: {escape(sentence)}", soft_wrap=True)
        for sentence in each.warnings:
            console.print(f"[yellow]{escape(each.store)}[/]: {escape(sentence)}", soft_wrap=True)
        if each.unjudged:
            console.print(f"{escape(each.store)}: {escape(UNJUDGED.format(each.unjudged))}", soft_wrap=True)
        rows = [told_key(one) for moment in each.moments for one in moment.first][:SHOWN]
        if rows:
            _print_keys(console, rows, f"the first {len(rows)} keys of {each.store} that differ")
        for number, sentence in enumerate(each.repair, 1):
            console.print(f"[bold]What to do, {number}[/]: {escape(sentence)}", soft_wrap=True)


def _print_moments(console: Console, found: tuple[StoreAudit, ...]) -> None:
    table = Table("store", "partition", "offset", "keys", *(f"{side.value}'s fingerprint" for side in Side), "")
    for each in found:
        for moment in each.moments:
            wholes = moment.wholes
            prints = {side: wholes[side].hex for side in Side if side in wholes}
            place = (escape(each.store), str(moment.partition), str(moment.place.offset))
            keys = f"{next(iter(wholes.values())).count:,}"
            said = f"[red]{moment.differing:,} keys differ[/]" if moment.differing else "[green]equal[/]"
            if console.width >= WIDE:
                table.add_row(*place, keys, *(prints.get(side, "") for side in Side), said)
                continue
            console.print(f"{place[0]}, partition {place[1]}, offset {place[2]}: {keys} keys, {said}", soft_wrap=True)
            if len({*prints.values()}) > 1:
                for side, told in prints.items():
                    console.print(f"    {side.value:<10} {told}", soft_wrap=True)
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
        told = ", ".join(f"{name} {value}" for name, value in row.items() if value not in ("", None))
        console.print(f"    {escape(told)}", soft_wrap=True)
