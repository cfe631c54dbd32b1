"""The settings ``HOLDFAST_UPKEEP__*``: how long records, logs and copies are kept, and how much room the disk needs."""

from __future__ import annotations

from pydantic import Field

from holdfast.infra.settings.group import Group


class UpkeepSettings(Group):
    """What the job ``upkeep`` prunes (docs/operations.md)."""

    observations_days: float = Field(
        default=7.0, ge=1, description="Age at which Dagster's events without a run are deleted, days."
    )
    runs_days: float = Field(
        default=30.0, ge=2, description="Age at which successful runs, their events and their output are deleted, days."
    )
    failed_runs_days: float = Field(
        default=90.0, ge=2, description="Age at which failed and canceled runs are deleted, days."
    )
    asset_runs_days: float = Field(
        default=400.0, ge=2, description="Age at which successful runs that materialised assets are deleted, days."
    )
    registry_days: float = Field(
        default=400.0, ge=30, description="Age at which ended applies, incidents and actions are deleted, days."
    )
    releases: int = Field(default=5, ge=1, description="Number of releases kept for each processor.")
    archive_days: float | None = Field(
        default=None, ge=1, description="Age of copies of deleted orphans that are deleted, days. Unset: none is."
    )
    exports_days: float | None = Field(
        default=None, ge=1, description="Age of exports of cleared keys that are deleted, days. Unset: none is."
    )
    log_max_mb: int = Field(
        default=64, ge=1, description="Size at which a log of Dagster, Spark or the broker is rotated, MiB."
    )
    room_min_percent: float = Field(
        default=10.0, ge=0, le=100, description="Free part of a disk below which the check `has_room` fails, percent."
    )
