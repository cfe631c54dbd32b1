"""Options, settings and output that several commands share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands import completion
from holdfast.orchestration.commands.tables import print_table

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Processor = Annotated[
    str, typer.Argument(help="Name of the processor.", show_default=False, autocompletion=completion.processors)
]
Store = Annotated[
    list[str] | None,
    typer.Option("--store", help="Only this store; repeatable. Default: all stores.", autocompletion=completion.stores),
]
OneStore = Annotated[
    str | None,
    typer.Option("--store", help="The store. Not needed when the processor has one.", autocompletion=completion.stores),
]
Who = Annotated[str | None, typer.Option(help="Name to record for this change. Default: the current user.")]


def command_settings(log_level: str = "WARNING") -> Settings:
    """The settings of this process, with private files; log events below ``log_level`` are not printed."""
    # The first import of settings, logging and their libraries: `holdfast --help` loads none of them.
    from holdfast.infra.log import configure_logging
    from holdfast.infra.settings import load_settings
    from holdfast.infra.system.privacy import keep_private

    settings = load_settings()
    configure_logging("WARNING", settings.log_format)  # every command logs that a home was open to other users
    keep_private(settings)
    configure_logging(log_level, settings.log_format)
    return settings


def print_json(document: Any) -> None:
    """Print one indented JSON document on stdout; dates in ISO format."""
    typer.echo(as_text(document))


def as_text(document: Any) -> str:
    """An indented JSON document; dates in ISO format."""
    return json.dumps(document, indent=2, default=lambda value: value.isoformat())


def print_answer(document: Any, sentence: str, *, as_json: bool) -> None:
    """Print the JSON document, or the sentence with the same content."""
    if as_json:
        print_json(document)
    else:
        typer.echo(sentence)


def print_rows(columns: Iterable[str], rows: Sequence[Mapping[str, object]], *, none: str) -> None:
    """Print a table of these rows, or the sentence ``none``."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape("" if value is None else str(value)) for value in row.values()))
    if rows:
        print_table(table, Console())
    else:
        Console().print(none)
