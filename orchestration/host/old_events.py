"""Deletes old runs and events from Dagster's storage (SQLite or Postgres).

Dagster itself keeps all events forever. ``DagsterInstance.delete_run`` does not delete the run's output and check
results; with SQLite, its tags and its event file stay, too. Dagster has no call that deletes events without a run, such
as the events that sensors report. So this module deletes the rest by SQL, from the tables that Dagster's code declares.

Invariants:
    - The newest event of each type of each asset is kept.
    - The newest row of each table is kept, because sensors remember its number in their cursors.
    - A transaction deletes at most ``ROWS`` rows. So runs and sensors never wait longer than a second to write.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as sa
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.runs.schema import RunsTable, RunTagsTable

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import UpkeepSettings
from holdfast.infra.waiting import Deadline
from holdfast.orchestration.host.launches import SqlStorage, sql_run_storage
from holdfast.orchestration.host.old_runs import OldRun, to_delete

#: Maximum number of rows that one transaction deletes, and of runs that one query reads.
ROWS = 1_000
#: The run id in events that belong to no run, such as events that a sensor reports.
RUNLESS = ""
#: Dagster's default name of a repository. The folder with the output of sensor ticks has this name.
REPOSITORY = "__repository__"
_MATERIALISED = dg.DagsterEventType.ASSET_MATERIALIZATION.value
_OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION.value
_EVENT, _CHECK = SqlEventLogStorageTable.c, AssetCheckExecutionsTable.c


class StorageUnknown(HoldfastError):
    """Dagster's storage of events or runs is neither SQLite nor Postgres, so Holdfast can't delete old data."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Numbers of deleted data; ``whole`` is False if time ran out before all old data was deleted."""

    runs: int = 0
    events: int = 0
    checks: int = 0
    files: int = 0
    whole: bool = True


def prune_dagster(
    instance: dg.DagsterInstance, keep: UpkeepSettings, needed: Iterable[str], now: datetime, until: Deadline
) -> Deleted:
    """Delete runs, events and check results that are older than the maximum ages in the settings.

    Runs whose ids are in ``needed`` are kept, because open incidents or unfinished executions of plans need them.
    Deletion stops when ``until`` has passed.

    Raises:
        StorageUnknown: The instance's storage is neither SQLite nor Postgres.
    """
    events, runs = _event_storage(instance), _run_storage(instance)
    old = to_delete(_candidates(instance, events, runs, keep, set(needed), now), keep, now.timestamp())
    done = Deleted()
    for run_id in old:
        if until.passed:
            return replace(done, whole=False)
        instance.delete_run(run_id)
        done = replace(done, runs=done.runs + 1, files=done.files + _delete_files(instance, events, run_id))
    found = _prune_events(events, keep, now, until)
    done = replace(done, events=found, checks=_prune_checks(events, keep, now, until))
    _delete_tags_without_run(runs)
    files = _delete_output(instance, now - timedelta(days=keep.runs_days)) + _delete_shards(instance, events, now)
    return replace(done, files=done.files + files, whole=not until.passed)


# --- runs ----------------------------------------------------------------------------------------------------


def _candidates(
    instance: dg.DagsterInstance,
    events: SqlEventLogStorage,
    runs: SqlStorage,
    keep: UpkeepSettings,
    needed: set[str],
    now: datetime,
) -> Iterator[OldRun]:
    """Yields the runs that were created more than ``keep.runs_days`` ago, with the facts that decide their deletion."""
    before = now - timedelta(days=keep.runs_days)
    needed = needed | _newest_runs(events, runs, now - timedelta(days=keep.asset_runs_days))
    wanted, after = dg.RunsFilter(created_before=before), None
    while records := instance.get_run_records(wanted, ascending=True, limit=ROWS, cursor=after):
        after = records[-1].dagster_run.run_id
        materialised = _materialised([record.dagster_run.run_id for record in records], events)
        for record in records:
            run = record.dagster_run
            ended_at = record.end_time or record.update_timestamp.replace(tzinfo=UTC).timestamp()
            yield OldRun(
                run.run_id,
                succeeded=run.status is dg.DagsterRunStatus.SUCCESS,
                ended_at=ended_at if run.is_finished else None,
                materialised=run.run_id in materialised,
                needed=run.run_id in needed,
            )


