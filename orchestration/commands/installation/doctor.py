"""``holdfast doctor``: checks this machine, the Kafka cluster, the settings and the services. Only reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.orchestration.commands.options import Json, print_json

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    every: Annotated[bool, typer.Option("--all", "-a", help="Print the lines that are ok, too.")] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, the cluster, its rights and the settings. Exit code 1: something must be corrected."""
    from holdfast.infra.log import configure_logging
    from holdfast.orchestration.doctor.gathering import examine
    from holdfast.orchestration.doctor.judging import worst

    configure_logging("ERROR", "text")
    console, found = Console(), []
    with Console(stderr=True).status("looking …"):
        for each in examine():
            found.append(each)
            if not as_json and (every or each.verdict != "ok"):
                colour = _COLOURS[each.verdict]
                wanted = f" (expected: {each.expected})" if each.expected and each.verdict != "ok" else ""
                line = f"[{colour}]{each.verdict:<4}[/] [bold]{escape(each.name)}[/]: {escape(each.seen + wanted)}"
                console.print(line, highlight=False, soft_wrap=True)
                if each.action:
                    console.print(f"     What to do: {escape(each.action)}", highlight=False, soft_wrap=True)
    verdict = worst(found)
    if as_json:
        print_json({"verdict": verdict, "findings": [asdict(each) for each in found]})
    else:
        counts = {name: sum(each.verdict == name for each in found) for name in _COLOURS}
        console.print(f"{len(found)} checks: {counts['ok']} ok, {counts['warn']} warn, {counts['fail']} fail.")
    raise typer.Exit(int(verdict == "fail"))
