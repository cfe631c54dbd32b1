"""All drills; importing their modules registers them."""

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
