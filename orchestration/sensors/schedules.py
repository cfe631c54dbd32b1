"""Schedules of checks, rehearsals, upkeep, snapshots and warehouse maintenance; all times are UTC.

Invariants:
    - Schedules that only read are on by default. The upkeep is on by default too, because otherwise the disk fills up.
    - A schedule whose runs start a JVM skips a tick if the machine has too little memory. Dagster shows the reason.
"""

import dagster as dg

from holdfast.assets.times import current_key, snapshot_partitions
from holdfast.infra.settings import Settings, SnapshotSettings, load_settings
from holdfast.orchestration.jobs.asset_jobs import (
    COMPACTION_CHECKS,
    checkpoint_and_snapshot,
    maintain_warehouse,
    orphan_checks,
)
from holdfast.orchestration.jobs.rehearse_restore import RehearseConfig, rehearse_restore
from holdfast.orchestration.jobs.upkeep import upkeep
from holdfast.orchestration.sensors.apart import SKIPPED, works_apart
from holdfast.orchestration.sensors.grey_assets import spark_memory
from holdfast.orchestration.sensors.recovery import RECOVERY_SENSOR


def build_schedules(settings: SnapshotSettings) -> list[dg.ScheduleDefinition]:
    """All schedules of Holdfast. ``settings`` has the interval of snapshots, and whether that schedule is on."""
    return [
        dg.ScheduleDefinition(
            name="compaction_checks_nightly",
            job_name=COMPACTION_CHECKS,
            cron_schedule="30 2 * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Every night at 02:30: check that all changelogs are compacted as state needs, and that "
            "the keys of inputs that share state lie in the same partitions. Check that no erased key has state again.",
        ),
        _rehearsals(),
        dg.ScheduleDefinition(
            name="orphan_checks_daily",
            job=orphan_checks,
            cron_schedule="30 5 * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description="Every day at 05:30: find topics, groups, folders and tables that no registered store owns.",
        ),
        upkeep_hourly(),
        _snapshots(settings),
        _maintenance(),
    ]


def upkeep_hourly(*, apart: bool = False) -> dg.ScheduleDefinition:
    """The schedule that runs the job ``upkeep`` every hour.

    ``apart`` is True for the copy in the code location `recovery` (``sensors.apart``).
    """

    @dg.schedule(
        name="upkeep_hourly",
        job=upkeep,
        cron_schedule="15 * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every hour at 15 past: delete what is older than its setting says, and check that the disk "
        "has room.",
    )
    def hourly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        # If the recovery sensor in the code location `recovery` ticks, that location's copy of this schedule is active.
        if not apart and works_apart(context.instance, RECOVERY_SENSOR):
            return dg.SkipReason(SKIPPED)
        return dg.RunRequest()

    return hourly


def _rehearsals() -> dg.ScheduleDefinition:
    @dg.schedule(
        name="rehearsal_daily",
        job=rehearse_restore,
        cron_schedule="0 5 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every day at 05:00: restore one partition, chosen by the date, into a scratch folder. Compare it "
        "with the worker's state, and measure the time.",
    )
    def rehearse(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        day = context.scheduled_execution_time.date().isoformat()
        return dg.RunRequest(run_config=dg.RunConfig(ops={"rehearse_one": RehearseConfig(day=day)}))

    return rehearse


def _maintenance() -> dg.ScheduleDefinition:
    @dg.schedule(
        name="maintenance_daily",
        job=maintain_warehouse,
        cron_schedule="30 4 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every night at 04:30: expire old versions and compact small files of all warehouse tables.",
    )
    def maintain() -> dg.RunRequest | dg.SkipReason:
        lacking = no_memory(load_settings())
        return dg.RunRequest() if lacking is None else dg.SkipReason(lacking)

    return maintain


def no_memory(settings: Settings) -> str | None:
    """The reason why the machine has too little memory for a run with Spark; None if it has enough."""
    memory = spark_memory(settings)
    return None if memory.allows else memory.sentence


def _snapshots(settings: SnapshotSettings) -> dg.ScheduleDefinition:
    partitions = snapshot_partitions(settings)

    @dg.schedule(
        name="snapshots_hourly" if settings.every == "hour" else "snapshots_daily",
        job=checkpoint_and_snapshot,
        cron_schedule="55 * * * *" if settings.every == "hour" else "0 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.automatic else dg.DefaultScheduleStatus.STOPPED,
        description=f"Every {settings.every}: checkpoint every store and publish it as a table version.",
    )
    def publish(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if (lacking := no_memory(load_settings())) is not None:
            return dg.SkipReason(lacking)
        return dg.RunRequest(partition_key=current_key(partitions, context.scheduled_execution_time))

    return publish
