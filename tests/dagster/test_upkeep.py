"""The upkeep job limits the growth of Dagster's storage, on SQLite and Postgres. Records that are needed stay."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
import yaml
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.runs.schema import RunsTable

from holdfast.infra.settings import Settings, UpkeepSettings, load_settings
from holdfast.infra.system.sizes import size_on_disk
from holdfast.infra.waiting import Deadline
from holdfast.orchestration import cli
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.host import old_events
from holdfast.orchestration.host.old_events import prune_dagster
from holdfast.orchestration.jobs.upkeep import runs_needed
from holdfast.orchestration.resources import LifecycleResource
from holdfast.orchestration.world import open_registry
from tests.parts.postgres import PASSWORD, USER, PostgresServer

KEEP = UpkeepSettings(observations_days=7, runs_days=30, failed_runs_days=90, asset_runs_days=400)
DAILY = dg.StaticPartitionsDefinition(["monday", "tuesday"])
TELEMETRY = dg.AssetKey(["processors", "fleet", "fleet_processor"])


@dg.asset(partitions_def=DAILY)
def table() -> dg.MaterializeResult[Any]:
    return dg.MaterializeResult(metadata={"rows": 1})


@dg.op
def look(context: dg.OpExecutionContext) -> None:
    context.log.info("nothing to do")


@dg.job
def looking() -> None:
    look()


@dg.op
def break_it() -> None:
    raise dg.Failure("the disk is full")


@dg.job
def breaking() -> None:
    break_it()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "dagster"
    home.mkdir()
    server = None
    config: dict[str, Any] = {"telemetry": {"enabled": False}}
    if request.param == "postgres":
        server = PostgresServer().start()
        place = {"hostname": "127.0.0.1", "port": server.port, "db_name": server.new_database()}
        place |= {"username": USER, "password": PASSWORD, "scheme": "postgresql+psycopg2"}
        config["storage"] = {"postgres": {"postgres_db": place}}
    (home / "dagster.yaml").write_text(yaml.safe_dump(config))
    with dg.DagsterInstance.from_config(str(home)) as opened:
        yield opened
    if server is not None:
        server.remove()


def materialised(instance: dg.DagsterInstance, partition: str) -> str:
    return dg.materialize([table], instance=instance, partition_key=partition).run_id


def observed(instance: dg.DagsterInstance, count: int) -> None:
    for number in range(count):
        instance.report_runless_asset_event(dg.AssetObservation(TELEMETRY, metadata={"lag_records": number}))
        check = {"asset_key": TELEMETRY, "check_name": "working", "passed": True, "description": str(number)}
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(**check))


def pruned(instance: dg.DagsterInstance, days: float, needed: set[str] | None = None) -> old_events.Deleted:
    """Prune as if this many days had passed. Returns what was deleted."""
    return prune_dagster(instance, KEEP, needed or set(), datetime.now(UTC) + timedelta(days=days), Deadline(300))


def rows(instance: dg.DagsterInstance) -> dict[str, int]:
    count = sa.select(sa.func.count())
    events = old_events._event_storage(instance)
    with events.index_connection() as connection:
        return {
            "events": connection.execute(count.select_from(SqlEventLogStorageTable)).scalar_one(),
            "checks": connection.execute(count.select_from(AssetCheckExecutionsTable)).scalar_one(),
        }


def test_what_is_old_goes_and_what_dagster_shows_of_an_asset_stays(instance: dg.DagsterInstance) -> None:
    first, second, other = (materialised(instance, each) for each in ("monday", "monday", "tuesday"))
    plain, asked = (looking.execute_in_process(instance=instance).run_id for _ in range(2))
    failed = breaking.execute_in_process(instance=instance, raise_on_error=False).run_id
    observed(instance, 5)
    last = looking.execute_in_process(instance=instance).run_id

    def left() -> set[str]:
        return {run.run_id for run in instance.get_runs()}

    assert pruned(instance, 1, {asked}) == old_events.Deleted()
    # after eight days, observations and check events without a run are deleted, except the newest of each kind
    assert pruned(instance, 8, {asked}).events == 8
    assert left() == {first, second, other, plain, asked, failed, last}
    found = pruned(instance, 31, {asked})
    assert (found.runs, found.checks) == (1, 4)
    assert left() == {first, second, other, asked, failed, last}
    assert pruned(instance, 91, {asked}).runs == 1
    assert left() == {first, second, other, asked, last}
    # the newest record of each partition stays for 400 days; an asset's newest record and run stay for ever
    assert pruned(instance, 390, {asked}).runs == 0
    pruned(instance, 401)
    assert left() == {other, last}
    event = instance.get_latest_materialization_event(table.key)
    assert event is not None
    assert event.run_id == other
    newest = instance.fetch_observations(TELEMETRY, limit=10).records
    assert [each.asset_observation.metadata["lag_records"].value for each in newest if each.asset_observation] == [4]
    check = dg.AssetCheckKey(TELEMETRY, "working")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
    assert record.event is not None
    assert record.event.dagster_event is not None
    assert record.event.dagster_event.asset_check_evaluation_data.description == "4"


def test_a_row_that_is_written_after_a_pruning_has_a_larger_number(instance: dg.DagsterInstance) -> None:
    """An event gets a higher number than all deleted events, because sensors remember the last number that they read.

    If a number were used again, sensors would skip its event.
    """

    def newest() -> int:
        return instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records[0].storage_id

    for _ in range(3):
        breaking.execute_in_process(instance=instance, raise_on_error=False)
    read = newest()
    assert pruned(instance, 10_000).runs == 2
    run = breaking.execute_in_process(instance=instance, raise_on_error=False).run_id
    assert newest() > read
    wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=read)
    assert [each.run_id for each in instance.fetch_run_status_changes(wanted, limit=9).records] == [run]


@pytest.mark.thorough
def test_after_many_rounds_the_storage_is_as_large_as_after_a_few(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # small limits, so that the pruning needs several transactions and several pages of runs
    monkeypatch.setattr(old_events, "ROWS", 3)

    def round_of_months() -> tuple[dict[str, int], int]:
        for _ in range(2):
            looking.execute_in_process(instance=instance)
        materialised(instance, "monday")
        observed(instance, 6)
        assert pruned(instance, 500).whole
        return rows(instance), size_on_disk([Path(instance.root_directory)])

    counts, size = round_of_months()
    for _ in range(2):
        counts_now, size_now = round_of_months()
        assert counts_now == counts
        assert size_now < 1.5 * size
    assert len(instance.get_runs()) <= 2
    storage = old_events._run_storage(instance)
    with storage.connect() as connection:
        tagged = connection.execute(sa.text("SELECT count(DISTINCT run_id) FROM run_tags")).scalar_one()
        assert tagged <= connection.execute(sa.select(sa.func.count()).select_from(RunsTable)).scalar_one()


# --- tests of the upkeep job -----------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    # pretend that the disk has space, because the tests may run on a full disk
    monkeypatch.setenv("HOLDFAST_UPKEEP__ROOM_MIN_PERCENT", "0")
    return load_settings()


@pytest.fixture
def upkeep(settings: Settings, tmp_path: Path) -> Iterator[Callable[[], dg.ExecuteInProcessResult]]:
    definitions = build_definitions(settings)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = definitions.resolve_job_def("upkeep")
        yield lambda: job.execute_in_process(instance=instance, raise_on_error=False)


def test_the_job_rotates_logs_and_the_command_shows_what_is_left(
    settings: Settings,
    upkeep: Callable[[], dg.ExecuteInProcessResult],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_UPKEEP__LOG_MAX_MB", "1")
    monkeypatch.setenv("HOLDFAST_UPKEEP__EXPORTS_DAYS", "30")
    log = settings.paths.logs / "dagster-daemon.log"
    export = settings.paths.exports("fleet") / "keys.jsonl"
    for file in (log, export):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (2 << 20))
    result = upkeep()
    assert result.success
    assert log.stat().st_size == 0
    assert export.exists()
    capsys.readouterr()  # discard what the job logged
    assert cli.main(["status", "--sizes", "--json"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    sizes = {each["owner"]: each["bytes"] for each in found["owners"]}
    assert sizes["logs"] >= 2 << 20
    assert sizes["exports"] >= 2 << 20
    assert found["has_room"] is (found["action"] is None)
    assert cli.main(["status", "--sizes"]) == 0
    assert "HOLDFAST_UPKEEP__LOG_MAX_MB" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_part_that_cannot_be_pruned_fails_the_run_after_the_others(
    settings: Settings, upkeep: Callable[[], dg.ExecuteInProcessResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_UPKEEP__LOG_MAX_MB", "1")
    monkeypatch.setenv("HOLDFAST_UPKEEP__ARCHIVE_DAYS", "1")
    settings.archive_folder.mkdir(parents=True)
    # A folder in the place of the lock file makes the pruning of archived events fail.
    (settings.archive_folder / "lock").mkdir()
    log = settings.paths.logs / "dagster-daemon.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * (2 << 20))
    result = upkeep()
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "The archive" in str(failure.step_failure_data.user_failure_data)
    assert log.stat().st_size == 0


def test_a_disk_without_room_fails_the_check_at_each_run_and_the_job_once(
    settings: Settings, upkeep: Callable[[], dg.ExecuteInProcessResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert upkeep().success
    monkeypatch.setenv("HOLDFAST_UPKEEP__ROOM_MIN_PERCENT", "100")
    result = upkeep()
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    told = str(failure.step_failure_data.user_failure_data)
    for said in ("free", "Expected: at least 100 % free", "What to do:", "holdfast status --sizes"):
        assert said in told
    assert upkeep().success


def test_the_runs_of_an_open_incident_and_an_open_apply_are_needed(settings: Settings) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        tagged = looking.execute_in_process(instance=instance, tags={"holdfast/incident": "1"}).run_id
        looking.execute_in_process(instance=instance, tags={"holdfast/incident": "2"})
        registry = open_registry(settings)
        now = datetime.now(UTC)
        incident, _ = registry.open_incident("fleet", "dead", {}, now)
        assert incident.id == 1
        registry.claim_incident(incident.id, "the-claiming-run", now)
        named = {"processor": "routes", "verb": "deploy", "plan_hash": "h", "plan": "{}", "holder": "p"}
        registry.journal.begin_apply(**named, who="dagster run the-applying-run", now=now)
        registry.close()
        lifecycle = LifecycleResource()
        try:
            assert runs_needed(lifecycle, instance) == {tagged, "the-claiming-run", "the-applying-run"}
        finally:
            lifecycle.close()
