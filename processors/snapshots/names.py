"""The names of tables, tags and branches of the warehouse. No other module builds one.

    holdfast.<processor>.<store>               the current state, one row for each key
    holdfast.<processor>.<store>_history       every change, append-only
    holdfast.<processor>.<store>_quarantine    values that could not be read, with the reason
    holdfast.<processor>.<store>_scd2          a view: each value, and how long it held
    holdfast.<processor>.<store>_feed          a view: each change, with the value before it
    holdfast.<processor>._snapshots            one row for each partition of each snapshot

Invariants:
    - A table name contains no dots, because catalogs read those as namespaces.
"""

from __future__ import annotations

import re

#: The catalog's name, the same in every engine that reads it.
CATALOG = "holdfast"
#: The manifests of all snapshots of a processor.
SNAPSHOTS_TABLE = "_snapshots"
HISTORY_SUFFIX = "_history"
QUARANTINE_SUFFIX = "_quarantine"
#: Views over the history: how long each value held, and each change with the value before it.
SCD2_SUFFIX, FEED_SUFFIX = "_scd2", "_feed"
#: Suffixes that a store's name must not end with: another store's tables and views use them.
SUFFIXES = (HISTORY_SUFFIX, QUARANTINE_SUFFIX)
SNAPSHOT_TAG, TIME_TAG, BRANCH = "snap-", "at-", "audit_"


def table_name(processor: str, store: str) -> str:
    """The table of a store, with catalog and namespace."""
    return f"{CATALOG}.{_word(processor)}.{_word(store)}"


def history_name(processor: str, store: str) -> str:
    """The table of every change of a store."""
    return table_name(processor, store + HISTORY_SUFFIX)


def quarantine_name(processor: str, store: str) -> str:
    """The table of a store's values that could not be read."""
    return table_name(processor, store + QUARANTINE_SUFFIX)


def snapshots_name(processor: str) -> str:
    """The table of a processor's snapshots."""
    return table_name(processor, SNAPSHOTS_TABLE)


def tables_of(processor: str, store: str) -> tuple[str, ...]:
    """Every table that a store may have, the current one first."""
    return (table_name(processor, store), *(table_name(processor, store + suffix) for suffix in SUFFIXES))


def views_of(processor: str, store: str) -> tuple[str, str]:
    """The views over a store's history: how long each value held, and the feed of changes."""
    return table_name(processor, store + SCD2_SUFFIX), table_name(processor, store + FEED_SUFFIX)


def quoted(table: str) -> str:
    """A table's name quoted for SQL."""
    return ".".join(f"`{part}`" for part in table.split("."))


def procedure_name(table: str) -> str:
    """A table's name as an argument of Iceberg's procedures: quoted, without the catalog."""
    return ".".join(f"`{part}`" for part in table.split(".")[1:])


def snapshot_tag(snapshot_id: str) -> str:
    """The tag of a snapshot; maintenance drops both together."""
    return f"{SNAPSHOT_TAG}{snapshot_id}"


def time_tag(partition_key: str) -> str:
    """The tag of a time partition: ``2026-11-21-20:00`` gives ``at-2026-11-21-20-00``."""
    return TIME_TAG + re.sub(r"[^A-Za-z0-9_-]", "-", partition_key)


def branch_name(snapshot_id: str) -> str:
    """The branch on which a snapshot is written and audited."""
    return f"{BRANCH}{snapshot_id}"


def _word(name: str) -> str:
    return name.replace(".", "_")
