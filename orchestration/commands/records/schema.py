"""``holdfast schema``: prints the JSON Schema of the document that a command prints with ``--json``."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.options import print_json


class NoSchema(HoldfastError):
    """The command prints no JSON, or does not exist."""

    exit_code = EXIT_BAD_CONFIGURATION


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Words of a command, as `apply list`; `error` for errors. Default: list the commands."),
    ] = None,
) -> None:
    """Print the JSON Schema of a command's `--json`; without a command, list those that have one."""
    from holdfast.orchestration.commands.json_documents import ANSWERS, answer_of

    if not command:
        for words in ANSWERS:
            typer.echo(words)
        return
    words = " ".join(command)
    answer = answer_of(words)
    if answer is None:
        raise NoSchema(
            f"`{words}` prints no JSON.", action="Choose a command that `holdfast schema` lists.", command=words
        )
    document = answer.json_schema(mode="serialization", by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    print_json({**head, **document, "title": f"holdfast {words}"})
