"""Dagster jobs that materialise or check the same kind (layer) of asset for all processors.

Invariants:
    - A job selects assets by the tag ``layer``, never by processor. So it includes a new processor automatically.
"""

from collections.abc import Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

import dagster as dg

from holdfast.assets import keys

#: Name of the job that runs the compaction checks; its schedule refers to the job by this name.
COMPACTION_CHECKS = "compaction_checks"


def _layers(*layers: str) -> dg.AssetSelection:
    # ``materializable`` leaves out topics, and assets that stand for a processor which can't be imported. These assets
    # have the tag ``layer``, too, but can't be materialised.
    return reduce(or_, (dg.AssetSelection.tag("layer", each) for each in layers)).materializable()


#: Defines a job over assets. All steps run in one process, one after the other, so that a run starts only one JVM.
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
    """The job that runs the asset checks ``checks`` of changelogs; a schedule starts the job every night."""
    return _asset_job(
        COMPACTION_CHECKS,
        dg.AssetSelection.checks(*checks),
        description="Check that every changelog is compacted with the configuration that state needs, and that keys of "
        "inputs that share state lie in the same partitions. Check that no erased key has state again.",
    )
