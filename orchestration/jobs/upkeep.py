"""The job that deletes old data and checks the free disk space.

The data are those of Dagster, Holdfast's registry, logs, archive, exports and Spark.

Invariants:
    - If one kind of data can't be deleted, the error is logged and the remaining kinds are deleted. Then the run fails.
    - The run also fails if the disk had enough free space at the last run and has too little now. So a full disk is
      reported once, not every hour.
    - Data that an unfinished execution of a plan, an open incident or the newest result of an asset needs are never
      deleted.
"""

from collections.abc import Callable
from datetime import timedelta

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.growth import HAS_ROOM, room_result
from holdfast.infra.database.pruning import prune_registry
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.spark.spills import delete_spills_of_ended
from holdfast.infra.waiting import Deadline
from holdfast.orchestration.host.old_events import prune_dagster
from holdfast.orchestration.jobs.old_files import in_words, prune_archive, prune_exports, prune_proofs, rotate_logs
from holdfast.orchestration.jobs.recover_processor import INCIDENT_TAG
from holdfast.orchestration.resources import LifecycleResource

#: Maximum seconds for which one run deletes data in Dagster's storage; the next run deletes the rest.
DELETING_S = 600.0


@dg.op(description="Delete old runs, events, records, logs and copies; update the check `has_room`.")
def prune_one(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """Delete each kind of old data. If one kind can't be deleted, the others are deleted, and then the run fails."""
    settings = load_settings()
    had_room = _had_room(context.instance)
    # The check is also updated before the deletions, because the deletions may fail on a full disk.
    context.instance.report_runless_asset_event(room_result(settings).evaluation())
    failed = []
    for name, prune in _parts(context, settings, lifecycle).items():
        try:
            context.log.info(f"{name}: deleted {prune()}.")
        # An error, for example a locked database, must not prevent the deletion of the remaining kinds.
        except Exception as failure:
            context.log.error(f"{name} could not be pruned: {failure}")
            failed.append(f"{name}: {failure}")
    found = room_result(settings)
    context.instance.report_runless_asset_event(found.evaluation())
    context.add_output_metadata({"room": found.description, **found.metadata})
    # The run fails only at the first check that finds a full disk, so the full disk is logged and posted to the webhook
    # once.
    if had_room and not found.passed:
        failed.append(found.description)
    if failed:
        raise dg.Failure(description=" ".join(failed), allow_retries=False)


def _had_room(instance: dg.DagsterInstance) -> bool:
    """Whether the last result of the asset check ``has_room`` passed; True if the check never ran."""
    key = dg.AssetCheckKey(keys.home_key(), HAS_ROOM)
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    event = records[0].event.dagster_event if records and records[0].event is not None else None
    return event is None or event.asset_check_evaluation_data.passed


def _parts(
    context: dg.OpExecutionContext, settings: Settings, lifecycle: LifecycleResource
) -> dict[str, Callable[[], str]]:
    """Kind of data -> function that deletes old data of this kind, and returns a text such as ``12 runs``."""
    keep, paths, now = settings.upkeep, settings.paths, lifecycle.world.clock()

    def dagster() -> str:
        needed = runs_needed(lifecycle, context.instance) | {context.run.run_id}
        done = prune_dagster(context.instance, keep, needed, now, Deadline(DELETING_S))
        parts = [(done.runs, "runs"), (done.events, "events"), (done.checks, "check results"), (done.files, "files")]
        return in_words(parts) + ("" if done.whole else "; the rest follows in the next run")

    def registry() -> str:
        done = prune_registry(lifecycle.registry.database, now - timedelta(days=keep.registry_days))
        return in_words([(done.applies, "applies"), (done.incidents, "incidents"), (done.actions, "actions")])

    return {
        "Dagster": dagster,
        "The registry": registry,
        "Logs": lambda: in_words([(len(rotate_logs(paths, keep.log_max_mb)), "former contents")]),
        "The archive": lambda: in_words([(prune_archive(settings.archive_folder, keep.archive_days, now), "copies")]),
        "Exports": lambda: in_words([(prune_exports(paths.all_exports, keep.exports_days, now), "files")]),
        "Proofs": lambda: in_words([(prune_proofs(paths.all_releases), "folders of killed proofs")]),
        "Spark": lambda: in_words([(delete_spills_of_ended(paths.spark), "folders of ended JVMs")]),
    }


def runs_needed(lifecycle: LifecycleResource, instance: dg.DagsterInstance) -> set[str]:
    """Ids of the Dagster runs that belong to open incidents or to unfinished applies (executions of plans).

    These runs must not be deleted.
    """
    found = set()
    for incident in lifecycle.registry.open_incidents():
        records = instance.get_run_records(dg.RunsFilter(tags={INCIDENT_TAG: str(incident.id)}))
        found |= {record.dagster_run.run_id for record in records}
        found |= {incident.claimed_by} if incident.claimed_by else set()
    begun = lifecycle.registry.journal.applies(limit=1_000, open_only=True)
    return found | {each.who.rpartition(" ")[2] for each in begun}


@dg.job(
    executor_def=dg.in_process_executor,
    description="Delete old runs and events of Dagster, old records of the registry, and old copies. Rotate logs. "
    "Update the check `has_room`.",
    tags={"dagster/max_retries": "0"},
)
def upkeep() -> None:
    """The Dagster job that deletes old data; its only op is ``prune_one``."""
    prune_one()
