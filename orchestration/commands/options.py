"""Option types, and functions for settings and output, that several commands use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.orchestration.commands import completion

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Internals = Annotated[
    bool,
    typer.Option(
        "--internals",
        help="Also print Holdfast's own records (clocks, indexes, timers), and all values as they are stored. `--json` "
        "always has them.",
    ),
]
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
    """Load the settings, log messages of at least ``log_level``, and set the umask so that new files are private."""
    # Imported late, because `holdfast --help` must not load settings, logging and their libraries.
    from holdfast.infra.log import configure_logging
    from holdfast.infra.settings import load_settings
    from holdfast.infra.system.privacy import keep_private

    settings = load_settings()
    # The log level is WARNING during `keep_private`. So every command prints the warning of `keep_private` that other
    # users can read the home folder.
    configure_logging("WARNING", settings.log_format)
    keep_private(settings)
    configure_logging(log_level, settings.log_format)
    return settings


def print_json(document: Any) -> None:
    """Print a document as indented JSON on stdout; dates are in ISO 8601 format."""
    typer.echo(as_text(document))


def as_text(document: Any) -> str:
    """A document as indented JSON text; dates are in ISO 8601 format."""
    return json.dumps(document, indent=2, default=lambda value: value.isoformat())


def print_answer(document: Any, sentence: str, *, as_json: bool) -> None:
    """Print the document if ``as_json`` is True; otherwise print the sentence."""
    if as_json:
        print_json(document)
    else:
        typer.echo(sentence)


def print_rows(columns: Iterable[str], rows: Sequence[Mapping[str, object]], *, none: str) -> None:
    """Print a table of these rows, or the sentence ``none`` if there are no rows."""
    # Imported late, because commands that print lines of text or JSON need no tables.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from holdfast.orchestration.commands.tables import print_table

    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape("" if value is None else str(value)) for value in row.values()))
    if rows:
        print_table(table, Console())
    else:
        Console().print(none)
