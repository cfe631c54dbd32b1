"""Schedules: when changelogs are checked, and when stores are checkpointed and published.

Invariants:
    - What only reads starts switched on; what costs a JVM each time starts switched off, for the team to decide.
"""

import dagster as dg

from orchestration.jobs.asset_jobs import COMPACTION_CHECKS, checkpoint_and_snapshot

SCHEDULES = [
    dg.ScheduleDefinition(
        name="compaction_checks_nightly",
        job_name=COMPACTION_CHECKS,
        cron_schedule="30 2 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every night: are all changelogs still compacted as state needs it?",
    ),
    dg.ScheduleDefinition(
        name="snapshots_daily",
        job=checkpoint_and_snapshot,
        cron_schedule="0 3 * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Every night: checkpoint every store and publish it as a table version.",
    ),
]
