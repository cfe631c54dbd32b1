"""The phases of a worker."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The phases of a worker; the docstring of ``runtime.loop`` shows the transitions."""

    STARTING = "starting"
    WARMING = "warming"
    JOINING = "joining"
    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    FAILED = "failed"
