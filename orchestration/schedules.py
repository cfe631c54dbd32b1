"""Schedules: when changelogs are checked, and when stores are checkpointed and published.

Invariants:
    - What only reads starts switched on; what costs a JVM each time starts switched off, for the team to decide.
"""

import dagster as dg

from holdfast.assets.times import current_key, snapshot_partitions
from holdfast.infra.settings import SnapshotSettings
from holdfast.orchestration.jobs.asset_jobs import (
    COMPACTION_CHECKS,
    checkpoint_and_snapshot,
    maintain_warehouse,
    orphan_checks,
)
from holdfast.orchestration.jobs.rehearse_restore import RehearseConfig, rehearse_restore


def build_schedules(settings: SnapshotSettings) -> list[dg.ScheduleDefinition]:
    """All schedules."""
    return [
        dg.ScheduleDefinition(
            name="compaction_checks_nightly",
            job_name=COMPACTION_CHECKS,
            cron_schedule="30 2 * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Every night: are all changelogs still compacted as state needs it?",
        ),
        _rehearsals(),
        dg.ScheduleDefinition(
            name="orphan_checks_daily",
            job=orphan_checks,
            cron_schedule="30 5 * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Every day: is there anything of ours that no registered store owns?",
        ),
        _snapshots(settings),
        dg.ScheduleDefinition(
            name="maintenance_daily",
            job=maintain_warehouse,
            cron_schedule="30 4 * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.STOPPED,
            description="Every night: keep the warehouse's tables, so that they neither grow nor slow down.",
        ),
    ]


def _rehearsals() -> dg.ScheduleDefinition:
    @dg.schedule(
        name="rehearsal_daily",
        job=rehearse_restore,
        cron_schedule="0 5 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every day: restore one partition, chosen by the date, into a scratch folder; is it what its owner "
        "has, and how long does it take?",
    )
    def rehearse(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        day = context.scheduled_execution_time.date().isoformat()
        return dg.RunRequest(run_config=dg.RunConfig(ops={"rehearse_one": RehearseConfig(day=day)}))

    return rehearse


def _snapshots(settings: SnapshotSettings) -> dg.ScheduleDefinition:
    partitions = snapshot_partitions(settings)

    @dg.schedule(
        name="snapshots_hourly" if settings.every == "hour" else "snapshots_daily",
        job=checkpoint_and_snapshot,
        cron_schedule="55 * * * *" if settings.every == "hour" else "0 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Every {settings.every}: checkpoint every store and publish it as a table version.",
    )
    def publish(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        return dg.RunRequest(partition_key=current_key(partitions, context.scheduled_execution_time))

    return publish
