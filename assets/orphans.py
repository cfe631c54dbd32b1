"""One external asset for what nobody owns any more, with the check that lists it.

Invariants:
    - Looking only: nothing is deleted or moved by it.
"""

import dagster as dg

from assets import keys
from assets.ports import Cluster, Lifecycle
from infra.settings import load_settings

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
        from processors.lifecycle.orphan_facts import orphans_of

        found, unseen = orphans_of(load_settings(), lifecycle.world.registry, cluster.topics())
        records = [
            dg.TableRecord(
                {
                    "kind": each.kind,
                    "name": each.name,
                    "processor": each.processor,
                    "why": each.why,
                    "mib": -1.0 if each.size_bytes is None else round(each.size_bytes / MIB, 3),
                }
            )
            for each in found
        ]
        columns = [dg.TableColumn(name, "float" if name == "mib" else "string") for name in _COLUMNS]
        first = "; ".join(f"{each.kind} {each.name} ({each.why})" for each in found[:NAMED])
        more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
        said = [
            f"{len(found)} without an owner: {first}{more}. `holdfast orphans` lists them." if found else "",
            *unseen,
        ]
        return dg.AssetCheckResult(
            passed=not found and not unseen,
            severity=dg.AssetCheckSeverity.WARN,
            description=" ".join(each for each in said if each),
            metadata={
                "orphans": len(found),
                "orphaned_mib": round(sum(each.size_bytes or 0 for each in found) / MIB, 3),
                "list": dg.MetadataValue.table(records, schema=dg.TableSchema(columns)),
            },
        )

    return all_owned


_COLUMNS = ("kind", "name", "processor", "why", "mib")
