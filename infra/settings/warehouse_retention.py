"""The settings ``HOLDFAST_MAINTENANCE__*``: how long the warehouse keeps snapshots, tags, versions and files."""

from __future__ import annotations

from pydantic import Field

from holdfast.infra.settings.group import Group


class MaintenanceSettings(Group):
    """Retention and compaction of the warehouse's tables (docs/warehouse-reading.md)."""

    keep_snapshots: int = Field(default=30, ge=1, description="Number of newest snapshots that keep their tag.")
    keep_snapshots_days: float = Field(default=30.0, ge=0, description="Younger snapshots also keep their tag, days.")
    keep_times_days: float = Field(default=400.0, ge=0, description="Younger time partitions keep their tags, days.")
    keep_versions_hours: float = Field(
        default=72.0, ge=1, description="How long versions without a tag stay for running readers, hours."
    )
    compact_every: int = Field(default=8, ge=1, description="Commits to a table between two compactions.")
    leftovers_hours: float = Field(default=72.0, ge=24, description="Older files of failed runs are deleted, hours.")
