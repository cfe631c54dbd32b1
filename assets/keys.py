"""Every asset key: ``[layer, processor, "<name>_<layer>"]``. No other module builds one.

Invariants:
    - The last part of a key is unique, because the lineage graph shows only that part.
    - A key depends on names in the topology only, never on configuration.
"""

import re

import dagster as dg

from holdfast.assets import layers

TOPICS, CHANGELOGS, PROCESSORS = layers.TOPICS, layers.CHANGELOGS, layers.PROCESSORS
STATE, WAREHOUSE, OPERATIONS = layers.STATE, layers.WAREHOUSE, layers.OPERATIONS
#: Table maintenance is a layer of its own, because it runs at other times than snapshots.
MAINTENANCE = "maintenance"
#: Run tag: the one processor that a run changes. ``dagster.yaml`` allows one run at a time for each value.
PROCESSOR_TAG = "processor"
#: The group of topics that no processor of this installation writes to.
SOURCES_GROUP = "sources"
#: The group of definitions that can't be imported.
BROKEN_GROUP = "broken"


def safe(name: str) -> str:
    """The name with only the characters that Dagster allows in groups, jobs and ops: letters, digits, underscores."""
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
    """The maintenance of a store's warehouse tables."""
    return dg.AssetKey([WAREHOUSE, processor, f"{store}_maintenance"])


def broken_key(target: str) -> dg.AssetKey:
    """A definition that can't be imported, by its module:attribute."""
    return dg.AssetKey([PROCESSORS, BROKEN_GROUP, f"{safe(target)}_processor"])


def orphans_key() -> dg.AssetKey:
    """The resources of this installation that no store owns."""
    return dg.AssetKey([OPERATIONS, "orphans"])


def home_key() -> dg.AssetKey:
    """The files of this installation."""
    return dg.AssetKey([OPERATIONS, "home"])


def changed_processor(key: dg.AssetKey) -> str:
    """The processor that a materialisation of the asset changes: its topics or its deployment; empty for none."""
    layer, *rest = key.path
    return rest[0] if layer in (CHANGELOGS, PROCESSORS) and len(rest) == 2 and rest[0] != BROKEN_GROUP else ""


def tags(layer: str) -> dict[str, str]:
    """The tag for asset selections such as ``tag:"layer"="state"``."""
    return {"layer": layer}
