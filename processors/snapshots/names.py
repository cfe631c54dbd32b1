"""The names of tables, tags and branches of the warehouse; built here and nowhere else.

    holdfast.<processor>.<store>               the store now, one row for each key
    holdfast.<processor>.<store>_history       every change, append-only
    holdfast.<processor>.<store>_quarantine    what could not be read, with the reason
    holdfast.<processor>.<store>_scd2          a view: each value, and how long it held
    holdfast.<processor>.<store>_feed          a view: each change, with what was there before
    holdfast.<processor>._snapshots            one row for each partition of each snapshot

Invariants:
    - A name of the warehouse has no dots: catalogs take those for namespaces.
"""

from __future__ import annotations

import re

#: The catalog's name, alike in every engine that reads it.
CATALOG = "holdfast"
#: The manifests of all snapshots of a processor.
SNAPSHOTS_TABLE = "_snapshots"
HISTORY_SUFFIX = "_history"
QUARANTINE_SUFFIX = "_quarantine"
#: Views over the history: how long each value held, and each change with what was there before.
SCD2_SUFFIX, FEED_SUFFIX = "_scd2", "_feed"
#: A store must not be named as the tables and views beside another store are.
SUFFIXES = (HISTORY_SUFFIX, QUARANTINE_SUFFIX)
VIEW_SUFFIXES = (SCD2_SUFFIX, FEED_SUFFIX)
SNAPSHOT_TAG, TIME_TAG, BRANCH = "snap-", "at-", "audit_"


def table_name(processor: str, store: str) -> str:
    """The table of a store, as people and other engines write it."""
    return f"{CATALOG}.{_word(processor)}.{_word(store)}"


def history_name(processor: str, store: str) -> str:
    """The table of every change of a store."""
    return table_name(processor, store + HISTORY_SUFFIX)


def quarantine_name(processor: str, store: str) -> str:
    """The table of what could not be read."""
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
    """A table's name as SQL has it, whatever characters it has."""
    return ".".join(f"`{part}`" for part in table.split("."))


def procedure_name(table: str) -> str:
    """A table's name as procedures of the catalog take it, without the catalog."""
    return ".".join(f"`{part}`" for part in table.split(".")[1:])


def snapshot_tag(snapshot_id: str) -> str:
    """The tag of a snapshot, kept as long as the snapshot is."""
    return f"{SNAPSHOT_TAG}{snapshot_id}"


def time_tag(partition_key: str) -> str:
    """The tag of a time partition: ``2026-11-21-20:00`` gives ``at-2026-11-21-20-00``."""
    return TIME_TAG + re.sub(r"[^A-Za-z0-9_-]", "-", partition_key)


def branch_name(snapshot_id: str) -> str:
    """The branch on which a snapshot is written and audited."""
    return f"{BRANCH}{snapshot_id}"


def _word(name: str) -> str:
    return name.replace(".", "_")
