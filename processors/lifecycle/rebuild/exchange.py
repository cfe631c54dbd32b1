"""An exchange: paused workers change a store until it equals a given changelog.

The class ``Exchange`` contains the request, and the results so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.processors.lifecycle.plans.execution import put_back_by, written_to
from holdfast.processors.lifecycle.plans.requests import Keys, Selection


@dataclass(slots=True)
class Exchange:
    """The request of an exchange, and counts of entries: ``set``, ``deleted``, and ``same`` (unchanged).

    Args:
        processor: The processor that owns the store.
        keep: Whether message keys that are only in the store, not in the changelog, stay unchanged.
        export: Selection of present entries that owners (workers) write to files before the first change; None for no
            file.
        once: The name of the stage, which is the same if the stage is repeated. By this name, a task whose change has
            begun is not exported again, because the file of the earlier attempt already has its entries.
    """

    processor: str
    keep: bool = False
    export: Selection | None = None
    once: str = ""
    set: int = 0
    deleted: int = 0
    same: int = 0
    #: The paths of all files with exported entries, from all attempts.
    files: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Reset the counts to zero before an attempt."""
        self.set = self.deleted = self.same = 0

    def asked(self) -> dict[str, Any]:
        """The arguments of the command that is sent to the owners (the workers that hold the store's partitions)."""
        keys = self.export.keys if isinstance(self.export, Keys) else None
        exported = {} if self.export is None else {"export": True, "once": self.once, "keys": keys}
        return {"keep": self.keep, **exported}

    def add(self, result: Mapping[str, Any]) -> None:
        """Add the counts and files of one worker's result to this object."""
        self.set += int(result["set"])
        self.deleted += int(result["deleted"])
        self.same += int(result["same"])
        found = [*result.get("before", ()), *([result["export"]["path"]] if "export" in result else [])]
        self.files += [str(path) for path in found if path not in self.files]

    @property
    def units(self) -> int:
        """The number of entries that were compared so far."""
        return self.set + self.deleted + self.same

    def said(self, store: str, other: str) -> str:
        """The result as text: numbers of set, deleted and unchanged entries, export files, and undo commands."""
        return (
            f"{store} is equal to {other}: {self.set:,} entries differed or were missing and are set, "
            f"{self.deleted:,} extra entries are deleted, {self.same:,} were the same{written_to(self.files)}"
            f"{put_back_by(self.processor, self.files)}"
        )
