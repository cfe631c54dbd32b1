"""Ensures that a queued run is launched only once, even if two Dagster daemons take the run at the same moment.

Dagster supports one daemon for each instance, but does not prevent a second daemon. A second daemon may run during a
restart, or because a service was not stopped. Both daemons then see the same queued run, and both launch the run. A
daemon that was frozen may launch the run later, and set a run that has already ended to the status STARTING.

Invariants:
    - Each time a run is put into the queue, only the first launch is executed. If Dagster puts a run into the queue
      again, because the code server was unreachable, the run is launched again.
    - This module imports no heavy library except Dagster, because every process of a Dagster instance imports it.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

import sqlalchemy as sa
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus, RunsFilter
from sqlalchemy.engine import Connection

from holdfast.infra.system.files import locked

#: The run tag with the run's id and the number of times it was queued. The id is part of the value because a run that
#: repeats another run copies its tags.
LAUNCHED_TAG = "holdfast/launched"
#: Maps Dagster's events about a launched run to the status that the run has after the event.
TOLD = {
    DagsterEventType.RUN_START: DagsterRunStatus.STARTED,
    DagsterEventType.RUN_SUCCESS: DagsterRunStatus.SUCCESS,
    DagsterEventType.RUN_FAILURE: DagsterRunStatus.FAILURE,
    DagsterEventType.RUN_CANCELED: DagsterRunStatus.CANCELED,
}


@runtime_checkable
class SqlStorage(Protocol):
    """The part of Dagster's SQL storages that this module uses: the method ``connect``, which all of them have."""

    def connect(self) -> AbstractContextManager[Connection]:
        """Context manager with a database connection in a transaction."""


def is_first(instance: DagsterInstance, run_id: str) -> bool:
    """Whether the caller may launch this queued run. True only for the first caller since the run was queued."""
    with _alone(instance, run_id):
        stays = len(instance.all_logs(run_id, of_type=DagsterEventType.RUN_ENQUEUED))
        mine = {LAUNCHED_TAG: f"{run_id} {stays}"}
        # The filter queries the table of tags. The tags in the run's own record are not reliable: another daemon that
        # sets the run to STARTING overwrites the record with an older copy.
        if instance.get_runs_count(RunsFilter(run_ids=[run_id], tags=mine)):
            return False
        instance.add_run_tags(run_id, mine)
        return True


def restate(instance: DagsterInstance, run_id: str) -> None:
    """Set a run's status according to its newest event, after a second daemon wrongly set it to STARTING."""
    while records := instance.all_logs(run_id, of_type=set(TOLD)):
        event, run = records[-1].dagster_event, instance.get_run_by_id(run_id)
        if event is None or run is None or run.status is TOLD[event.event_type]:
            return
        # The run may have ended since its events were read. So the loop reads the events again.
        instance.run_storage.handle_run_event(run_id, event, datetime.fromtimestamp(records[-1].timestamp, UTC))


def sql_run_storage(instance: DagsterInstance) -> SqlStorage | None:
    """The SQL storage in which the instance keeps its runs; None if the storage is not SQL."""
    found = instance.run_storage
    # Dagster's combined storage (one database for runs, events and schedules) contains the storage of runs.
    found = getattr(getattr(found, "_storage", None), "run_storage", found)
    return found if isinstance(found, SqlStorage) else None


@contextmanager
def _alone(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Lock a run against other daemons: by a Postgres advisory lock, or by a lock file if the storage is local."""
    storage = sql_run_storage(instance)
    if storage is not None:
        with storage.connect() as connection:
            if connection.dialect.name == "postgresql":
                with _locked(connection, run_id):
                    yield
                return
    with locked(Path(instance.root_directory) / "launches.lock"):
        yield


@contextmanager
def _locked(connection: Connection, run_id: str) -> Iterator[None]:
    key = (sa.func.hashtext("holdfast"), sa.func.hashtext(run_id))
    connection.execute(sa.select(sa.func.pg_advisory_lock(*key)))
    try:
        yield
    finally:
        connection.execute(sa.select(sa.func.pg_advisory_unlock(*key)))
