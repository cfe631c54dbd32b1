"""Reads a small JSON file into a type; returns None for an absent, unreadable or invalid file."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

Document = TypeVar("Document")

#: The exceptions of decoding untrusted JSON. Deep nesting raises RecursionError, which is no ValueError.
JSON_FAILURES = (msgspec.MsgspecError, ValueError, RecursionError)


def read_json(file: Path, kind: type[Document]) -> Document | None:
    """The content of a JSON file as ``kind``.

    None if the file can't be read, is no JSON, or has fields of other types.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, *JSON_FAILURES):
        return None
