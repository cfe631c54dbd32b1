"""Checks the JSON that commands print against their schemas, in every test that runs a command."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import typer

#: The package whose contexts typer uses: click, or typer's own copy of click.
_CONTEXTS = importlib.import_module(f"{typer.Context.__mro__[1].__module__.rpartition('.')[0]}.globals")
#: With this option, a command prints JSON that has another schema.
_SIZES = "--sizes"


def compare(words: Sequence[str], document: Any) -> None:
    """Check a document against the schema of a command's answer, or of errors if the document is an error.

    Args:
        words: The command line. Only the command's own words choose the schema; arguments and values of options do not.
        document: The parsed JSON.

    Raises:
        ValidationError: The document does not match the schema.
    """
    from holdfast.orchestration.commands.json_documents import ANSWERS

    failed = isinstance(document, dict) and "error" in document
    named = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    ANSWERS["error" if failed else next(each for each in named if each in ANSWERS)].validate_python(
        document, strict=True
    )


def compared_text(as_text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Wraps the function that turns a document into text.

    Each document is first checked against its command's schema.
    """

    def text(document: Any) -> str:
        made = as_text(document)
        words = _running_command()
        if words != ["schema"]:  # `holdfast schema` prints a JSON Schema, for which there is no other schema
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
