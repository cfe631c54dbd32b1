"""The names of the layers of the asset graph; an asset key begins with its layer. Imports no Dagster module.

Invariants:
    - Assets of the user's project do not count as Holdfast's assets: Holdfast's keys begin with a layer, and have the
      number of parts of that layer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TOPICS, CHANGELOGS, PROCESSORS, STATE, WAREHOUSE = "topics", "changelogs", "processors", "state", "warehouse"
#: The layer of sources and sinks.
CONNECTORS = "connectors"
#: The layer of assets that belong to the whole installation.
OPERATIONS = "operations"
#: Run tag with the one processor that a run changes.
#: ``dagster.yaml`` allows only one run at a time for each value of this tag.
PROCESSOR_TAG = "processor"
#: Layer -> number of parts in the asset keys of this layer.
_PARTS = {TOPICS: 2, OPERATIONS: 2, CHANGELOGS: 3, PROCESSORS: 3, STATE: 3, WAREHOUSE: 3, CONNECTORS: 3}


def group_of(name: str) -> str:
    """The Dagster group of a processor's assets: its name, without the characters that Dagster does not allow."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def is_ours(path: Sequence[str]) -> bool:
    """Whether Holdfast created the asset with this key; ``path`` has the parts of the key."""
    return len(path) == _PARTS.get(path[0])
