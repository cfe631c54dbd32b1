"""The settings ``HOLDFAST_ARCHIVE`` and ``HOLDFAST_ORPHAN_GRACE_DAYS``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field


class OrphanSettings(BaseModel):
    """Settings of orphans; ``Settings`` inherits them, because their variables have no common prefix."""

    archive: Path | None = Field(default=None, description="Archive of orphans. Unset: a folder in the home.")
    orphan_grace_days: float = Field(
        default=7.0, ge=0, description="Age of an orphan's archive before the orphan may be deleted, days."
    )
