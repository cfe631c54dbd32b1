"""Every asset key, built here and nowhere else: ``[layer, processor, "<name>_<layer>"]``.

Invariants:
    - The last part of a key is unique, because the lineage graph shows only that.
    - A key is a function of names in the topology; it never changes with configuration.
"""

import re

import dagster as dg

TOPICS, CHANGELOGS, PROCESSORS, STATE, WAREHOUSE = "topics", "changelogs", "processors", "state", "warehouse"
#: The upkeep of warehouse tables is a layer of its own: it runs at other times than snapshots.
MAINTENANCE = "maintenance"
#: What belongs to the installation as a whole.
OPERATIONS = "operations"
#: The group of topics that no processor of this installation writes.
SOURCES_GROUP = "sources"
#: The group of definitions that can't be imported.
BROKEN_GROUP = "broken"


def safe(name: str) -> str:
    """A name as Dagster takes it for groups, jobs and ops: letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def topic_key(topic: str) -> dg.AssetKey:
    """A source or output topic."""
    return dg.AssetKey([TOPICS, topic])


def changelog_key(processor: str, store: str) -> dg.AssetKey:
    """The changelog of a store."""
    return dg.AssetKey([CHANGELOGS, processor, f"{store}_changelog"])


def processor_key(processor: str) -> dg.AssetKey:
    """The deployed processor."""
    return dg.AssetKey([PROCESSORS, processor, f"{processor}_processor"])


def state_key(processor: str, store: str) -> dg.AssetKey:
    """The store of a running processor."""
    return dg.AssetKey([STATE, processor, f"{store}_state"])


def snapshot_key(processor: str, store: str) -> dg.AssetKey:
    """The warehouse table of a store."""
    return dg.AssetKey([WAREHOUSE, processor, f"{store}_snapshot"])


def maintenance_key(processor: str, store: str) -> dg.AssetKey:
    """The upkeep of a store's warehouse tables."""
    return dg.AssetKey([WAREHOUSE, processor, f"{store}_maintenance"])


def broken_key(target: str) -> dg.AssetKey:
    """A definition that can't be imported, by its module:attribute."""
    return dg.AssetKey([PROCESSORS, BROKEN_GROUP, f"{safe(target)}_processor"])


def orphans_key() -> dg.AssetKey:
    """What nobody owns any more."""
    return dg.AssetKey([OPERATIONS, "orphans"])


def tags(layer: str) -> dict[str, str]:
    """The tag that selections go by: ``tag:"layer"="state"``."""
    return {"layer": layer}
