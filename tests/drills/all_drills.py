"""Imports the modules of all drills, which registers the drills."""

from tests.drills import (
    changelog_drills,
    operation_drills,
    ownership_drills,
    process_drills,
    source_drills,
    topic_drills,
    world_drills,
)
from tests.drills.drilling import DRILLS, Drill

__all__ = [
    "DRILLS",
    "Drill",
    "changelog_drills",
    "operation_drills",
    "ownership_drills",
    "process_drills",
    "source_drills",
    "topic_drills",
    "world_drills",
]
