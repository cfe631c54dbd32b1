"""Holdfast's registry database on SQLite and Postgres.

Tests which operator process may change a processor at a time (its holder), and concurrent writes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, Table, insert, update
from sqlalchemy.exc import IntegrityError

from holdfast.infra.database import locks, releases
from holdfast.infra.database.errors import HeldByRecovery, HoldLost, RegistryUnavailable
from holdfast.infra.database.lease_times import SILENT_S
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.records import ApplyRecord, StageNote
from holdfast.infra.database.registry import Registry
from tests.parts.postgres import PASSWORD, USER, PostgresServer
from tests.registry_clock import Clock, url_with_clock

NOW = datetime(2027, 1, 1, tzinfo=UTC)
#: The number of pairs of concurrent writers for each kind of row.
PAIRS = 10
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return url_with_clock(server, server.new_database(), clock)


@pytest.fixture
def registry(url: str, clock: Clock) -> Iterator[Registry]:
    registry = Registry(url, lambda: clock.now_s)
    registry.migrate()
    yield registry
    registry.close()


def begin(registry: Registry, holder: str) -> tuple[ApplyRecord, bool]:
    named = {"processor": "fleet", "verb": "clear", "plan_hash": "h", "plan": "{}", "who": holder}
    return registry.journal.begin_apply(**named, holder=holder, now=NOW)


def note(number: int) -> StageNote:
    return StageNote(number, "clear_keys", "done", 1.0, 1.0)


def at_once(*acts: Callable[[], Result]) -> list[Result]:
    """Start all functions at the same moment and return their results; raise the first error."""
    gate = threading.Barrier(len(acts))

    def act(each: Callable[[], Result]) -> Result:
        gate.wait(60.0)
        return each()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(act, acts))


def test_a_run_that_lost_its_apply_can_write_nothing(registry: Registry, clock: Clock) -> None:
    record, mine = begin(registry, "one")
    assert mine
    assert registry.journal.claim_apply(record.id, "two", seen=record.token) is None, "it is live"
    clock.advance(SILENT_S + 1)
    token = registry.journal.claim_apply(record.id, "two", seen=record.token)
    assert token is not None
    assert token > record.token
    journal = registry.journal
    assert not journal.beat_apply(record.id, record.token)
    assert not journal.note_stage(record.id, record.token, note(1), NOW)
    assert not journal.let_go_of_apply(record.id, record.token, "too late")
    assert not journal.end_apply(record.id, record.token, "failed", NOW)
    former = registry.fenced(lambda: Fence("apply", record.id, record.token))
    with pytest.raises(HoldLost, match="holdfast apply list"):
        former.record_deployment("fleet", "v1", ["0"], NOW)
    with pytest.raises(HoldLost):
        former.releases.record("fleet", "r", code_version="v1", target="a:b", folder=None, shape={}, now=NOW)
    held = registry.fenced(lambda: Fence("apply", record.id, token))
    assert held.record_deployment("fleet", "v2", ["0"], NOW).generation == 1
    assert journal.note_stage(record.id, token, note(1), NOW)
    assert journal.end_apply(record.id, token, "done", NOW)
    with pytest.raises(HoldLost):
        held.record_deployment("fleet", "v3", ["0"], NOW)
    (ended,) = journal.applies()
    assert (ended.outcome, ended.holder, len(ended.done)) == ("done", None, 1)


def test_an_apply_and_a_recovery_exclude_each_other(registry: Registry, clock: Clock) -> None:
    incident, _ = registry.open_incident("fleet", "dead", {}, NOW)
    record, _ = begin(registry, "ada")
    assert registry.claim_incident(incident.id, "run-1", NOW) is None
    assert registry.journal.let_go_of_apply(record.id, record.token, "the disk is full")
    (free,) = registry.journal.applies(open_only=True)
    claim = registry.claim_incident(incident.id, "run-1", NOW)
    assert claim is not None
    assert claim > free.token
    with pytest.raises(HeldByRecovery, match=f"incident {incident.id}, run run-1") as told:
        registry.journal.claim_apply(record.id, "bob", seen=free.token)
    assert f"holdfast incidents show {incident.id}" in told.value.action
    assert registry.release_incident(incident.id, "run-1")
    assert registry.journal.claim_apply(record.id, "bob", seen=free.token) is not None


def test_who_is_silent_loses_the_processor_to_the_other_kind(registry: Registry, clock: Clock) -> None:
    incident, _ = registry.open_incident("fleet", "dead", {}, NOW)
    claim = registry.claim_incident(incident.id, "run-1", NOW)
    assert claim is not None
    clock.advance(SILENT_S - 1)
    assert registry.beat_incident(incident.id, claim)
    clock.advance(SILENT_S - 1)
    with pytest.raises(HeldByRecovery):
        begin(registry, "ada")
    clock.advance(2)
    record, mine = begin(registry, "ada")
    assert mine
    assert not registry.beat_incident(incident.id, claim)
    seen = registry.incident(incident.id)
    assert seen is not None
    assert (seen.claimed_by, [each.step for each in seen.timeline]) == (None, ["claim ended"])
    with pytest.raises(HoldLost, match="holdfast incidents show"):
        registry.fenced(lambda: Fence("incident", incident.id, claim)).begin_attempt(incident.id)
    clock.advance(SILENT_S + 1)
    assert registry.claim_incident(incident.id, "run-2", NOW) is not None
    assert not registry.journal.beat_apply(record.id, record.token)
    (left,) = registry.journal.applies(open_only=True)
    assert left.holder is None
    assert "recovery took" in left.reason


def test_a_claimed_incident_changes_through_its_claim_only(registry: Registry) -> None:
    incident, _ = registry.open_incident("fleet", "dead", {}, NOW)
    claim = registry.claim_incident(incident.id, "run-1", NOW)
    assert claim is not None
    assert not registry.decide_incident(incident.id, "dead", "wait", "")
    assert not registry.close_incident(incident.id, "failed", NOW)
    held = registry.fenced(lambda: Fence("incident", incident.id, claim))
    assert held.decide_incident(incident.id, "dead", "restart", "")
    assert held.begin_attempt(incident.id) == 1
    assert held.close_incident(incident.id, "failed", NOW)
    assert registry.retry_incident(incident.id, NOW)
    with pytest.raises(HoldLost):
        held.close_incident(incident.id, "resolved", NOW)


def test_only_the_clock_of_the_database_judges(registry: Registry, clock: Clock) -> None:
    """Only the database's clock decides which holder (operator process) is alive.

    Callers pass the time `NOW`, which is far from the time of this clock.
    """
    record, _ = begin(registry, "one")
    clock.advance(SILENT_S - 1)
    (seen,) = registry.journal.applies()
    assert (seen.is_live, round(seen.silent_s)) == (True, round(SILENT_S - 1))
    clock.advance(2)
    (seen,) = registry.journal.applies()
    assert not seen.is_live
    # in SQLite, a last heartbeat later than the clock means that the machine was rebooted after the heartbeat
    clock.advance(-SILENT_S * 10)
    assert registry.journal.claim_apply(record.id, "two", seen=record.token) is not None


@pytest.mark.slow
def test_two_at_once_are_one_after_the_other(registry: Registry) -> None:
    for number in range(PAIRS):
        name = f"p{number}"
        incident, _ = registry.open_incident(name, "dead", {}, NOW)
        named = {"processor": name, "verb": "stop", "plan_hash": "h", "plan": "{}", "who": "ada", "holder": "ada"}

        def apply(named: dict[str, str] = named) -> bool:
            try:
                return registry.journal.begin_apply(**named, now=NOW)[1]
            except HeldByRecovery:
                return False

        def recover(incident_id: int = incident.id) -> bool:
            return registry.claim_incident(incident_id, "run", NOW) is not None

        assert sorted(at_once(apply, recover)) == [False, True]


def test_a_clock_that_was_ahead_does_not_change_the_order_of_releases(registry: Registry) -> None:
    """The release that worked last is the newest one, although the other release has a later recorded time.

    The clock was ahead when the other release was recorded. The simulation found this case: status named the release
    with the time in the future, and a deploy could not change that.
    """
    book, ahead = registry.releases, NOW + timedelta(minutes=10)
    about: dict[str, Any] = {"code_version": "v2", "target": "a:b", "folder": None, "shape": {}}
    book.record("fleet", "first", **about, now=ahead)
    book.works("fleet", "first", ahead, newest=True)
    book.record("fleet", "second", **about, now=NOW)
    book.works("fleet", "second", NOW, newest=True)
    book.record("other", "third", **about, now=NOW)
    found = book.of_version("fleet", "v2")
    assert found is not None
    assert found.release_id == "second"
    assert [each.release_id for each in book.newest("fleet")] == ["second", "first"]
    former, other = book.before("fleet"), book.of_version("other", "v2")
    assert former is not None
    assert former.release_id == "first"
    assert other is not None
    assert other.made_at == NOW, "other processors keep their times"


@pytest.mark.slow
def test_two_that_write_one_row_at_once_both_succeed(registry: Registry) -> None:
    def plan(number: int) -> None:
        registry.journal.remember_plan(f"h{number}", "fleet", "stop", "{}", NOW)

    def release(number: int) -> None:
        about: dict[str, Any] = {"code_version": "v", "target": "a:b", "folder": None, "shape": {}}
        registry.releases.record("fleet", f"r{number}", **about, now=NOW)

    def deployment(number: int) -> None:
        registry.record_deployment(f"d{number}", "v", ["0"], NOW)

    def snapshot(number: int) -> None:
        registry.claim_snapshot(f"s{number}", "t", {}, NOW)

    for write in (plan, release, deployment, snapshot):
        for number in range(PAIRS):
            at_once(partial(write, number), partial(write, number))
    found = registry.deployments()
    assert [each.generation for each in found] == [2] * PAIRS


@pytest.mark.slow
def test_without_on_conflict_pairs_fail_on_postgres(
    postgres: PostgresServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plants a bug: update, then insert, without ON CONFLICT. Concurrent pairs of writes must then fail on Postgres."""

    def update_or_insert(
        connection: Connection, table: Table, key: Mapping[str, Any], values: Any, *, first: Any = None
    ) -> None:
        known = [table.c[name] == value for name, value in key.items()]
        if connection.execute(update(table).where(*known).values(values)).rowcount == 0:
            connection.execute(insert(table).values({**key, **values, **(first or {})}))

    monkeypatch.setattr(releases, "upsert", update_or_insert)
    registry = Registry(url_with_clock(postgres, postgres.new_database(), clock))
    registry.migrate()

    def record(number: int) -> None:
        about: dict[str, Any] = {"code_version": "v", "target": "a:b", "folder": None, "shape": {}}
        registry.releases.record("fleet", f"r{number}", **about, now=NOW)

    def all_pairs() -> None:
        for number in range(4 * PAIRS):
            at_once(partial(record, number), partial(record, number))

    with pytest.raises(IntegrityError):
        all_pairs()
    registry.close()


