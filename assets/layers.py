"""The layers of the asset graph, by name: the first part of each of Holdfast's keys. Imports no Dagster module.

Invariants:
    - A project's own assets are not Holdfast's, whatever the shape of their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

TOPICS, CHANGELOGS, PROCESSORS, STATE, WAREHOUSE = "topics", "changelogs", "processors", "state", "warehouse"
#: The layer of assets that belong to the whole installation.
OPERATIONS = "operations"
#: Layer -> the number of parts of its keys.
_PARTS = {TOPICS: 2, OPERATIONS: 2, CHANGELOGS: 3, PROCESSORS: 3, STATE: 3, WAREHOUSE: 3}


def is_ours(path: Sequence[str]) -> bool:
    """Whether Holdfast made the asset with this key; the argument holds the parts of the key."""
    return len(path) == _PARTS.get(path[0])
