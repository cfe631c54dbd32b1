"""``holdfast config``: prints each setting with its value, its meaning, and the place where the value was set."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.orchestration.commands.options import Json, command_settings, print_json

if TYPE_CHECKING:
    from holdfast.infra.settings.explained import Explained


_EXAMPLE = "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS"


def config(
    name: Annotated[
        str | None,
        typer.Argument(help="One setting, or a group of them, as `kafka`. Default: all.", show_default=False),
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that differ from their default.")] = False,
    as_json: Json = False,
) -> None:
    """Show each setting, where its value came from, and what it means; secrets are masked."""
    from holdfast.infra.settings.explained import explain, find_explained
    from holdfast.infra.settings.project_source import project_of

    settings = command_settings()
    project = project_of({})
    rows = list(explain(settings, project)) if name is None else find_explained(settings, project, name)
    shown = [each for each in rows if not changed or each.origin.kind != "default"]
    if as_json:
        print_json({"project": None if project is None else str(project.path), "settings": list(map(_document, shown))})
        return
    console = Console()
    console.print(f"project  {'none' if project is None else escape(str(project.path))}", highlight=False)
    console.print(f"home     {escape(str(settings.home))}", highlight=False)
    for each in shown:
        place = each.origin.place if project is None else each.origin.place.replace(f"{project.folder}/", "")
        assigned = f"{escape(each.name)} = {escape(_text(each.value))}"
        assigned = assigned if each.origin.kind == "default" else f"[bold]{assigned}[/]"
        console.print(f"{assigned}  [cyan]({escape(place)})[/]", highlight=False, soft_wrap=True)
        console.print(f"    [dim]{escape(each.meaning)}[/]", highlight=False, soft_wrap=True)
    console.print(f"{len(shown)} settings. As a variable, kafka.bootstrap_servers is {_EXAMPLE}.", highlight=False)


def _document(each: Explained) -> dict[str, Any]:
    return {
        "name": each.name,
        "variable": each.variable,
        "value": each.value,
        "source": {"kind": each.origin.kind, "place": each.origin.place},
        "secret": each.secret,
        "meaning": each.meaning,
    }


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