def test_a_commit_of_sqlite_is_on_the_disk(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    registry.migrate()
    with registry._database.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    registry.close()


def test_a_locked_database_is_asked_again_and_its_holder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "BUSY_TIMEOUT_S", 0.05)
    registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    registry.migrate()
    begun: list[int] = []
    is_locked = locks.is_locked

    with closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")

        def ends_at_the_second(failed: BaseException) -> bool:
            begun.append(1)
            if len(begun) == 2:
                holder.execute("ROLLBACK")
            return is_locked(failed)

        with monkeypatch.context() as patch:
            patch.setattr(locks, "is_locked", ends_at_the_second)
            registry.record_deployment("fleet", "v1", ["0"], NOW)
        assert len(begun) == 2
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryUnavailable, match="database is locked") as told:
            registry.record_deployment("fleet", "v2", ["0"], NOW)
        assert "which holds its lock, or end it" in told.value.action
    registry.close()


@pytest.mark.slow
def test_a_frozen_session_does_not_keep_others_out_of_postgres(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is frozen inside a transaction.

    The server ends its session, so other writers wait only a limited time.
    """
    monkeypatch.setattr(locks, "LOCK_TIMEOUT_S", 1.0)
    place = f"{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{postgres.port}/{postgres.new_database()}"
    frozen, other = Registry(f"postgresql+psycopg://{place}"), Registry(f"postgresql+psycopg://{place}")
    frozen.migrate()
    frozen.record_deployment("fleet", "v1", ["0"], NOW)
    done, waits = threading.Event(), list[str]()

    def write() -> None:
        while not done.is_set():
            try:
                other.record_deployment("fleet", "v2", ["0"], NOW)
                done.set()
            except RegistryUnavailable as failed:
                waits.append(failed.action)

    def freeze() -> None:
        with frozen._database.writing() as connection:
            connection.exec_driver_sql("UPDATE deployments SET desired = 'stopped'")
            threading.Thread(target=write, daemon=True).start()
            assert done.wait(60.0)
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(RegistryUnavailable, match="idle-in-transaction"):
        freeze()
    assert all("pg_stat_activity" in action for action in waits)
    assert frozen.deployment("fleet") == other.deployment("fleet")
    frozen.close()
    other.close()
