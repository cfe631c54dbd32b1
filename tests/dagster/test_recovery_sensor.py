"""The recovery sensor while recovery runs die.

Holdfast's registry and the Dagster instance are real; the processor is down.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.marks import Mark, write_mark
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.process import own_identity
from holdfast.orchestration import cli
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.jobs.recover_processor import INCIDENT_TAG, SINCE_TAG
from holdfast.orchestration.sensors.recovery import RUN_KEY_TAG
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, encode
from holdfast.processors.lifecycle.plans.requests import Clear, Deploy
from holdfast.processors.lifecycle.plans.stages import RunProcessor, StopProcessor
from holdfast.processors.lifecycle.recovery import tick as ticks
from holdfast.processors.lifecycle.recovery.limits import RUNS_PER_INCIDENT
from tests.mechanics.tiers import variants

Tick = Callable[[], list[dg.RunRequest]]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return load_settings()


@pytest.fixture
def registry(settings: Settings) -> Iterator[Registry]:
    """A registry (Holdfast's database) in which ``fleet`` is deployed. No process runs, so ``fleet`` counts as dead."""
    opened = open_registry(settings)
    opened.record_deployment("fleet", "v1", ["0"], datetime.now(UTC))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    """Definitions that are built once for all tests. Each use of a resource reads the settings of the current test."""
    return build_definitions(load_settings(home=tmp_path_factory.mktemp("definitions")))


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
    """Creates the requested run without executing it, as the daemon does."""
    job = definitions.resolve_job_def("recover_processor")

    def made(request: dg.RunRequest) -> dg.DagsterRun:
        tags = {**request.tags, RUN_KEY_TAG: str(request.run_key)}
        return instance.create_run_for_job(job, tags=tags, run_config=request.run_config)

    return made


def test_a_run_on_its_way_is_not_asked_for_twice(registry: Registry, tick: Tick, begin, instance) -> None:
    (request,) = tick()
    assert [each.run_key for each in tick()] == [request.run_key]
    begin(request)
    assert tick() == []


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sensor request the next recovery run at once, without the pause after a failed run."""
    monkeypatch.setattr(ticks, "NEXT_RUN_AFTER_S", 0.0)


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
    registry: Registry, tick: Tick, definitions: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: Any
) -> None:
    """The definition is missing, so each recovery run fails before it claims the incident.

    The number of such runs is limited.
    """
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    job = definitions.resolve_job_def("recover_processor")
    asked = []
    for _ in range(RUNS_PER_INCIDENT):
        (request,) = tick()
        asked.append(request.run_key)
        result = job.execute_in_process(
            instance=instance,
            run_config=request.run_config,
            tags={**request.tags, RUN_KEY_TAG: str(request.run_key)},
            raise_on_error=False,
        )
        assert not result.success
    assert len(set(asked)) == RUNS_PER_INCIDENT
    assert tick() == []
    (incident,) = registry.incidents(processor="fleet")
    assert incident.outcome == "failed"
    assert f"{RUNS_PER_INCIDENT} runs ended" in incident.reason
    assert tick() == []
    assert len(registry.incidents(processor="fleet")) == 1


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("deleted", variants([1, 0]))
def test_a_run_that_was_deleted_keeps_no_other_from_its_turn(
    registry: Registry, tick: Tick, begin, instance: dg.DagsterInstance, deleted: int
) -> None:
    """After a run was deleted, the next request has a new run key.

    Dagster drops a request whose run key belongs to an existing run.
    """
    runs = []
    for _ in range(2):
        (request,) = tick()
        runs.append(begin(request))
        instance.report_run_failed(runs[-1])
    instance.delete_run(runs[deleted].run_id)
    (request,) = tick()
    assert request.run_key != runs[1 - deleted].tags[RUN_KEY_TAG]


@pytest.mark.usefixtures("no_pause")
def test_runs_of_an_incident_of_another_registry_are_not_counted(
    registry: Registry, tick: Tick, begin, instance: dg.DagsterInstance
) -> None:
    """Runs that a lost registry (Holdfast's database) requested are not counted.

    A new registry numbers its incidents from 1, but Dagster still has the old runs with the same numbers.
    """
    tags = {INCIDENT_TAG: "1", SINCE_TAG: datetime(2026, 1, 1, tzinfo=UTC).isoformat()}
    config = {"ops": {"recover_one": {"config": {"processor": "fleet", "incident": 1}}}}
    for number in range(RUNS_PER_INCIDENT):
        former = dg.RunRequest(run_key=f"incident-1-{number + 1}", tags=tags, run_config=config)
        instance.report_run_failed(begin(former))
    begin(dg.RunRequest(run_key="incident-1-9", tags=tags, run_config=config))
    (request,) = tick()
    (incident,) = registry.open_incidents()
    assert (incident.id, request.tags[INCIDENT_TAG]) == (1, "1")
    assert request.run_key == f"incident-1-{incident.opened_at:%Y%m%dT%H%M%S.%f}-1"


def test_runs_without_a_time_are_counted_by_their_own(registry: Registry) -> None:
    """Recovery runs that an older version of Holdfast requested have no tag with the incident's time.

    Such a run counts for the incident only if the run was not created before the incident was opened.
    """
    incident, _ = registry.open_incident("fleet", "dead", {}, datetime.now(UTC))
    assert ticks.is_of(None, incident.opened_at, incident)
    assert not ticks.is_of(None, incident.opened_at - timedelta(seconds=1), incident)


class Ticker:
    """The sensor as one daemon runs it: each tick gets the cursor of the last tick."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions, self.instance = definitions, instance
        self.cursor: str | None = None
        self.said = ""

    def __call__(self) -> tuple[list[dg.RunRequest], list[dg.AssetCheckEvaluation]]:
        sensor = self.definitions.resolve_sensor_def("processor_recovery")
        with dg.build_sensor_context(
            instance=self.instance,
            resources=self.definitions.resources,
            definitions=self.definitions,
            cursor=self.cursor,
        ) as context:
            data = sensor.evaluate_tick(context)
        self.cursor, self.said = data.cursor, data.skip_message or ""
        return list(data.run_requests or []), list(data.asset_events)  # type: ignore[arg-type]


@pytest.fixture
def ticker(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Ticker:
    return Ticker(definitions, instance)


def test_the_check_is_told_while_the_definition_can_not_be_loaded(
    registry: Registry, settings: Settings, instance: dg.DagsterInstance
) -> None:
    _, (told,) = Ticker(build_definitions(settings, loaded=()), instance)()
    assert (told.asset_key.path[-1], told.check_name, told.passed) == ("fleet_processor", "working", False)


def test_the_check_is_told_when_its_answer_changes_and_not_at_each_tick(registry: Registry, ticker: Ticker) -> None:
    requests, (told,) = ticker()
    assert len(requests) == 1
    assert (told.check_name, told.passed, told.severity) == ("working", False, dg.AssetCheckSeverity.ERROR)
    (incident,) = registry.open_incidents()
    assert told.description is not None
    assert told.description.startswith("Its process is gone. Slot 0: It has no process. Since ")
    assert told.description.endswith(f"incident {incident.id}. Recovery is starting.")
    assert f"## Incident {incident.id}: fleet" in str(told.metadata["timeline"].value)
    assert ticker()[1] == []
    registry.decide_incident(incident.id, "changelog-missing", "ask", "holdfast apply backfill fleet --store s")
    registry.close_incident(incident.id, "failed", datetime.now(UTC), reason="no")
    requests, (asked,) = ticker()
    assert requests == []
    assert asked.description is not None
    assert asked.description.endswith("Recovery stopped. What to do: holdfast apply backfill fleet --store s")
    assert asked.metadata["action"].value == "holdfast apply backfill fleet --store s"
    registry.record_stopped("fleet", datetime.now(UTC))
    assert [each.passed for each in ticker()[1]] == [True]
    assert ticker()[1] == []


def test_a_registry_that_is_an_older_copy_is_told_and_nothing_is_recovered(
    registry: Registry, ticker: Ticker, settings: Settings
) -> None:
    write_mark(settings.paths, "fleet", Mark(3, "v2", ("0",), "deployed"))
    requests, (told,) = ticker()
    assert (requests, told.passed, registry.open_incidents()) == ([], False, ())
    assert told.description is not None
    assert told.description.endswith("What to do: holdfast registry adopt fleet")
    assert ticker() == ([], [])


def test_a_registry_that_is_locked_is_told_and_the_next_tick_goes_on(
    registry: Registry, ticker: Ticker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.infra.database.locks.BUSY_TIMEOUT_S", 0.2)
    # The registry (Holdfast's database) already has its schema. So skip the migration, which this test does not cover.
    monkeypatch.setattr(Registry, "migrate", lambda self: "")
    with closing(sqlite3.connect(settings.paths.registry, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert ticker() == ([], [])
        assert "doesn't answer: OperationalError: database is locked" in ticker.said
        holder.execute("ROLLBACK")
    requests, told = ticker()
    assert (len(requests), len(told)) == (1, 1)


def test_a_registry_that_is_away_is_told_and_nothing_is_forgotten(
    registry: Registry, ticker: Ticker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticker()
    cursor = ticker.cursor
    with monkeypatch.context() as away:
        away.setenv("HOLDFAST_REGISTRY_URL", f"sqlite:///{settings.home}")
        assert ticker() == ([], [])
        assert "The registry cannot be read: " in ticker.said
    assert ticker.cursor == cursor
    requests, told = ticker()
    assert (len(requests), told) == (1, [])


def test_two_daemons_see_one_incident_and_one_of_them_acts(
    registry: Registry, ticker: Ticker, definitions: dg.Definitions, begin: Any
) -> None:
    with dg.DagsterInstance.ephemeral() as second:
        other = Ticker(definitions, second)
        ((mine,), _), ((yours,), _) = ticker(), other()
        assert mine.tags == yours.tags
        (incident,) = registry.open_incidents()
        run = begin(mine)
        assert registry.claim_incident(incident.id, run.run_id, datetime.now(UTC))
        assert not registry.claim_incident(incident.id, "the run of the other", datetime.now(UTC))
        assert other()[0] == []
        assert len(registry.incidents()) == 1


def test_no_run_is_asked_for_while_the_broker_is_away(registry: Registry, ticker: Ticker) -> None:
    incident, _ = registry.open_incident("fleet", "broker-away", {"0": "It has no process."}, datetime.now(UTC))
    registry.decide_incident(incident.id, "broker-away", "wait", "")
    requests, (told,) = ticker()
    assert requests == []
    assert f"Incident {incident.id} waits: " in ticker.said
    assert told.description is not None
    assert told.description.endswith("It resumes without an action as soon as a broker answers.")
    assert ticker()[0] == []


def test_a_run_by_hand_needs_the_name_only(
    registry: Registry, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    job = definitions.resolve_job_def("recover_processor")
    config = {"ops": {"recover_one": {"config": {"processor": "fleet"}}}}
    result = job.execute_in_process(instance=instance, run_config=config)
    (incident,) = registry.incidents()
    assert (incident.kind, incident.remedy, incident.is_open) == ("broker-away", "wait", True)
    assert [note.step for note in incident.timeline] == ["by hand", "wait"]
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["processor"] == "fleet"
    assert run.tags["holdfast/incident"] == str(incident.id)


@pytest.mark.usefixtures("no_pause")
def test_another_try_that_a_person_asked_for_has_all_its_runs(registry: Registry, tick: Tick, begin, instance) -> None:
    for _ in range(RUNS_PER_INCIDENT):
        (request,) = tick()
        instance.report_run_failed(begin(request))
    assert tick() == []
    (incident,) = registry.incidents()
    assert incident.outcome == "failed"
    assert cli.main(["incidents", "acknowledge", str(incident.id), "--note", "on it", "--who", "ada"]) == 0
    assert cli.main(["incidents", "retry", str(incident.id), "--who", "ada"]) == 0
    assert cli.main(["incidents", "retry", str(incident.id)]) == 64
    (again,) = tick()
    seen = registry.incident(incident.id)
    assert seen is not None
    assert again.run_key == f"incident-{incident.id}-{seen.retried_at:%Y%m%dT%H%M%S.%f}-1"
    assert (seen.acknowledged_by, seen.acknowledgement, seen.attempts) == ("ada", "on it", 0)
    assert [note.step for note in seen.timeline] == ["acknowledged", "retry"]


def test_the_command_line_shows_incidents(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["incidents", "list"]) == 0
    assert "No incidents." in capsys.readouterr().out
    incident, _ = registry.open_incident("fleet", "dead", {"0": "It has no process."}, datetime.now(UTC))
    registry.note_incident(incident.id, "diagnose", "Slot 0: gone | away", datetime.now(UTC), seconds=0.5)
    assert cli.main(["incidents", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["id"], row["kind"], row["state"]) == (incident.id, "dead", "open")
    assert cli.main(["incidents", "show", str(incident.id)]) == 0
    shown = capsys.readouterr().out
    assert "its process is gone" in shown
    assert "gone | away" in shown
    assert cli.main(["incidents", "show", str(incident.id), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["timeline"][0]["step"] == "diagnose"
    assert cli.main(["incidents", "show", "99"]) == 64


@pytest.mark.parametrize("desired", variants(["deploying", "deployed"]))
def test_an_apply_that_was_broken_off_is_told_and_one_under_way_is_not(
    registry: Registry, ticker: Ticker, desired: Any
) -> None:
    registry.record_deployment("fleet", "v1", ["0"], datetime.now(UTC), desired=desired)
    stages = (StopProcessor("stop", for_good=False),)
    plan = Plan(request=Clear("fleet"), verdict=Ready("."), stages=stages, after_kill="go on")
    about = {"processor": "fleet", "verb": "clear", "plan_hash": plan.hash, "plan": encode(plan), "who": "ada"}
    begun, _ = registry.journal.begin_apply(**about, holder="another machine", now=datetime.now(UTC))
    assert ticker() == ([], [])
    assert registry.journal.let_go_of_apply(begun.id, begun.token, "the disk is full")
    requests, (told,) = ticker()
    assert (requests, told.passed) == ([], False)
    assert told.description is not None
    assert told.description.startswith(f"An apply was interrupted: clear, apply {begun.id}, started by ada")
    assert "It stopped because: the disk is full" in told.description
    assert told.description.endswith(f"What to do: holdfast apply resume {begun.id}")
    assert ticker() == ([], [])


def test_an_apply_that_begins_while_an_incident_is_open_keeps_recovery_out(
    registry: Registry, ticker: Ticker, begin: Any, definitions: dg.Definitions
) -> None:
    requests, _ = ticker()
    assert len(requests) == 1
    stages = (StopProcessor("stop", for_good=False),)
    plan = Plan(request=Clear("fleet"), verdict=Ready("."), stages=stages, after_kill="go on")
    about = {"processor": "fleet", "verb": "clear", "plan_hash": plan.hash, "plan": encode(plan), "who": "ada"}
    begun, mine = registry.journal.begin_apply(**about, holder="another machine", now=datetime.now(UTC))
    assert mine
    assert ticker()[0] == []
    (incident,) = registry.open_incidents()
    assert f"Incident {incident.id} waits: an apply of fleet is open." in ticker.said
    # A recovery run that was queued before the apply (execution of a plan) began must not claim the incident now.
    assert registry.claim_incident(incident.id, begin(requests[0]).run_id, datetime.now(UTC)) is None
    token = registry.journal.apply_of(begun.id)
    assert token is not None
    assert registry.journal.end_apply(begun.id, token.token, "done", datetime.now(UTC))


def test_a_rollout_that_was_killed_is_looked_at_and_recovered(registry: Registry, ticker: Ticker) -> None:
    """A rollout was killed.

    Holdfast's registry keeps the status "deploying", because the process that would change it is dead.
    """
    plan = Plan(request=Deploy("fleet"), verdict=Ready("."), stages=(RunProcessor("run", "v1", slots=("0",)),))
    about = {"processor": "fleet", "verb": "deploy", "plan_hash": plan.hash, "plan": encode(plan), "who": "ada"}
    mine = own_identity()
    gone = replace(mine, mark=f"{mine.mark}0")
    registry.journal.begin_apply(**about, holder=f"here/{gone}/random", now=datetime.now(UTC))
    registry.record_deployment("fleet", "v1", ["0"], datetime.now(UTC), desired="deploying")
    requests, (told,) = ticker()
    assert (len(requests), told.passed) == (1, False)
    assert told.description is not None
    assert told.description.startswith("An apply was interrupted: deploy")
    assert "Slot 0: It has no process. Recovery does not wait for it." in told.description
