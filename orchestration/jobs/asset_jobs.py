"""Jobs that materialise or check one layer of assets of all processors.

Invariants:
    - A job selects layers, never processors, so it covers a new processor without a change.
"""

from collections.abc import Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

import dagster as dg

from holdfast.assets import keys

#: Name of the job, for its schedule.
COMPACTION_CHECKS = "compaction_checks"


def _layers(*layers: str) -> dg.AssetSelection:
    # topics and broken definitions have these tags too, but Dagster cannot materialise them
    return reduce(or_, (dg.AssetSelection.tag("layer", each) for each in layers)).materializable()


#: One process and one step at a time, so a run starts Spark's JVM once.
_asset_job = partial(dg.define_asset_job, executor_def=dg.in_process_executor)

provision_and_deploy = _asset_job(
    "provision_and_deploy",
    _layers(keys.CHANGELOGS, keys.PROCESSORS),
    description="Create and repair the topics of every processor, then deploy it and wait until it processes every "
    "partition.",
)

checkpoint_and_snapshot = _asset_job(
    "checkpoint_and_snapshot",
    _layers(keys.STATE, keys.WAREHOUSE),
    description="Checkpoint every store, compare it with its changelog, and publish it as a table version.",
)

maintain_warehouse = _asset_job(
    "maintain_warehouse",
    _layers(keys.MAINTENANCE),
    description="Maintain all warehouse tables: drop expired tags and versions, compact small files, delete files that "
    "no version uses.",
)

orphan_checks = _asset_job(
    "orphan_checks",
    dg.AssetSelection.checks_for_assets(keys.orphans_key()),
    description="Find topics, groups, local state, checkpoints and tables that no registered store owns.",
)


def compaction_checks(checks: Sequence[dg.AssetCheckKey]) -> Any:
    """The job that runs the nightly checks of these assets."""
    return _asset_job(
        COMPACTION_CHECKS,
        dg.AssetSelection.checks(*checks),
        description="Check that every changelog is compacted with the configuration that state needs, and that keys of "
        "inputs that share state lie in the same partitions.",
    )
