"""One launch for each run, also when two daemons take it from the queue at the same moment.

Dagster supports one daemon for an instance, and does not keep a second one away: at a restart that overlaps, or after a
forgotten service, both look at a run, see it queued, and launch it. One that was frozen in between launches it later,
and notes a run that has ended as starting.

Invariants:
    - Of all launches of a run from one stay in the queue, one is the first. A run that Dagster puts into the queue
      again, because its code server was away, is launched again.
    - Loading this module imports Dagster alone.
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

#: The tag with the run's id and the number of its stays in the queue. A run that repeats another one copies its tags.
LAUNCHED_TAG = "holdfast/launched"
#: The events of a run that give it a status once it was launched, and that status.
TOLD = {
    DagsterEventType.RUN_START: DagsterRunStatus.STARTED,
    DagsterEventType.RUN_SUCCESS: DagsterRunStatus.SUCCESS,
    DagsterEventType.RUN_FAILURE: DagsterRunStatus.FAILURE,
    DagsterEventType.RUN_CANCELED: DagsterRunStatus.CANCELED,
}


@runtime_checkable
class SqlStorage(Protocol):
    """What each of Dagster's storages has that is a database of SQL."""

    def connect(self) -> AbstractContextManager[Connection]:
        """A transaction."""


def is_first(instance: DagsterInstance, run_id: str) -> bool:
    """Whether no daemon launched this run since it was put into the queue; True for one caller only."""
    with _alone(instance, run_id):
        stays = len(instance.all_logs(run_id, of_type=DagsterEventType.RUN_ENQUEUED))
        mine = {LAUNCHED_TAG: f"{run_id} {stays}"}
        # By a filter, which asks the table of tags: a run that is read has its own copy of them, and another daemon
        # that notes the run as starting at this moment writes it back as it was.
        if instance.get_runs_count(RunsFilter(run_ids=[run_id], tags=mine)):
            return False
        instance.add_run_tags(run_id, mine)
        return True


def restate(instance: DagsterInstance, run_id: str) -> None:
    """Give a run the status that its events tell, after a second daemon noted it as starting."""
    while records := instance.all_logs(run_id, of_type=set(TOLD)):
        event, run = records[-1].dagster_event, instance.get_run_by_id(run_id)
        if event is None or run is None or run.status is TOLD[event.event_type]:
            return
        # it may end at this moment, so the events are read again
        instance.run_storage.handle_run_event(run_id, event, datetime.fromtimestamp(records[-1].timestamp, UTC))


def sql_run_storage(instance: DagsterInstance) -> SqlStorage | None:
    """The instance's storage of runs; None for one without SQL."""
    found = instance.run_storage
    found = getattr(getattr(found, "_storage", None), "run_storage", found)  # one storage for all three
    return found if isinstance(found, SqlStorage) else None


@contextmanager
def _alone(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Keep other daemons of the instance out: by its Postgres, or by a file where its storage is on this machine."""
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
