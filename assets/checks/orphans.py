"""The external asset `operations/orphans` and its check, which lists the orphans (resources that no store owns).

Invariants:
    - The check changes nothing: it deletes and moves no resource.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.pages.metadata import docs, table
from holdfast.assets.ports import Lifecycle
from holdfast.processors.lifecycle.verbs.clean import as_document

ALL_OWNED = "all_owned"
#: Maximum number of orphans (resources without an owner) that the text lists. The table lists all orphans.
NAMED = 5
MIB = 1024 * 1024


def orphans_asset(owners: Sequence[str] = ()) -> dg.AssetSpec:
    """The Dagster asset that represents all topics, groups, state folders, checkpoints and tables without an owner."""
    return dg.AssetSpec(
        keys.orphans_key(),
        description="Topics, consumer groups, state folders, checkpoints and tables of this installation that no "
        "registered store owns.",
        group_name=keys.OPERATIONS,
        kinds={"kafka", "rocksdb"},
        owners=list(owners),
        tags=keys.tags(keys.OPERATIONS),
        metadata=docs("orphans.md"),
    )


def orphans_check() -> dg.AssetChecksDefinition:
    """The Dagster check `all_owned`. A failure is only a warning."""

    @dg.asset_check(
        asset=keys.orphans_key(),
        name=ALL_OWNED,
        description="Every topic, consumer group, state folder, checkpoint and table of this installation belongs to a "
        "registered store.",
    )
    def all_owned(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        facts = lifecycle.verbs(ALL_OWNED).orphans()
        found = [as_document(each, facts) for each in facts.subjects]
        sentence, action = _words(found, facts.unseen)
        return CheckResult(
            keys.orphans_key(),
            ALL_OWNED,
            not found and not facts.unseen,
            sentence,
            action=action,
            warns=True,
            metadata={
                "orphans": len(found),
                "orphaned_mib": round(sum(each["size_bytes"] or 0 for each in found) / MIB, 3),
                "archived": sum(each["archived_at"] is not None for each in found),
                "list": table([_row(each) for each in found], _COLUMNS),
            },
        ).result()

    return all_owned


def _words(found: Sequence[Mapping[str, Any]], unseen: Sequence[str]) -> tuple[str, str]:
    """The text of the check's result: a sentence about orphans (resources without an owner), and the next action."""
    if not found:
        return " ".join(unseen) or "Every resource has an owner.", "Repair that access, then run this check again."
    first = "; ".join(f"{each['kind']} {each['name']} ({each['why']}), {each['state']}" for each in found[:NAMED])
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    number = "1 resource has" if len(found) == 1 else f"{len(found)} resources have"
    sentence = " ".join([f"{number} no owner: {first}{more}.", *unseen])
    return sentence, "List them with `holdfast orphans`; `holdfast plan clean` shows the archiving and deletion."


def _row(orphan: Mapping[str, Any]) -> dict[str, str | float]:
    size = orphan["size_bytes"]
    row = {**orphan, "mib": -1.0 if size is None else round(size / MIB, 3)}
    return {column: "" if row[column] is None else row[column] for column in _COLUMNS}


_COLUMNS = ("kind", "name", "processor", "why", "mib", "state", "archived_at", "deletable_from")
