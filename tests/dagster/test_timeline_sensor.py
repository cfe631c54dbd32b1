"""The timeline sensor copies in both directions: commands to assets' pages, and Dagster's runs to `holdfast history`.

Holdfast's registry and the Dagster instance are real. The tests write the records that applies (executions of plans)
and recovery would write.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from holdfast.assets import keys
from holdfast.assets.pages.timeline import EVENT_TAG
from holdfast.infra.database.copies import back_up, put_back
from holdfast.infra.database.registry import Registry
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.commands.reports.history import entries
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.host import local
from holdfast.orchestration.sensors import timeline
from holdfast.orchestration.world import open_registry
from holdfast.processors.application.registration import find_processor
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.plan import Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Deploy, Provision, Request, Stop
from tests.mechanics.tiers import variants

Tick = Callable[[], str]
PROCESSOR, CHANGELOG = keys.processor_key("fleet"), keys.changelog_key("fleet", "aircraft")


class Killed(BaseException):
    """An error that ends the tick at this point, as if its process were killed."""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return load_settings()


@pytest.fixture
def registry(settings: Settings) -> Iterator[Registry]:
    opened = open_registry(settings)
    yield opened
    opened.close()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    """Definitions that are built once for all tests. Each use of a resource reads the settings of the current test."""
    return build_definitions(load_settings(home=tmp_path_factory.mktemp("definitions")))


@pytest.fixture
def tick(definitions: dg.Definitions, settings: Settings, instance: dg.DagsterInstance) -> Tick:
    sensor = definitions.resolve_sensor_def("timeline")

    def evaluate() -> str:
        with dg.build_sensor_context(
            instance=instance, resources=definitions.resources, definitions=definitions
        ) as context:
            return sensor.evaluate_tick(context).skip_message or ""

    return evaluate


def apply(registry: Registry, request: Request, who: str, *, ends: bool = True, took_s: float = 2.0) -> int:
    """Write the database records of an apply (an execution of a plan). Returns its number."""
    now = datetime.now(UTC)
    plan = Plan(request=request, verdict=Ready("It can be done."))
    record, _ = registry.journal.begin_apply(
        processor=request.processor,
        verb=plan.verb,
        plan_hash=plan.hash,
        plan=plans.encode(plan),
        who=who,
        holder="test",
        now=now,
    )
    if ends:
        assert registry.journal.end_apply(record.id, record.token, "done", now + timedelta(seconds=took_s))
    return record.id


def observed(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dg.AssetObservation]:
    found = [each.event_log_entry.asset_observation for each in instance.fetch_observations(key, limit=50).records]
    return [each for each in reversed(found) if each is not None]


def materialized(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
    found = [each.asset_materialization for each in instance.fetch_materializations(key, limit=50).records]
    return [each for each in reversed(found) if each is not None]


def test_what_commands_and_recovery_did_is_on_the_assets_once(
    registry: Registry, instance: dg.DagsterInstance, tick: Tick
) -> None:
    number = apply(registry, Deploy("fleet"), "ann (pid 7)")
    apply(registry, Stop("fleet"), "bob (pid 8)", ends=False)
    incident, _ = registry.open_incident("routes", "dead", {"0": "Its process is gone."}, datetime.now(UTC))
    assert tick() == "3 events reported, 0 waiting."
    (deployed,) = materialized(instance, PROCESSOR)
    assert deployed.metadata["who"].value == "ann (pid 7)"
    assert deployed.metadata["seconds"].value == 2.0
    assert deployed.metadata["outcome"].value == "done"
    assert deployed.metadata["plan"].value == registry.journal.applies(2)[1].plan_hash
    began = registry.journal.applies(2)[1].started_at
    assert deployed.tags[EVENT_TAG] == f"apply-{number}-{began:%Y%m%dT%H%M%S}_processor"
    assert len(materialized(instance, CHANGELOG)) == 1
    assert tick() == "0 events reported, 0 waiting."

    (stop,) = registry.journal.applies(1)
    assert registry.journal.end_apply(stop.id, stop.token, "failed", datetime.now(UTC), reason="It did not end.")
    registry.close_incident(incident.id, "resolved", datetime.now(UTC), reason="It works again.")
    assert tick() == "2 events reported, 0 waiting."
    (stopped,) = observed(instance, PROCESSOR)
    assert stopped.description == f"stop (apply {stop.id}) by bob (pid 8): failed. It did not end."
    assert [each.metadata["outcome"].value for each in observed(instance, keys.processor_key("routes"))] == [
        "opened",
        "resolved",
    ]
    assert tick() == "0 events reported, 0 waiting."


def unsynced(settings: Settings, instance: dg.DagsterInstance) -> dict[str, list[str]]:
    """The deployed assets that Dagster's pages call "Unsynced", each with its reasons."""
    graph = build_definitions(settings).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    reasons = {key: [cause.reason for cause in resolver.get_stale_root_causes(key)] for key in (PROCESSOR, CHANGELOG)}
    return {key.path[-1]: found for key, found in reasons.items() if found}