def _newest_runs(events: SqlEventLogStorage, runs: SqlStorage, partitions_after: datetime) -> set[str]:
    """Ids of runs that Dagster's UI and sensors need, so that they must be kept.

    These are runs with the newest event of an asset, time partition or check, or with the newest row of a table.
    """
    asset_events = _EVENT.dagster_event_type.in_((_MATERIALISED, _OBSERVED))
    newest = sa.select(sa.func.max(_EVENT.id))
    by_asset = newest.where(asset_events).group_by(_EVENT.asset_key, _EVENT.dagster_event_type)
    by_partition = newest.where(
        _EVENT.dagster_event_type == _MATERIALISED,
        _EVENT.partition.is_not(None),
        _EVENT.timestamp > _naive(partitions_after),
    ).group_by(_EVENT.asset_key, _EVENT.partition)
    by_check = sa.select(sa.func.max(_CHECK.id)).group_by(_CHECK.asset_key, _CHECK.check_name)
    found: set[str] = set()
    with events.index_connection() as connection:
        for wanted in (by_asset, by_partition, newest):
            rows = connection.execute(sa.select(_EVENT.run_id).where(_EVENT.id.in_(wanted)))
            found |= {row[0] for row in rows}
        found |= {row[0] for row in connection.execute(sa.select(_CHECK.run_id).where(_CHECK.id.in_(by_check)))}
    last = sa.select(RunsTable.c.run_id).where(
        RunsTable.c.id == sa.select(sa.func.max(RunsTable.c.id)).scalar_subquery()
    )
    with runs.connect() as connection:
        return found | {row[0] for row in connection.execute(last)}


def _materialised(run_ids: list[str], events: SqlEventLogStorage) -> set[str]:
    these = _EVENT.run_id.in_(run_ids)
    query = sa.select(_EVENT.run_id).where(these, _EVENT.dagster_event_type == _MATERIALISED).distinct()
    with events.index_connection() as connection:
        return {row[0] for row in connection.execute(query)}


def _delete_files(instance: dg.DagsterInstance, events: SqlEventLogStorage, run_id: str) -> int:
    """Delete the output and the event file of a run; returns the number of deleted files and folders."""
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    folder = Path(instance.storage_directory()) / run_id
    count = int(folder.exists())
    shutil.rmtree(folder, ignore_errors=True)
    return count + (_delete_shard(events, run_id) if isinstance(events, SqliteEventLogStorage) else 0)


def _delete_shard(events: SqliteEventLogStorage, run_id: str) -> int:
    file = Path(events.path_for_shard(run_id))
    count = int(file.exists())
    for end in ("", "-wal", "-shm"):
        file.with_name(file.name + end).unlink(missing_ok=True)
    return count


def _delete_shards(instance: dg.DagsterInstance, events: SqlEventLogStorage, now: datetime) -> int:
    """Delete SQLite event files (older than a day) of runs that were deleted in Dagster's UI; returns their number."""
    if not isinstance(events, SqliteEventLogStorage):
        return 0
    day_ago = now.timestamp() - 86_400
    old = [run for run in events.get_all_run_ids() if _modified(Path(events.path_for_shard(run))) < day_ago]
    return sum(_delete_shard(events, run) for run in old if run and not instance.has_run(run))


