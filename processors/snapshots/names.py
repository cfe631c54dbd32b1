"""Builds the names of tables, tags and branches of the warehouse. No other module builds such names.

    holdfast.<processor>.<store>               the current state, one row for each key
    holdfast.<processor>.<store>_history       every change, append-only
    holdfast.<processor>.<store>_quarantine    values that could not be read, each with the reason
    holdfast.<processor>.<store>_scd2          a view: each value, with the time during which it was valid
    holdfast.<processor>.<store>_feed          a view: each change, with the value before it
    holdfast.<processor>._snapshots            one row for each partition of each snapshot
    holdfast._sides.<processor>__<store>__...  a side table: a second name of a table

Invariants:
    - A table name contains no dots, because catalogs read those as namespaces.
"""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime

#: The name of the Iceberg catalog; Spark and every other engine must register it under this name.
CATALOG = "holdfast"
#: The table with the manifests of all snapshots of a processor.
SNAPSHOTS_TABLE = "_snapshots"
HISTORY_SUFFIX = "_history"
QUARANTINE_SUFFIX = "_quarantine"
#: Suffixes of the two views over the history table: values with the time of their validity, and the feed of changes.
SCD2_SUFFIX, FEED_SUFFIX = "_scd2", "_feed"
#: Suffixes that a store's name must not end with, because tables and views of other stores end with them.
SUFFIXES = (HISTORY_SUFFIX, QUARANTINE_SUFFIX)
SNAPSHOT_TAG, TIME_TAG, BRANCH = "snap-", "at-", "audit_"
#: A tag on a version (Iceberg snapshot) of a history table. The summary of this version records up to which changelog
#: offsets the history is complete.
REACH_TAG = "holdfast-reach"
#: The namespace of side tables. A side table is the table of a store under a second name, while its columns change.
SIDES = f"{CATALOG}._sides"
_TIME_PARTITION = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:-(\d\d)-(\d\d))?")
_CREATED = re.compile(r"-(\d{10})-[0-9a-f]{8}")


def table_name(processor: str, store: str) -> str:
    """The name of a store's table, with catalog and namespace."""
    return f"{CATALOG}.{_word(processor)}.{_word(store)}"


def history_name(processor: str, store: str) -> str:
    """The name of a store's history table, which has every change."""
    return table_name(processor, store + HISTORY_SUFFIX)


def quarantine_name(processor: str, store: str) -> str:
    """The name of the table with a store's values that could not be read."""
    return table_name(processor, store + QUARANTINE_SUFFIX)


def snapshots_name(processor: str) -> str:
    """The name of the table with a processor's snapshots."""
    return table_name(processor, SNAPSHOTS_TABLE)


def tables_of(processor: str, store: str) -> tuple[str, ...]:
    """The names of all tables that a store may have; the first is the table of the present state."""
    return (table_name(processor, store), *(table_name(processor, store + suffix) for suffix in SUFFIXES))


def views_of(processor: str, store: str) -> tuple[str, str]:
    """The names of a store's two history views: values with the time of their validity, and the feed of changes."""
    return table_name(processor, store + SCD2_SUFFIX), table_name(processor, store + FEED_SUFFIX)


def quoted(table: str) -> str:
    """Quotes a table's name for SQL."""
    return ".".join(f"`{part}`" for part in table.split("."))


def procedure_name(table: str) -> str:
    """A table's name as an argument of Iceberg's procedures: quoted, and without the catalog."""
    return ".".join(f"`{part}`" for part in table.split(".")[1:])


def snapshot_tag(snapshot_id: str) -> str:
    """The tag of a snapshot; maintenance deletes tag and snapshot together."""
    return f"{SNAPSHOT_TAG}{snapshot_id}"


def time_tag(partition_key: str) -> str:
    """The tag of a time partition; for example ``2026-11-21-20:00`` gives ``at-2026-11-21-20-00``."""
    return TIME_TAG + re.sub(r"[^A-Za-z0-9_-]", "-", partition_key)


def time_of(tag: str) -> datetime | None:
    """The start of the time partition that a tag's name contains; None for names without a time partition."""
    found = _TIME_PARTITION.fullmatch(tag.removeprefix(TIME_TAG)) if tag.startswith(TIME_TAG) else None
    try:
        return None if found is None else datetime(*(int(each or 0) for each in found.groups()), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        return None


def branch_name(snapshot_id: str) -> str:
    """The prefix of the names of a snapshot's branches, on which the snapshot is written and audited."""
    return f"{BRANCH}{snapshot_id}"


def new_branch_name(snapshot_id: str, now: datetime) -> str:
    """A new branch name, which is unique to this attempt and contains its creation time."""
    return f"{branch_name(snapshot_id)}-{int(now.timestamp()):010d}-{uuid.uuid4().hex[:8]}"


def sides_prefix(table: str) -> str:
    """The common prefix of the names of all side tables that belong to a table."""
    return f"{'__'.join(table.split('.')[1:])}__{BRANCH}"


def new_side_name(table: str, snapshot_id: str, now: datetime) -> str:
    """A new name for a side table, which is unique to this attempt and contains its creation time."""
    return f"{SIDES}.{sides_prefix(table).removesuffix(BRANCH)}{new_branch_name(snapshot_id, now)}"


def snapshot_of(name: str) -> str | None:
    """The snapshot id in the name of a tag or branch; None for other names."""
    if name.startswith(SNAPSHOT_TAG):
        return name.removeprefix(SNAPSHOT_TAG)
    return name.removeprefix(BRANCH).split("-")[0] if name.startswith(BRANCH) else None


def created_at(branch: str) -> datetime | None:
    """The creation time in a branch's name; None for names from earlier versions of Holdfast."""
    found = _CREATED.search(branch)
    return None if found is None else datetime.fromtimestamp(int(found[1]), UTC)


def _word(name: str) -> str:
    return name.replace(".", "_")
