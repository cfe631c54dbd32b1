"""The settings ``HOLDFAST_RUNS__*``: how long a Dagster run may take, by its kind."""

from __future__ import annotations

from pydantic import Field

from holdfast.infra.settings.group import Group


class RunSettings(Group):
    """Time limits of Dagster's runs (docs/operations.md). The field of a kind is ``<kind>_max_s``."""

    snapshot_max_s: float = Field(
        default=14400.0, gt=0, description="Longest run that checkpoints stores or publishes snapshots, seconds."
    )
    verb_max_s: float = Field(
        default=21600.0, gt=0, description="Longest run that provisions, deploys or applies another verb, seconds."
    )
    recovery_max_s: float = Field(default=900.0, gt=0, description="Longest recovery of one incident, seconds.")
    audit_max_s: float = Field(default=7200.0, gt=0, description="Longest run that only checks assets, seconds.")
    rehearsal_max_s: float = Field(default=7200.0, gt=0, description="Longest rehearsal of a restore, seconds.")
    maintenance_max_s: float = Field(
        default=14400.0, gt=0, description="Longest run that maintains warehouse tables, seconds."
    )
    upkeep_max_s: float = Field(default=1800.0, gt=0, description="Longest run that prunes old records, seconds.")
    other_max_s: float = Field(default=21600.0, gt=0, description="Longest run of any other job, seconds.")
