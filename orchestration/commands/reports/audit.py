"""``holdfast audit``: compares each store with its changelog and its warehouse table. Only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands.options import Json, Processor, Store, command_settings, print_json

if TYPE_CHECKING:
    from holdfast.processors.audits.stores import StoreAudit

#: On a terminal with fewer columns, each row of fingerprints (long hashes) is printed as one line. A table would break
#: a fingerprint over several lines, and users could not copy it.
WIDE = 120


def audit(
    processor: Processor,
    store: Store = None,
    warehouse: Annotated[bool, typer.Option("--warehouse", help="Compare the stores' warehouse tables, too.")] = False,
    as_json: Json = False,
) -> None:
    """Compare state with its changelog, key by key at the same offset. Exit code 1: they differ."""
    from holdfast.orchestration.verbs import open_verbs
    from holdfast.processors.audits.stores import document

    doing = "workers take a checkpoint; the changelogs are read …"
    with open_verbs(command_settings()) as verbs, Console(stderr=True).status(doing):
        audits = verbs.audit(processor, tuple(store or ()), warehouse=warehouse)
    if as_json:
        print_json([document(each) for each in audits])
    else:
        _print(audits)
    raise typer.Exit(int(any(each.differences for each in audits)))


def _print(audits: tuple[StoreAudit, ...]) -> None:
    from holdfast.processors.audits.comparison import SHOWN
    from holdfast.processors.audits.rows import UNJUDGED, key_row

    console = Console()
    _print_moments(console, audits)
    for each in audits:
        for sentence in each.differences:
            console.print(f"[red]{escape(each.store)}[/]: {escape(sentence)}", soft_wrap=True)
        for sentence in each.warnings:
            console.print(f"[yellow]{escape(each.store)}[/]: {escape(sentence)}", soft_wrap=True)
        if each.unjudged:
            console.print(f"{escape(each.store)}: {escape(UNJUDGED.format(each.unjudged))}", soft_wrap=True)
        rows = [key_row(one) for moment in each.moments for one in moment.first][:SHOWN]
        if rows:
            _print_keys(console, rows, f"First {len(rows)} keys of {each.store} that differ")
        for number, sentence in enumerate(each.repair, 1):
            console.print(f"[bold]What to do, {number}[/]: {escape(sentence)}", soft_wrap=True)


def _print_moments(console: Console, audits: tuple[StoreAudit, ...]) -> None:
    from holdfast.processors.audits.comparison import Side

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
