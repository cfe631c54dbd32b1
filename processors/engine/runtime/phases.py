"""The phases of a worker."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The worker's phases, as ``runtime.loop`` draws them."""

    STARTING = "starting"
    WARMING = "warming"
    JOINING = "joining"
    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    FAILED = "failed"