def test_a_processor_that_a_command_deployed_is_synced_until_its_files_define_another_version(
    settings: Settings, registry: Registry, instance: dg.DagsterInstance, tick: Tick
) -> None:
    version = find_processor(settings, "fleet").topology.code_version
    registry.record_deployment("fleet", version, ("0",), datetime.now(UTC))
    apply(registry, Deploy("fleet"), "ann (pid 7)")
    tick()
    assert unsynced(settings, instance) == {}
    apply(registry, Provision("fleet"), "ann (pid 8)")
    tick()
    instance.report_runless_asset_event(dg.AssetMaterialization(keys.topic_key("flights"), description="It exists."))
    assert unsynced(settings, instance) == {}, "the changelog was provisioned after the processor was deployed"
    registry.record_deployment("fleet", "former", ("0",), datetime.now(UTC))
    apply(registry, Deploy("fleet"), "ann (pid 9)")
    tick()
    assert unsynced(settings, instance) == {"fleet_processor": ["has a new code version"]}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_tick_that_is_killed_loses_and_doubles_nothing(
    registry: Registry, instance: dg.DagsterInstance, tick: Tick, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    for number in range(3):
        apply(registry, Stop("fleet"), f"ann (pid {number})")
    report, told = type(instance).report_runless_asset_event, []

    def killed(self: dg.DagsterInstance, event: dg.AssetObservation) -> None:
        told.append(event)
        if moment == "after" or len(told) != 2:
            report(self, event)
        if len(told) == 2:
            raise Killed

    monkeypatch.setattr(type(instance), "report_runless_asset_event", killed)
    with pytest.raises(Killed):
        tick()
    tick()
    assert [each.metadata["who"].value for each in observed(instance, PROCESSOR)] == [
        f"ann (pid {number})" for number in range(3)
    ]


def test_more_than_a_tick_reports_and_reads_comes_with_the_next_ticks(
    registry: Registry, instance: dg.DagsterInstance, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "EVENTS_PER_TICK", 2)
    monkeypatch.setattr(timeline, "RECORDS_MAX", 3)
    for number in range(7):
        apply(registry, Stop("fleet"), f"ann (pid {number})")
    assert tick() == "2 events reported, 1 waiting."
    while tick() != "0 events reported, 0 waiting.":
        pass
    assert [each.metadata["who"].value for each in observed(instance, PROCESSOR)] == [
        f"ann (pid {number})" for number in range(7)
    ]


def test_an_open_record_far_behind_what_a_tick_reads_hides_none_before_it(
    registry: Registry, instance: dg.DagsterInstance, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "RECORDS_MAX", 2)
    for number in range(5):
        apply(registry, Stop("fleet"), f"ann (pid {number})")
        found, _ = registry.open_incident("fleet", "dead", {"0": "Its process is gone."}, datetime.now(UTC))
        registry.close_incident(found.id, "resolved", datetime.now(UTC), reason="It works again.")
    apply(registry, Stop("routes"), "ann (pid 9)", ends=False)
    registry.open_incident("routes", "dead", {"0": "Its process is gone."}, datetime.now(UTC))
    while tick() != "0 events reported, 0 waiting.":
        pass
    assert len(observed(instance, PROCESSOR)) == 15
    assert len(observed(instance, keys.processor_key("routes"))) == 1


@pytest.mark.parametrize("since", variants([1, 4, 2], tested=2))
def test_what_happens_after_an_older_registry_was_put_back_is_reported_once(
    settings: Settings, registry: Registry, instance: dg.DagsterInstance, tick: Tick, tmp_path: Path, since: int
) -> None:
    """An older copy of Holdfast's registry is put back. It ends at apply 2, but the sensor has reported apply 4.

    Before the sensor runs again, more applies (executions of plans) begin: their number is ``since``.
    """
    apply(registry, Stop("fleet"), "before the copy", took_s=0.0)
    apply(registry, Stop("routes"), "open in the copy", ends=False)
    copy = tmp_path / "copy.db"
    back_up(settings.registry, copy)
    (still_open,) = registry.journal.applies(open_only=True)
    assert registry.journal.end_apply(still_open.id, still_open.token, "done", datetime.now(UTC))
    for number in range(2):
        apply(registry, Stop("fleet"), f"lost {number}")
    before, _ = registry.open_incident("fleet", "dead", {"0": "Its process is gone."}, datetime.now(UTC))
    registry.close_incident(before.id, "resolved", datetime.now(UTC), reason="It works again.")
    while tick() != "0 events reported, 0 waiting.":
        pass

    put_back(settings.registry, copy, datetime.now(UTC), in_use=True)
    assert [each.id for each in registry.journal.applies(9)] == [2, 1]
    for number in range(since):
        assert apply(registry, Stop("fleet"), f"new {number}") == 3 + number
    (ended,) = registry.journal.applies(open_only=True)
    assert registry.journal.end_apply(ended.id, ended.token, "superseded", datetime.now(UTC))
    again, _ = registry.open_incident("fleet", "failed", {"0": "Its function raises."}, datetime.now(UTC))
    assert again.id == before.id
    registry.close_incident(again.id, "resolved", datetime.now(UTC), reason="It works again.")
    assert tick() == f"{since + 3} events reported, 0 waiting."
    assert tick() == "0 events reported, 0 waiting."
    who = [each.metadata["who"].value for each in observed(instance, PROCESSOR) if "plan" in each.metadata]
    assert who == ["before the copy", "lost 0", "lost 1", *(f"new {number}" for number in range(since))]
    outcomes = [each.metadata["outcome"].value for each in observed(instance, keys.processor_key("routes"))]
    assert outcomes == ["done", "superseded"]
    incidents = [each for each in observed(instance, PROCESSOR) if each.metadata["event"].value == "incident"]
    assert [each.metadata["outcome"].value for each in incidents] == ["opened", "resolved"] * 2


@pytest.mark.thorough
def test_history_has_applies_incidents_and_runs_in_the_order_of_time(settings: Settings, registry: Registry) -> None:
    @dg.op
    def nothing() -> None:
        """Do nothing and succeed."""

    @dg.job
    def stop_processor() -> None:
        nothing()

    apply(registry, Stop("fleet"), "ann (pid 7)")
    apply(registry, Stop("routes"), "ann (pid 7)")
    home = local.prepare(settings)
    with dg.DagsterInstance.from_config(str(home)) as stored:
        for name in ("fleet", "routes"):
            stop_processor.execute_in_process(instance=stored, tags={"processor": name, "user": "ann"})
    registry.open_incident("fleet", "dead", {"0": "Its process is gone."}, datetime.now(UTC))
    found = entries(settings, "fleet", 10)
    assert sorted((each.kind, each.outcome) for each in found) == [
        ("apply", "done"),
        ("incident", "opened"),
        ("run", "success"),
    ]
    assert [each.at for each in found] == sorted((each.at for each in found), reverse=True)
    (run,) = [each for each in found if each.kind == "run"]
    assert run.who.startswith("ann, dagster run ")
    assert run.run
    assert [each.kind for each in entries(settings, "fleet", 1)] == [found[0].kind]
