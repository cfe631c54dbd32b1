"""Decides whether Holdfast's registry is an outdated backup, which lacks a processor's newest deployment.

Each change of a deployment raises its generation (a number) in the registry. Two other places also record the newest
generation: a file next to the processor's releases (the mark), and each commit in its changelogs (the meta records). If
the registry has a smaller generation than these records, it was replaced by an older copy.

Invariants:
    - A registry without the deployment counts as outdated only if a mark has the deployment. Changelogs without a mark
      mean a new installation, whose registry never had the deployment.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.infra.deploy.marks import Mark


class Recorded(msgspec.Struct, frozen=True):
    """A deployment's number (generation) and code version; ``desired`` is its desired state, None if unknown."""

    generation: int
    code_version: str
    desired: str | None = None

    def __str__(self) -> str:
        """The deployment's number (generation) as text."""
        rest = "" if self.desired is None else f", {self.desired}"
        return f"generation {self.generation} (version {self.code_version}{rest})"


class Behind(msgspec.Struct, frozen=True):
    """The finding that the registry (database of deployments) lacks the newest deployment of a processor.

    Args:
        processor: The name of the processor.
        here: The record in the registry; None if the registry has no deployment.
        seen: The record with a greater generation, from the mark or the changelogs.
        mark: The mark (a file with a copy of the registry's row); None if only changelogs have the greater generation.
    """

    processor: str
    here: Recorded | None
    seen: Recorded
    mark: Mark | None = None

    @property
    def sentence(self) -> str:
        """The finding as text, with the deployment numbers in Holdfast's registry and in the newer record."""
        has = "no deployment of it" if self.here is None else str(self.here)
        where = "in its changelogs" if self.mark is None else "beside its releases"
        return (
            f"The registry is older than {self.processor}: it has {has}, but {where} stands {self.seen}. The database "
            "was replaced by an older copy. Nothing is started, stopped or rolled back until the registry is corrected."
        )

    @property
    def action(self) -> str:
        """The command that corrects Holdfast's registry."""
        return f"holdfast registry adopt {self.processor}"

    @property
    def basis(self) -> dict[str, Any]:
        """The values of this finding from which the hash of an ``adopt`` plan is computed."""
        return {"here": self.here, "seen": self.seen}


def judge(processor: str, here: Recorded | None, mark: Mark | None, logged: Recorded | None) -> Behind | None:
    """Returns the finding that Holdfast's registry lacks a processor's newest deployment; None if the registry has it.

    ``here`` is the record in the registry, ``logged`` the record in the processor's changelogs.
    """
    marked = None if mark is None else Recorded(mark.generation, mark.code_version, mark.desired)
    if here is None:
        return None if marked is None else Behind(processor, here, marked, mark)
    if logged is not None and logged.generation > max(here.generation, 0 if marked is None else marked.generation):
        return Behind(processor, here, logged)
    if marked is not None and marked.generation > here.generation:
        return Behind(processor, here, marked, mark)
    return None
