"""Compares the JSON that commands print with their schemas, wherever a test runs a command."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import typer

#: The package that typer takes its contexts from: click, or its own copy of it.
_CONTEXTS = importlib.import_module(f"{typer.Context.__mro__[1].__module__.rpartition('.')[0]}.globals")
#: The answer of a command with this option is another one.
_SIZES = "--sizes"


def compare(words: Sequence[str], document: Any) -> None:
    """Raises ValidationError unless this document answers the command that begins with these words, or is an error.

    What follows the command's own words (a processor, a number, values of options) does not count.
    """
    from holdfast.orchestration.commands.json_documents import ANSWERS

    failed = isinstance(document, dict) and "error" in document
    named = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    ANSWERS["error" if failed else next(each for each in named if each in ANSWERS)].validate_python(
        document, strict=True
    )


def compared_text(as_text: Callable[[Any], str]) -> Callable[[Any], str]:
    """The function that makes text of a document; each document is compared with the schema of the running command."""

    def text(document: Any) -> str:
        made = as_text(document)
        words = _running_command()
        if words != ["schema"]:  # a schema is no answer
            compare(words, json.loads(made))
        return made

    return text


def _running_command() -> list[str]:
    context, words = _CONTEXTS.get_current_context(silent=True), list[str]()
    if context is not None and context.params.get("sizes"):
        words.append(_SIZES)
    while context is not None and context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return words
