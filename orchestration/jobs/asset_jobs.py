"""Jobs that materialise or check one layer of assets of all processors.

Invariants:
    - A job selects layers, never processors, so it covers a new processor without a change.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys

#: Name of the job, for its schedule.
COMPACTION_CHECKS = "compaction_checks"


def _layers(*layers: str) -> dg.AssetSelection:
    selection = dg.AssetSelection.tag("layer", layers[0])
    for layer in layers[1:]:
        selection = selection | dg.AssetSelection.tag("layer", layer)
    return selection


#: One process and one step at a time, so a run starts Spark's JVM once.
_ONE_PROCESS = dg.in_process_executor

provision_and_deploy = dg.define_asset_job(
    "provision_and_deploy",
    # topics and broken definitions have these tags too, but Dagster cannot materialise them
    selection=_layers(keys.CHANGELOGS, keys.PROCESSORS).materializable(),
    description="Create and repair the topics of every processor, then deploy it and wait until it processes every "
    "partition.",
    executor_def=_ONE_PROCESS,
)

checkpoint_and_snapshot = dg.define_asset_job(
    "checkpoint_and_snapshot",
    selection=_layers(keys.STATE, keys.WAREHOUSE).materializable(),
    description="Checkpoint every store, compare it with its changelog, and publish it as a table version.",
    executor_def=_ONE_PROCESS,
)


maintain_warehouse = dg.define_asset_job(
    "maintain_warehouse",
    selection=_layers(keys.MAINTENANCE).materializable(),
    description="Maintain all warehouse tables: drop expired tags and versions, compact small files, delete files that "
    "no version uses.",
    executor_def=_ONE_PROCESS,
)


orphan_checks = dg.define_asset_job(
    "orphan_checks",
    selection=dg.AssetSelection.checks_for_assets(keys.orphans_key()),
    description="Find topics, groups, local state, checkpoints and tables that no registered store owns.",
    executor_def=_ONE_PROCESS,
)


def compaction_checks(checks: Sequence[dg.AssetCheckKey]) -> Any:
    """The job that runs the compaction checks of these assets."""
    return dg.define_asset_job(
        COMPACTION_CHECKS,
        selection=dg.AssetSelection.checks(*checks),
        description="Check that every changelog is compacted with the configuration that state needs.",
        executor_def=_ONE_PROCESS,
    )
