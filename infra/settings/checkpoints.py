"""The settings ``HOLDFAST_CHECKPOINTS__*``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from holdfast.infra.settings.group import Group


class CheckpointSettings(Group):
    """Where processors store checkpoints of their state, and how often."""

    enabled: bool = Field(default=True, description="Whether processors store checkpoints and restore from them.")
    url: str | None = Field(
        default=None,
        description="The checkpoint store: a folder (relative to the home), or s3://bucket/prefix. Unset: a folder in "
        "the home.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Options of the store's fsspec driver, such as key and secret."
    )
    every_s: float = Field(default=600.0, gt=0, description="Interval between two checkpoints of a task, seconds.")
    stop_wait_s: float = Field(
        default=5.0, ge=0, description="How long a stopping worker waits for its last checkpoints, seconds."
    )
