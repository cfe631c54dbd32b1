"""The memory of plans that were shown and of applies that were begun, as a protocol; the registry fulfils it.

    OPEN ──claimed by a run──► OPEN, held ──every stage noted──► DONE
     ▲  ▲                        │    │
     │  └──────its run died──────┘    └──a stage failed──► OPEN, not held, with the reason ──► goes on, or ABANDONED
     └── of one processor there is at most one

Invariants:
    - The database itself refuses a second open apply of one processor.
    - Who holds an apply says so again and again; one that is silent for ``SILENT_S`` may be taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.infra.database.records import ApplyOutcome, ApplyRecord, StageNote

__all__ = ["BEAT_S", "SILENT_S", "ApplyOutcome", "ApplyRecord", "Journal", "StageNote"]

#: How often a holder says that it still works on it, seconds.
BEAT_S = 5.0
#: A holder that says nothing for so long is taken for dead, seconds.
SILENT_S = 60.0


class Journal(Protocol):
    """What applying needs to remember."""

    def remember_plan(self, plan_hash: str, processor: str, verb: str, plan: str, now: datetime) -> None:
        """Keep a plan that was shown."""
        ...

    def remembered_plan(self, plan_hash: str) -> str | None:
        """A plan that was shown; None when it never was, or too long ago."""
        ...

    def begin_apply(
        self, *, processor: str, verb: str, plan_hash: str, plan: str, who: str, holder: str, now: datetime
    ) -> tuple[ApplyRecord, bool]:
        """The processor's open apply, and whether this call began it (and holds it)."""
        ...

    def claim_apply(self, apply_id: int, holder: str, now: datetime, *, instead_of: str | None) -> bool:
        """Take an open apply over from that holder (None: from nobody); false when somebody else was quicker."""
        ...

    def beat_apply(self, apply_id: int, holder: str, now: datetime) -> bool:
        """Say that one still works on it; false when it is not ours any more."""
        ...

    def note_stage(self, apply_id: int, holder: str, note: StageNote, now: datetime) -> bool:
        """Record that a stage is through; false when the apply is not ours any more."""
        ...

    def let_go_of_apply(self, apply_id: int, holder: str, reason: str, now: datetime) -> None:
        """Leave it open for another try."""
        ...

    def end_apply(self, apply_id: int, outcome: ApplyOutcome, now: datetime, *, reason: str = "") -> bool:
        """End it; false when it had ended."""
        ...

    def applies(self, limit: int = ..., *, processor: str | None = ..., open_only: bool = ...) -> Sequence[ApplyRecord]:
        """The newest applies, newest first."""
        ...

    def stage_rates(self, processor: str) -> dict[str, tuple[float, float]]:
        """By stage, the units of work and the seconds of the processor's applies that are through."""
        ...
