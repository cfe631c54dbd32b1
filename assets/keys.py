"""Builds every asset key, normally ``[layer, processor, "<name>_<layer>"]``. No other module builds asset keys.

Invariants:
    - The last part of a key is unique, because the lineage graph shows only that part.
    - A key depends on names in the topology only, never on configuration.
"""

import dagster as dg

from holdfast.assets import layers

TOPICS, CHANGELOGS, PROCESSORS = layers.TOPICS, layers.CHANGELOGS, layers.PROCESSORS
STATE, WAREHOUSE, OPERATIONS = layers.STATE, layers.WAREHOUSE, layers.OPERATIONS
CONNECTORS = layers.CONNECTORS
#: Value of the tag ``layer`` of maintenance assets. It differs from that of snapshots, because a separate job selects
#: these assets by the tag.
MAINTENANCE = "maintenance"
PROCESSOR_TAG = layers.PROCESSOR_TAG
#: The Dagster group of topics that no processor of this installation writes to.
SOURCES_GROUP = "sources"
#: The Dagster group of definitions that cannot be imported.
BROKEN_GROUP = "broken"


def safe(name: str) -> str:
    """Replaces the characters that Dagster does not allow in names of groups, jobs and ops by underscores."""
    return layers.group_of(name)


def topic_key(topic: str) -> dg.AssetKey:
    """The asset key of a source or output topic."""
    return dg.AssetKey([TOPICS, topic])


def connector_key(processor: str, role: str, name: str) -> dg.AssetKey:
    """The asset key of a processor's source or sink; ``role`` is ``source`` or ``sink``."""
    return dg.AssetKey([CONNECTORS, processor, f"{name}_{role}"])


def changelog_key(processor: str, store: str) -> dg.AssetKey:
    """The asset key of a store's changelog."""
    return dg.AssetKey([CHANGELOGS, processor, f"{store}_changelog"])


def processor_key(processor: str) -> dg.AssetKey:
    """The asset key of a deployed processor."""
    return dg.AssetKey([PROCESSORS, processor, f"{processor}_processor"])


def state_key(processor: str, store: str) -> dg.AssetKey:
    """The asset key of a store's state in a running processor."""
    return dg.AssetKey([STATE, processor, f"{store}_state"])


def snapshot_key(processor: str, store: str) -> dg.AssetKey:
    """The asset key of a store's warehouse table."""
    return dg.AssetKey([WAREHOUSE, processor, f"{store}_snapshot"])


def maintenance_key(processor: str, store: str) -> dg.AssetKey:
    """The asset key of the maintenance of a store's warehouse tables."""
    return dg.AssetKey([WAREHOUSE, processor, f"{store}_maintenance"])


def broken_key(target: str) -> dg.AssetKey:
    """The asset key of a definition that cannot be imported; ``target`` is its ``module:attribute``."""
    return dg.AssetKey([PROCESSORS, BROKEN_GROUP, f"{safe(target)}_processor"])


def orphans_key() -> dg.AssetKey:
    """The asset key of the resources of this installation that no store owns."""
    return dg.AssetKey([OPERATIONS, "orphans"])


def home_key() -> dg.AssetKey:
    """The asset key of the home folder, which has all files of this installation."""
    return dg.AssetKey([OPERATIONS, "home"])


def changed_processor(key: dg.AssetKey) -> str:
    """The processor whose topics or deployment are changed if the asset is materialised; empty for other assets."""
    layer, *rest = key.path
    return rest[0] if layer in (CHANGELOGS, PROCESSORS) and len(rest) == 2 and rest[0] != BROKEN_GROUP else ""


def tags(layer: str) -> dict[str, str]:
    """The tag with the asset's layer, for asset selections such as ``tag:"layer"="state"``."""
    return {"layer": layer}
