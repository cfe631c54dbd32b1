"""The settings ``HOLDFAST_SNAPSHOTS__*``."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import Field

from holdfast.infra.settings.group import Group


class SnapshotSettings(Group):
    """How often snapshots of stores are published."""

    every: Literal["hour", "day"] = Field(default="day", description="Time partitions of snapshots: hour or day.")
    since: date | None = Field(
        default=None,
        description="First time partition. Without it, partitions begin when the first processor was deployed.",
    )
    automatic: bool = Field(
        default=True,
        description="Whether the schedule of snapshots and the sensor `kept_green` start switched on.",
    )
    full_every_hours: float = Field(
        default=168.0,
        gt=0,
        description="A snapshot is full once the last full one is older than this, hours; otherwise incremental.",
    )
