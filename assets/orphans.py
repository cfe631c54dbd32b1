"""One external asset for what nobody owns any more, with the check that lists it.

Invariants:
    - Looking only: nothing is deleted or moved by it.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.infra.settings import load_settings

ALL_OWNED = "all_owned"
#: So many are named in a sentence; all are in the table.
NAMED = 5
MIB = 1024 * 1024


def orphans_asset() -> dg.AssetSpec:
    """What topics, groups, state folders, checkpoints and tables there are beside those that are owned."""
    return dg.AssetSpec(
        keys.orphans_key(),
        description="Topics, groups, local state, checkpoints and tables of this installation that no registered store "
        "owns.",
        group_name=keys.OPERATIONS,
        kinds={"kafka", "rocksdb"},
        tags=keys.tags(keys.OPERATIONS),
    )


def orphans_check() -> dg.AssetChecksDefinition:
    """Looks for them."""

    @dg.asset_check(
        asset=keys.orphans_key(),
        name=ALL_OWNED,
        description="Every topic, group, state folder, checkpoint and table of ours belongs to a registered store.",
    )
    def all_owned(cluster: dg.ResourceParam[Cluster], lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        from holdfast.assets.orphan_cleaning import open_cleaning
        from holdfast.processors.lifecycle.orphans.cleaning import as_document

        settings = load_settings()
        grace = timedelta(days=settings.orphan_grace_days)
        survey = open_cleaning(settings, lifecycle.world.registry, cluster.topics(), ALL_OWNED).survey()
        found = [as_document(each, grace) for each in survey.listed]
        records = [dg.TableRecord(_row(each)) for each in found]
        columns = [dg.TableColumn(name, "float" if name == "mib" else "string") for name in _COLUMNS]
        return dg.AssetCheckResult(
            passed=not found and not survey.unseen,
            severity=dg.AssetCheckSeverity.WARN,
            description=_said(found, survey.unseen),
            metadata={
                "orphans": len(found),
                "orphaned_mib": round(sum(each["size_bytes"] or 0 for each in found) / MIB, 3),
                "archived": sum(each["archived_at"] is not None for each in found),
                "list": dg.MetadataValue.table(records, schema=dg.TableSchema(columns)),
            },
        )

    return all_owned


def _said(found: Sequence[Mapping[str, Any]], unseen: Sequence[str]) -> str:
    said = list(unseen)
    if found:
        first = "; ".join(f"{each['kind']} {each['name']} ({each['why']}), {each['state']}" for each in found[:NAMED])
        more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
        said.insert(
            0,
            f"{len(found)} without an owner: {first}{more}. `holdfast orphans` lists them, `holdfast orphans plan` "
            "shows what would be archived and deleted.",
        )
    return " ".join(said)


def _row(orphan: Mapping[str, Any]) -> dict[str, str | float]:
    size = orphan["size_bytes"]
    return {
        "kind": orphan["kind"],
        "name": orphan["name"],
        "processor": orphan["processor"],
        "why": orphan["why"],
        "mib": -1.0 if size is None else round(size / MIB, 3),
        "archive": orphan["state"],
        "archived_at": orphan["archived_at"] or "",
        "deletable_from": orphan["deletable_from"] or "",
    }


_COLUMNS = ("kind", "name", "processor", "why", "mib", "archive", "archived_at", "deletable_from")
