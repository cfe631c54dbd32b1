"""The mark of a deployment: a copy of its row in the registry, beside the processor's releases.

    <home>/releases/<processor>/deployment.json

A registry that was replaced by an older copy has a smaller generation than the mark.

Invariants:
    - The registry is written first: a mark is never ahead of a registry that was not replaced.
    - The generation of a mark never falls.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.infra.paths import Paths
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json


class Mark(msgspec.Struct, frozen=True):
    """A deployment as the registry last recorded it; ``release`` has its release's columns, None without one.

    ``began_at`` is when the processor was deployed first, in seconds since 1970; None in the mark of an older version.
    """

    generation: int
    code_version: str
    slots: tuple[str, ...]
    desired: str
    release: dict[str, Any] | None = None
    began_at: float | None = None


def read_mark(paths: Paths, processor: str) -> Mark | None:
    """The mark of a processor; None if it is missing or damaged."""
    return read_json(paths.deployment_mark(processor), Mark)


def write_mark(paths: Paths, processor: str, mark: Mark) -> None:
    """Replace the mark of a processor, unless the present mark has a larger generation; ``began_at`` is kept.

    Raises:
        OSError: The file can't be written.
    """
    known = read_mark(paths, processor)
    if known is None or known.generation <= mark.generation:
        if known is not None and known.began_at is not None:
            mark = msgspec.structs.replace(mark, began_at=known.began_at)
        paths.releases(processor).mkdir(parents=True, exist_ok=True)
        replace_text(paths.deployment_mark(processor), msgspec.json.encode(mark).decode())
