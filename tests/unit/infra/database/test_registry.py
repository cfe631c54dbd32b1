"""The registry (Holdfast's database) on a real SQLite file: incidents, deployments, snapshots and migrations."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from holdfast.infra.database import migrations, schema, tables
from holdfast.infra.database.errors import RecordUnknown, RegistryNewerThanCode, RegistryUnavailable
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.registry import Registry

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PROJECT = Path(__file__).resolve().parents[4]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'folder with space' / 'registry.db'}"


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    registry = Registry(url)
    registry.migrate()
    yield registry
    registry.close()


def test_a_second_failure_joins_the_open_incident(registry: Registry) -> None:
    first, opened = registry.open_incident("fleet", "dead", {"slot": "0"}, NOW)
    again, opened_again = registry.open_incident("fleet", "stuck", {}, NOW + timedelta(seconds=5))
    other, opened_other = registry.open_incident("routes", "dead", {}, NOW)

    assert (opened, opened_again, opened_other) == (True, False, True)
    assert again == first
    assert first.kind == "dead"
    assert first.detail == {"slot": "0"}
    assert first.opened_at == NOW
    assert first.is_open
    assert [incident.id for incident in registry.open_incidents()] == [first.id, other.id]


def test_the_slots_that_a_person_is_asked_about_are_kept_until_a_retry(registry: Registry) -> None:
    incident, _ = registry.open_incident("fleet", "dead", {"0": "gone", "1": "running"}, NOW)
    assert dict(incident.asks) == {}
    registry.ask_about(incident.id, {"0": "truncated"})
    registry.close_incident(incident.id, "failed", NOW)
    registry.ask_about(incident.id, {"1": "closed incidents stay as they are"})
    (seen,) = registry.incidents()
    assert (dict(seen.detail), dict(seen.asks)) == ({"0": "gone", "1": "running"}, {"0": "truncated"})
    assert registry.retry_incident(incident.id, NOW)
    (seen,) = registry.incidents()
    assert (dict(seen.detail), dict(seen.asks)) == ({"0": "gone", "1": "running"}, {})


def test_after_the_end_of_an_incident_a_new_one_can_be_opened(registry: Registry) -> None:
    first, _ = registry.open_incident("fleet", "dead", {}, NOW)
    assert registry.close_incident(first.id, "failed", NOW, reason="three attempts")
    assert not registry.close_incident(first.id, "resolved", NOW)

    closed = registry.incident(first.id)
    assert closed is not None
    assert (closed.outcome, closed.reason, closed.closed_at) == ("failed", "three attempts", NOW)

    second, opened = registry.open_incident("fleet", "dead", {}, NOW)
    assert opened
    assert [incident.id for incident in registry.incidents(10)] == [second.id, first.id]
    assert [incident.id for incident in registry.incidents(1)] == [second.id]
    assert registry.incidents(10, processor="routes") == ()


def test_the_database_itself_refuses_a_second_open_incident(registry: Registry, url: str) -> None:
    registry.open_incident("fleet", "dead", {}, NOW)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(
            "INSERT INTO incidents (processor, kind, detail, opened_at) VALUES ('fleet', 'x', '{}', '2026')"
        )
    connection.close()


def test_many_who_notice_at_once_open_one_incident(registry: Registry) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: registry.open_incident("fleet", "dead", {}, NOW), range(16)))
    assert sum(opened for _, opened in results) == 1
    assert len({incident.id for incident, _ in results}) == 1


def test_one_run_wins_the_claim(registry: Registry) -> None:
    incident, _ = registry.open_incident("fleet", "dead", {}, NOW)
    with ThreadPoolExecutor(8) as pool:
        runs = [f"run-{number}" for number in range(8)]
        claims = list(pool.map(lambda run: registry.claim_incident(incident.id, run, NOW), runs))
    (token,) = (each for each in claims if each is not None)
    winner = runs[claims.index(token)]
    assert registry.claim_incident(incident.id, winner, NOW)

    claimed = registry.incident(incident.id)
    assert claimed is not None
    assert (claimed.claimed_by, claimed.claimed_at) == (winner, NOW)

    assert not registry.release_incident(incident.id, "someone else")
    assert registry.release_incident(incident.id, winner)
    claim = registry.claim_incident(incident.id, "next", NOW)
    assert claim is not None
    assert not registry.close_incident(incident.id, "resolved", NOW), "it is claimed"
    holders = registry.fenced(lambda: Fence("incident", incident.id, claim))
    assert holders.close_incident(incident.id, "resolved", NOW)
    assert not registry.claim_incident(incident.id, "next", NOW)
    assert not registry.claim_incident(999, "next", NOW)


def test_the_timeline_keeps_steps_in_order_with_their_durations(registry: Registry) -> None:
    incident, _ = registry.open_incident("fleet", "dead", {}, NOW)
    registry.note_incident(incident.id, "diagnose", "It is dead.", NOW)
    registry.note_incident(incident.id, "restart", "Started.", NOW + timedelta(seconds=2), seconds=1.5)
    found = registry.incident(incident.id)
    assert found is not None
    assert [(note.step, note.text, note.seconds) for note in found.timeline] == [
        ("diagnose", "It is dead.", None),
        ("restart", "Started.", 1.5),
    ]
    assert found.timeline[1].at == NOW + timedelta(seconds=2)
    assert [registry.begin_attempt(incident.id) for _ in range(2)] == [1, 2]
    with pytest.raises(RecordUnknown, match="999"):
        registry.note_incident(999, "diagnose", "", NOW)
    with pytest.raises(RecordUnknown):
        registry.begin_attempt(999)
    assert registry.incident(999) is None


def test_a_deployment_is_the_newest_wish(registry: Registry) -> None:
    assert registry.deployment("fleet") is None
    assert registry.record_stopped("fleet", NOW) is None
    registry.record_deployment("fleet", "v1", ["0"], NOW, desired="deploying")
    registry.record_deployment("fleet", "v2", ("0", "1"), NOW)
    deployment = registry.deployment("fleet")
    assert deployment is not None
    assert (deployment.code_version, deployment.slots, deployment.desired) == ("v2", ("0", "1"), "deployed")
    assert deployment.generation == 2

    stopped = registry.record_stopped("fleet", NOW + timedelta(minutes=1))
    assert stopped is not None
    assert (stopped.desired, stopped.slots, stopped.generation) == ("stopped", ("0", "1"), 3)
    assert registry.deployments() == (stopped,)


def test_actions_come_newest_first(registry: Registry) -> None:
    for verb in ("provision", "deploy"):
        registry.record_action(verb, "fleet", "ada", "1. do it", "done", NOW, NOW + timedelta(seconds=3))
    assert [action.verb for action in registry.actions(10)] == ["deploy", "provision"]
    assert registry.actions(1)[0].finished_at - NOW == timedelta(seconds=3)


def test_a_snapshot_is_claimed_once_and_finished_once(registry: Registry) -> None:
    iceberg_id = 2**63 - 1
    assert registry.claim_snapshot("s1", "holdfast.fleet.aircraft", {"offsets": {"0": 7}}, NOW)
    assert not registry.claim_snapshot("s1", "holdfast.fleet.aircraft", {}, NOW)
    begun = registry.snapshot("s1")
    assert begun is not None
    assert not begun.is_finished
    assert begun.detail == {"offsets": {"0": 7}}
    assert registry.finish_snapshot("s1", iceberg_id, NOW)
    assert not registry.finish_snapshot("s1", 1, NOW)
    finished = registry.snapshot("s1")
    assert finished is not None
    assert (finished.iceberg_snapshot_id, finished.finished_at) == (iceberg_id, NOW)
    assert registry.snapshot("s2") is None
    with pytest.raises(RecordUnknown):
        registry.finish_snapshot("s2", 1, NOW)


def test_naive_times_are_refused_and_others_come_back_in_utc(registry: Registry) -> None:
    with pytest.raises(Exception, match="no zone"):
        registry.open_incident("fleet", "dead", {}, datetime(2026, 3, 1))  # noqa: DTZ001
    eastern = NOW.astimezone(timezone(timedelta(hours=-5)))
    incident, _ = registry.open_incident("fleet", "dead", {}, eastern)
    assert incident.opened_at == NOW
    assert incident.opened_at.tzinfo is UTC


MIGRATE = "import sys; from holdfast.infra.database.registry import Registry; print(Registry(sys.argv[1]).migrate())"


@pytest.mark.thorough
@pytest.mark.slow
def test_processes_that_migrate_at_once_all_succeed(url: str) -> None:
    command = [sys.executable, "-c", MIGRATE, url]
    started = [
        subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    ends = [(process.communicate(timeout=120), process.returncode) for process in started]
    assert [code for _, code in ends] == [0, 0, 0, 0], ends
    assert {out.splitlines()[-1] for (out, _), _ in ends} == {"0006"}


def test_a_second_migration_changes_nothing_and_the_log_is_on(registry: Registry, url: str) -> None:
    registry.open_incident("fleet", "dead", {}, NOW)
    assert registry.migrate() == "0006"
    assert len(registry.open_incidents()) == 1
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.slow
def test_a_schema_of_the_newest_version_is_opened_beside_a_writer(registry: Registry, url: str) -> None:
    """A command that only reads Holdfast's database waits for no writer's lock, and imports no migration library."""
    program = f"import sys; {MIGRATE}; print('alembic' in sys.modules, 'sqlalchemy.dialects.postgresql' in sys.modules)"
    writer = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    ran = subprocess.run([sys.executable, "-c", program, url], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    writer.close()
    assert ran.stdout.splitlines()[-2:] == ["0006", "False False"], ran.stderr


def test_the_newest_version_is_that_of_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    assert [schema.newest_version()] == ScriptDirectory.from_config(config).get_heads()


def test_the_migrations_build_exactly_the_tables(registry: Registry, url: str) -> None:
    engine = schema.open_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []
    engine.dispose()


def test_a_newer_schema_is_left_alone(registry: Registry, url: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(RegistryNewerThanCode, match=r"version 9999; this code knows up to 0006.*What to do"):
        registry.migrate()


def test_the_rule_of_one_open_incident_is_in_both_dialects() -> None:
    for dialect in (sqlite.dialect(), postgresql.dialect()):
        statement = str(CreateIndex(migrations.one_open_incident).compile(dialect=dialect))
        assert statement.endswith("ON incidents (processor) WHERE closed_at IS NULL")


def test_an_unreachable_database_is_named_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    registry = Registry(f"sqlite:///{tmp_path / 'file' / 'registry.db'}")
    with pytest.raises(RegistryUnavailable, match="doesn't answer"):
        registry.migrate()
    with pytest.raises(RegistryUnavailable, match="HOLDFAST_REGISTRY_URL"):
        registry.open_incidents()
    with pytest.raises(RegistryUnavailable) as unusable:
        Registry("nosuch://ada:secret@host/registry")
    assert "secret" not in str(unusable.value)
    with pytest.raises(RegistryUnavailable) as malformed:
        Registry("ada:secret")
    assert "secret" not in str(malformed.value)


def test_a_registry_without_its_tables_says_what_to_do(tmp_path: Path) -> None:
    registry = Registry(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(RegistryUnavailable, match=r"no such table.*`holdfast up` brings"):
        registry.deployment("fleet")
    registry.close()
