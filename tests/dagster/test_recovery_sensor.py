"""The recovery sensor when recovery runs die: real registry, real Dagster instance, a processor that is down."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from infra.database.registry import Registry
from infra.settings import Settings, load_settings
from orchestration import sensors
from orchestration.definitions import build_definitions
from orchestration.resources import open_registry
from orchestration.sensors import RUNS_PER_INCIDENT

Tick = Callable[[], list[dg.RunRequest]]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return load_settings()


@pytest.fixture
def registry(settings: Settings) -> Iterator[Registry]:
    """A registry that says that ``fleet`` is deployed; nothing runs, so it counts as dead."""
    opened = open_registry(settings)
    opened.record_deployment("fleet", "v1", ["0"], datetime.now(UTC))
    yield opened
    opened.close()


@pytest.fixture
def definitions(settings: Settings) -> dg.Definitions:
    return build_definitions(settings)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Tick:
    sensor = definitions.resolve_sensor_def("processor_recovery")

    def evaluate() -> list[dg.RunRequest]:
        with dg.build_sensor_context(
            instance=instance, resources=definitions.resources, definitions=definitions
        ) as context:
            return list(sensor.evaluate_tick(context).run_requests or [])

    return evaluate


@pytest.fixture
def begin(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Callable[[dg.RunRequest], dg.DagsterRun]:
    """Makes the run that was asked for, as the daemon does, without executing it."""
    job = definitions.resolve_job_def("recover_processor")
    return lambda request: instance.create_run_for_job(job, tags=dict(request.tags), run_config=request.run_config)


def test_a_run_on_its_way_is_not_asked_for_twice(registry: Registry, tick: Tick, begin, instance) -> None:
    (request,) = tick()
    assert [each.run_key for each in tick()] == [request.run_key]
    begin(request)
    assert tick() == []


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run may follow at once."""
    monkeypatch.setattr(sensors, "NEXT_RUN_AFTER_S", 0.0)


def test_the_next_run_waits_a_while(registry: Registry, tick: Tick, begin, instance) -> None:
    (first,) = tick()
    instance.report_run_failed(begin(first))
    assert tick() == []
    assert [incident.outcome for incident in registry.open_incidents()] == [None]


@pytest.mark.usefixtures("no_pause")
def test_a_run_that_died_is_followed_by_another(registry: Registry, tick: Tick, begin, instance) -> None:
    (first,) = tick()
    run = begin(first)
    (incident,) = registry.open_incidents()
    assert registry.claim_incident(incident.id, run.run_id, datetime.now(UTC))
    assert tick() == []
    instance.report_run_failed(run)
    (second,) = tick()
    assert second.run_key != first.run_key
    assert second.tags == first.tags
    released = registry.incident(incident.id)
    assert released is not None
    assert released.claimed_by is None


def test_an_incident_that_somebody_else_holds_is_left_alone(registry: Registry, tick: Tick) -> None:
    tick()
    (incident,) = registry.open_incidents()
    assert registry.claim_incident(incident.id, "somebody", datetime.now(UTC))
    assert tick() == []
    held = registry.incident(incident.id)
    assert held is not None
    assert held.claimed_by == "somebody"


@pytest.mark.usefixtures("no_pause")
def test_runs_that_fail_before_they_start_are_bounded(
    registry: Registry, tick: Tick, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """No broker can be reached, so that the run fails before it claims the incident."""
    job = definitions.resolve_job_def("recover_processor")
    asked = []
    for _ in range(RUNS_PER_INCIDENT):
        (request,) = tick()
        asked.append(request.run_key)
        result = job.execute_in_process(
            instance=instance, run_config=request.run_config, tags=dict(request.tags), raise_on_error=False
        )
        assert not result.success
    assert len(set(asked)) == RUNS_PER_INCIDENT
    assert tick() == []
    (incident,) = registry.incidents(processor="fleet")
    assert incident.outcome == "failed"
    assert f"{RUNS_PER_INCIDENT} runs ended" in incident.reason
    assert tick() == []
    assert len(registry.incidents(processor="fleet")) == 1
