"""The registry (Holdfast's database) is lost.

It is rebuilt from the running workers, and a check reports the loss. All parts are real.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.checks.topics import REGISTERED
from holdfast.infra.deploy.marks import read_mark
from holdfast.orchestration.commands.reports.status import describe
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.verbs import open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.plans.plan import NothingToDo
from holdfast.processors.lifecycle.plans.requests import Deploy, Stop
from holdfast.processors.lifecycle.recovery.rediscovery import ADOPT
from tests.parts.operated import Operated


def lose_registry(operated: Operated) -> None:
    """Delete only SQLite's database file. Its other files (`-wal`, `-shm`) stay, as after a careless ``rm``."""
    operated.settings.paths.registry.unlink()


def test_a_lost_registry_is_made_anew_from_what_runs_and_recovery_goes_on(operated: Operated) -> None:
    operated.bring_up()
    operated.feed(keys=10, each=2)
    operated.processed(20)
    before = open_registry(operated.settings)
    was, worked = before.deployment(operated.group), before.releases.working(operated.group)
    before.close()
    assert was is not None
    assert worked is not None
    lose_registry(operated)

    definitions = build_definitions(operated.settings)
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(name: str) -> dg.SensorResult:
            sensor = definitions.resolve_sensor_def(name)
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                return sensor.evaluate_tick(context)

        told = [each for each in tick("topics_watched").asset_events if each.check_name == REGISTERED]
        assert [(each.asset_key, each.passed) for each in told] == [(keys.processor_key(operated.group), False)]
        assert f"{operated.group} was adopted from its programs as version {was.code_version}" in told[0].description
        assert "No action is needed" in told[0].description
        instance.report_runless_asset_event(told[0])

        registry = open_registry(operated.settings)
        again, works = registry.deployment(operated.group), registry.releases.working(operated.group)
        registry.close()
        assert again is not None
        assert works is not None
        assert (again.code_version, again.slots, again.desired) == (was.code_version, was.slots, "deployed")
        assert (works.release_id, works.target, works.folder) == (worked.release_id, worked.target, worked.folder)
        assert works.shape == worked.shape
        assert [each["processor"] for each in describe(operated.settings)["adopted"]] == [operated.group]
        with open_verbs(operated.settings, who="a test") as verbs:
            assert isinstance(verbs.plan(Deploy(operated.group)).verdict, NothingToDo)

        status = operated.client.status()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        requests: list[dg.RunRequest] = []
        operated.wait_for(lambda: requests.extend(tick("processor_recovery").run_requests or []) or requests, "a run")
        job = definitions.resolve_job_def("recover_processor")
        assert job.execute_in_process(instance=instance, run_config=requests[0].run_config).success
    operated.feed(keys=10, each=1)
    operated.processed(30)
    assert operated.logged() == {f"key-{number}": 3 for number in range(10)}


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stopped", pytest.param("died", marks=pytest.mark.thorough)])
def test_what_was_stopped_stays_so_and_what_died_is_meant_to_run(operated: Operated, how: str) -> None:
    operated.bring_up()
    status = operated.client.status()
    assert status is not None
    if how == "stopped":
        operated.do(Stop(operated.group))
    else:
        os.kill(status.pid, signal.SIGKILL)
        operated.wait_for(lambda: not operated.client.alive(), "its end")
    lose_registry(operated)
    registry = open_registry(operated.settings)
    try:
        found = registry.deployment(operated.group)
        assert found is not None
        assert found.desired == ("stopped" if how == "stopped" else "deployed")
        assert found.code_version == status.code_version
    finally:
        registry.close()


@pytest.mark.thorough
def test_many_who_open_a_lost_registry_at_once_fill_it_once(operated: Operated) -> None:
    operated.bring_up()
    mark = read_mark(operated.settings.paths, operated.group)
    assert mark is not None
    lose_registry(operated)
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda _: open_registry(operated.settings), range(4)))
    try:
        found = opened[0].deployment(operated.group)
        assert found is not None
        assert found.generation == mark.generation + 1
        assert [each.verb for each in opened[0].actions()] == [ADOPT]
    finally:
        for each in opened:
            each.close()


@pytest.mark.thorough
def test_a_registry_that_knows_something_is_never_overruled(operated: Operated) -> None:
    operated.bring_up()
    operated.do(Stop(operated.group))
    registry = open_registry(operated.settings)
    try:
        assert all(each.verb != ADOPT for each in registry.actions())
    finally:
        registry.close()