def _delete_output(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete output files of sensor and schedule ticks that are older than ``before``; returns their number."""
    count = 0
    for path in (Path(instance.storage_directory()) / REPOSITORY).rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.lstat().st_mtime < before.timestamp():
                path.unlink()
                count += 1
    return count


def _modified(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return float("inf")


def _delete_tags_without_run(runs: SqlStorage) -> None:
    """Delete tags of deleted runs. SQLite keeps these tags, because Dagster does not enable foreign keys."""
    with runs.connect() as connection:
        known = sa.select(RunsTable.c.run_id)
        connection.execute(sa.delete(RunTagsTable).where(RunTagsTable.c.run_id.not_in(known)))


# --- events without a run ------------------------------------------------------------------------------------


def _prune_events(events: SqlEventLogStorage, keep: UpkeepSettings, now: datetime, until: Deadline) -> int:
    runless = _EVENT.run_id == RUNLESS
    old = _EVENT.timestamp < _naive(now - timedelta(days=keep.observations_days))
    of_assets = _EVENT.timestamp < _naive(now - timedelta(days=max(keep.asset_runs_days, keep.observations_days)))
    wanted = sa.and_(runless, sa.or_(sa.and_(old, _EVENT.dagster_event_type != _MATERIALISED), of_assets))
    by_asset = sa.select(sa.func.max(_EVENT.id)).where(runless)
    by_asset = by_asset.group_by(_EVENT.asset_key, _EVENT.dagster_event_type, _EVENT.partition)
    with events.index_connection() as connection:
        newest = {row[0] for row in connection.execute(by_asset)}
        newest |= {row[0] for row in connection.execute(sa.select(sa.func.max(_EVENT.id)))}
    count = _delete_rows(events.index_connection, wanted, newest, until)
    if isinstance(events, SqliteEventLogStorage) and Path(events.path_for_shard(RUNLESS)).exists():
        # Dagster writes each event without a run to the index database and to a second SQLite file. It reads these
        # events only from the index database. So events older than a day can be deleted from the second file.
        yesterday = _EVENT.timestamp < _naive(now - timedelta(days=1))
        _delete_rows(lambda: events.run_connection(RUNLESS), yesterday, set(), until)
    return count


def _delete_rows(connect: Any, wanted: Any, kept: set[int], until: Deadline) -> int:
    """Delete events and their tags, in order of event ids; returns the number of deleted events.

    ``wanted`` is the SQL condition for events to delete; events with an id in ``kept`` are not deleted.
    """
    count, after = 0, 0
    while not until.passed:
        with connect() as connection:
            query = sa.select(_EVENT.id).where(wanted, _EVENT.id > after).order_by(_EVENT.id).limit(ROWS)
            found = [row[0] for row in connection.execute(query)]
            if not found:
                break
            old = [each for each in found if each not in kept]
            connection.execute(sa.delete(AssetEventTagsTable).where(AssetEventTagsTable.c.event_id.in_(old)))
            connection.execute(sa.delete(SqlEventLogStorageTable).where(_EVENT.id.in_(old)))
            count, after = count + len(old), found[-1]
    return count


def _prune_checks(events: SqlEventLogStorage, keep: UpkeepSettings, now: datetime, until: Deadline) -> int:
    """Delete old results of asset checks, except the newest result of each check; returns the number of deletions."""
    before = _naive(now - timedelta(days=keep.runs_days))
    newest = sa.select(sa.func.max(_CHECK.id)).group_by(_CHECK.asset_key, _CHECK.check_name)
    count = 0
    while not until.passed:
        with events.index_connection() as connection:
            query = sa.select(_CHECK.id).where(_CHECK.create_timestamp < before, _CHECK.id.not_in(newest)).limit(ROWS)
            old = [row[0] for row in connection.execute(query)]
            if not old:
                break
            connection.execute(sa.delete(AssetCheckExecutionsTable).where(_CHECK.id.in_(old)))
            count += len(old)
    return count


# --- storages ------------------------------------------------------------------------------------------------


def _event_storage(instance: dg.DagsterInstance) -> SqlEventLogStorage:
    found = instance.event_log_storage
    # Dagster's combined storage (one database for runs, events and schedules) contains the storage of events.
    found = getattr(getattr(found, "_storage", None), "event_log_storage", found)
    if not isinstance(found, SqlEventLogStorage):
        raise _unknown(found)
    return found


def _run_storage(instance: dg.DagsterInstance) -> SqlStorage:
    found = sql_run_storage(instance)
    if found is None:
        raise _unknown(instance.run_storage)
    return found


def _unknown(found: object) -> StorageUnknown:
    return StorageUnknown(
        f"Dagster's storage is a {type(found).__name__}; SQLite or Postgres was expected, so nothing is pruned.",
        action="Set `storage` in `dagster.yaml` to SQLite or Postgres, or prune that storage yourself and switch the "
        "schedule `upkeep_hourly` off.",
    )


def _naive(moment: datetime) -> datetime:
    """The time in UTC without a time zone, as Dagster's tables store it."""
    return moment.astimezone(UTC).replace(tzinfo=None)
