"""Jobs that materialise or check a layer of all processors.

Invariants:
    - A job names layers, never processors: a processor that is added is in it.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys

#: The job's name.
COMPACTION_CHECKS = "compaction_checks"


def _layers(*layers: str) -> dg.AssetSelection:
    selection = dg.AssetSelection.tag("layer", layers[0])
    for layer in layers[1:]:
        selection = selection | dg.AssetSelection.tag("layer", layer)
    return selection


#: One process, one step after the other: a deployment is quick, and Spark's JVM is started once.
_ONE_PROCESS = dg.in_process_executor

provision_and_deploy = dg.define_asset_job(
    "provision_and_deploy",
    # external assets (topics, broken definitions) carry these tags too and are left out by themselves
    selection=_layers(keys.CHANGELOGS, keys.PROCESSORS).materializable(),
    description="Create and repair the topics of every processor, then bring each one up and wait until it works.",
    executor_def=_ONE_PROCESS,
)

checkpoint_and_snapshot = dg.define_asset_job(
    "checkpoint_and_snapshot",
    selection=_layers(keys.STATE, keys.WAREHOUSE).materializable(),
    description="Checkpoint every store, prove it against its changelog, and publish it as a table version.",
    executor_def=_ONE_PROCESS,
)


maintain_warehouse = dg.define_asset_job(
    "maintain_warehouse",
    selection=_layers(keys.MAINTENANCE).materializable(),
    description="Keep all warehouse tables: drop tags beyond their time, expire versions, compact small files, delete "
    "leftovers.",
    executor_def=_ONE_PROCESS,
)


orphan_checks = dg.define_asset_job(
    "orphan_checks",
    selection=dg.AssetSelection.checks_for_assets(keys.orphans_key()),
    description="Look for topics, groups, local state, checkpoints and tables that no registered store owns.",
    executor_def=_ONE_PROCESS,
)


def compaction_checks(checks: Sequence[dg.AssetCheckKey]) -> Any:
    """The job that runs these checks."""
    return dg.define_asset_job(
        COMPACTION_CHECKS,
        selection=dg.AssetSelection.checks(*checks),
        description="Check the compaction settings of every changelog.",
        executor_def=_ONE_PROCESS,
    )
