"""Reads a small JSON file and decodes it to a given type."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

Document = TypeVar("Document")

#: The exceptions that decoding of untrusted JSON may raise; deeply nested JSON raises RecursionError.
JSON_FAILURES = (msgspec.MsgspecError, ValueError, RecursionError)


def read_json(file: Path, kind: type[Document]) -> Document | None:
    """The content of a JSON file as an object of type ``kind``.

    Returns None if the file is absent or unreadable, is no JSON, or does not have the fields of ``kind``.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, *JSON_FAILURES):
        return None
