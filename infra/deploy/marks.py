"""Marks: a mark is a file with a copy of a deployment's row in Holdfast's registry, stored next to the releases.

    <home>/releases/<processor>/deployment.json

If an older copy has replaced the registry, the deployment's generation (number of changes) in the registry is smaller
than the generation in the mark. So the mark shows that the registry is out of date.

Invariants:
    - The registry is written before the mark. So a mark is ahead of the registry only if the registry was replaced.
    - The generation in a mark never decreases.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.infra.paths import Paths
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json


class Mark(msgspec.Struct, frozen=True):
    """A copy of a deployment's row in Holdfast's registry.

    ``release`` has the columns of the deployed release's row; None if no release is recorded. ``began_at`` is the time
    of the processor's first deployment, seconds since 1970; None if an older version of Holdfast wrote the mark.
    """

    generation: int
    code_version: str
    slots: tuple[str, ...]
    desired: str
    release: dict[str, Any] | None = None
    began_at: float | None = None


def read_mark(paths: Paths, processor: str) -> Mark | None:
    """The mark (copied deployment row) of a processor; None if its file is missing or damaged."""
    return read_json(paths.deployment_mark(processor), Mark)


def write_mark(paths: Paths, processor: str, mark: Mark) -> None:
    """Write the mark (file copy of the deployment's row) of a processor, unless the existing mark is newer.

    The mark with the larger generation (number of changes) is newer. ``began_at`` of an existing mark is kept.

    Raises:
        OSError: The file can't be written.
    """
    known = read_mark(paths, processor)
    if known is None or known.generation <= mark.generation:
        if known is not None and known.began_at is not None:
            mark = msgspec.structs.replace(mark, began_at=known.began_at)
        paths.releases(processor).mkdir(parents=True, exist_ok=True)
        replace_text(paths.deployment_mark(processor), msgspec.json.encode(mark).decode())
