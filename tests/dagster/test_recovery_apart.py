"""Recovery in a separate code location: a real daemon, and a project whose own Dagster module is broken or slow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import InstigatorState, InstigatorType

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.commands.reports.status import describe
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.host import local
from holdfast.orchestration.jobs.recover_processor import INCIDENT_TAG
from holdfast.orchestration.recovery_location import build_recovery
from holdfast.orchestration.sensors import apart
from holdfast.orchestration.sensors.recovery import RECOVERY_SENSOR
from holdfast.orchestration.world import open_registry
from tests.dagster.queued_runs import PATIENCE_S, fill_the_queue, launch_at
from tests.mechanics.tiers import variants
from tests.parts.webhook import Webhook

POOLS = ("spark", "deploys")
BROKEN = "import nothing_of_this_name\n"
#: More slow sensors than the daemon has threads; each occupies a thread until the test ends.
SLOW = """
import pathlib, time
import dagster as dg
import holdfast

@dg.job
def nothing():
    pass

def slow(number):
    @dg.sensor(job=nothing, name=f"slow_{number}", default_status=dg.DefaultSensorStatus.RUNNING)
    def holding():
        here = pathlib.Path(__file__).parent
        (here / f"holding-{number}").touch()
        while not (here / "release").exists():
            time.sleep(0.1)
    return holding

defs = dg.Definitions.merge(
    holdfast.definitions(), dg.Definitions(jobs=[nothing], sensors=[slow(number) for number in range(6)])
)
"""


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    there = Webhook().start()
    yield there
    there.stop()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: Webhook) -> Iterator[Settings]:
    """A project with a processor that is recorded as deployed and has no process; nothing else runs."""
    (tmp_path / "holdfast.toml").write_text('definitions = "shop_assets"\nprocessors = []\n')
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", webhook.url)
    settings = load_settings(project=tmp_path, home=tmp_path / "home")
    settings.paths.home.mkdir(mode=0o700)
    with closing(open_registry(settings)) as registry:
        registry.record_deployment("fleet", "v1", ["0"], datetime.now(UTC))
    yield settings
    (tmp_path / "release").touch()
    local.stop(settings, local.DAEMON)


@pytest.mark.parametrize(
    "module", variants([pytest.param(BROKEN, id="broken"), pytest.param(SLOW, id="slow")], tested=1)
)
def test_a_module_of_the_project_neither_ends_nor_delays_recovery_webhook_and_upkeep(
    project: Settings, webhook: Webhook, tmp_path: Path, module: str
) -> None:
    (tmp_path / "shop_assets.py").write_text(module)
    local.prepare(project)
    with dg.DagsterInstance.from_config(str(project.paths.dagster)) as instance:
        endless = fill_the_queue(instance, pools=POOLS)
    local.start_daemon(project)
    if module is SLOW:
        assert wait_until(lambda: len(list(tmp_path.glob("holding-*"))) == 6, PATIENCE_S)
    with closing(open_registry(project)) as registry:
        assert wait_until(registry.open_incidents, PATIENCE_S), "no incident was opened"
        (incident,) = registry.open_incidents()
    with dg.DagsterInstance.from_config(str(project.paths.dagster)) as instance:
        mine = dg.RunsFilter(tags={INCIDENT_TAG: str(incident.id)})
        assert wait_until(lambda: instance.get_runs(mine), PATIENCE_S), "no run was asked for"
        origin = instance.get_runs(mine)[0].remote_job_origin
        assert origin is not None
        assert origin.location_name == apart.LOCATION
        # the run finds no broker, so its incident stays open
        assert wait_until(lambda: instance.get_runs(mine)[0].is_finished, PATIENCE_S), "it waits in the queue"
        assert wait_until(lambda: "incident.opened" in _events(webhook), PATIENCE_S), "the webhook was not told"
        for run_id in endless:  # delete the endless runs, because the upkeep run would wait for them
            instance.delete_run(run_id)
        upkeep = launch_at(apart.LOCATION, local.workspace_of(project), project, "upkeep")
        assert wait_until(lambda: _status_of(upkeep, instance).is_finished, PATIENCE_S), "the upkeep does not end"
        assert _status_of(upkeep, instance).is_success
        (schedule,) = _schedules(instance)
        assert schedule.origin.repository_origin.code_location_origin.location_name == apart.LOCATION
        assert schedule.is_running
    if module is BROKEN:
        assert wait_until(lambda: _of_location(project), PATIENCE_S)
        (reason,) = _of_location(project)
        assert reason["colour"] == "red"
        assert "No module named 'nothing_of_this_name'" in reason["reason"]


def _events(webhook: Webhook) -> list[str]:
    return [each["event"] for each in webhook.received]


def _status_of(run_id: str, instance: dg.DagsterInstance) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def _schedules(instance: dg.DagsterInstance) -> list[InstigatorState]:
    """The states of the schedule `upkeep_hourly` that the daemon has stored."""
    found = instance.all_instigator_state(instigator_type=InstigatorType.SCHEDULE)
    return [each for each in found if each.instigator_name == "upkeep_hourly"]


def _of_location(settings: Settings) -> list[dict[str, str]]:
    return [each for each in describe(settings)["reasons"] if each["subject"] == "code location holdfast"]


def test_of_two_copies_that_of_the_own_location_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    settings = load_settings()
    with closing(open_registry(settings)) as registry:
        registry.record_deployment("fleet", "v1", ["0"], datetime.now(UTC))
    whole, own = build_definitions(settings), build_recovery(settings)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def tick(definitions: dg.Definitions, name: str = RECOVERY_SENSOR) -> tuple[int, str]:
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                data = definitions.resolve_sensor_def(name).evaluate_tick(context)
            return len(data.run_requests or []), data.skip_message or ""

        def upkeep(definitions: dg.Definitions) -> int:
            with dg.build_schedule_context(instance=instance, scheduled_execution_time=datetime.now(UTC)) as context:
                schedule = definitions.resolve_schedule_def("upkeep_hourly")
                return len(schedule.evaluate_tick(context).run_requests or [])

        assert tick(whole)[0] == 1, "a workspace with the project's module alone"
        assert upkeep(whole) == 1
        assert tick(own)[0] == 1
        assert tick(whole) == (0, apart.SKIPPED)
        assert (upkeep(whole), upkeep(own)) == (0, 1)
        assert tick(own, "notifications")[1].startswith("No webhook is configured")
        assert tick(whole, "notifications") == (0, apart.SKIPPED)
        now = apart.time.time() + apart.FRESH_S + 1
        monkeypatch.setattr(apart.time, "time", lambda: now)
        assert tick(whole)[0] == 1, "the other one is silent"
