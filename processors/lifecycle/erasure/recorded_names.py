"""Removes a key from the plans and results that Holdfast's registry keeps, for example of an earlier ``clear``."""

# tidy: allow-crumb because the module is one decision: which words of a recorded text name a key

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.infra.database.applies import ErasureBook
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet


def redactor(key: str, mark: str) -> Callable[[str], str]:
    """A function that replaces a key by its mark in a text, or in all texts of a JSON document.

    A text is replaced if it equals the key. Within a longer text, only the key in quotes is replaced, because a short
    key is a part of many words.
    """
    shown = f"erased:{mark[:12]}"

    def change(text: str) -> str:
        if key not in text and json.dumps(key)[1:-1] not in text:
            return text
        try:
            return json.dumps(_walked(json.loads(text), replaced), separators=(",", ":"))
        except ValueError:
            return replaced(text)

    def replaced(text: str) -> str:
        return shown if text == key else text.replace(repr(key), repr(shown))

    return change


def _walked(document: Any, replaced: Callable[[str], str]) -> Any:
    if isinstance(document, str):
        return replaced(document)
    if isinstance(document, list):
        return [_walked(each, replaced) for each in document]
    if isinstance(document, dict):
        return {name: _walked(each, replaced) for name, each in document.items()}
    return document


def erase_names(book: ErasureBook, processor: str, key: str, mark: str) -> Found:
    """Replace the key by its mark in the plans and applies of a processor; reads them again.

    Raises:
        NotYetGone: A text still has the key.
    """
    if key == f"erased:{mark[:12]}":
        return Found("gone", "the key was removed from the recorded plans in one transaction, before this run")
    change = redactor(key, mark)
    changed = book.redact(processor, change)
    if book.redact(processor, change):
        raise not_yet("registry", "A recorded plan still has the key")
    if not changed:
        return Found("absent", "all recorded plans and their results were read: none names the key")
    return Found("gone", f"the key is removed from {changed} recorded plans and results; all were read again")
