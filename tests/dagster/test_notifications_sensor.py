"""The sensor that sends notifications to the webhook, with a real registry (Holdfast's database) and HTTP server.

The Dagster instance is real, too.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.infra.database.registry import Registry
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.definitions import definitions as code_definitions
from holdfast.orchestration.project.unloaded import read_broken, write_broken, write_unloaded
from holdfast.orchestration.sensors import webhook as sensor_module
from holdfast.orchestration.world import open_registry
from holdfast.processors.application.broken_definition import broken_by
from holdfast.processors.lifecycle.recovery.messages import state_messages
from holdfast.processors.lifecycle.recovery.messages import webhook_messages as told
from tests.parts.webhook import SECRET, Webhook

Tick = Callable[[], str]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    there = Webhook()
    yield there
    there.stop()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: Webhook) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", webhook.url)
    monkeypatch.setenv("HOLDFAST_WEBHOOK__DAGSTER_URL", "http://dagster.example.com/")
    # no pause after a failed request to the webhook
    monkeypatch.setattr(told, "PAUSE_S", 0.0)
    monkeypatch.setattr(sensor_module, "TIMEOUT_S", 1.5)
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
def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Tick:
    """Run a tick of the sensor with the cursor of the last tick. Returns the tick's message."""
    sensor = definitions.resolve_sensor_def("notifications")
    cursor: str | None = None

    def evaluate() -> str:
        nonlocal cursor
        with dg.build_sensor_context(
            instance=instance, resources=definitions.resources, definitions=definitions, cursor=cursor
        ) as context:
            data = sensor.evaluate_tick(context)
        cursor = data.cursor
        assert SECRET not in f"{cursor}{data.skip_message}"
        return data.skip_message or ""

    return evaluate


def opened(registry: Registry, processor: str = "fleet") -> int:
    incident, _ = registry.open_incident(processor, "dead", {"0": "No process runs."}, datetime.now(UTC))
    return incident.id


def failed_run(instance: dg.DagsterInstance, tags: dict[str, str]) -> str:
    @dg.op
    def break_it() -> None:
        raise dg.Failure("The disk is full. What to do: make room.")

    @dg.job
    def stop_processor() -> None:
        break_it()

    return stop_processor.execute_in_process(instance=instance, tags=tags, raise_on_error=False).run_id


def test_a_webhook_that_was_away_then_silent_gets_everything_once_in_order(
    registry: Registry, tick: Tick, webhook: Webhook, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(registry)
    assert "can't be reached" in tick()
    registry.close_incident(first, "failed", datetime.now(UTC), reason="all 3 attempts are used")
    run = failed_run(instance, {"processor": "routes"})
    webhook.status = None
    webhook.start()
    assert "0 sent, 3 waiting" in tick()
    webhook.status = 503
    assert "503" in tick()
    webhook.status = 200
    assert tick() == "3 sent, 0 waiting."
    assert [each["event"] for each in webhook.received] == ["incident.opened", "incident.failed", "run.failed"]
    assert "make room" in webhook.received[2]["text"]
    assert webhook.received[2]["processor"] == "routes"
    assert webhook.received[2]["link"] == f"http://dagster.example.com/runs/{run}"
    assert len(set(webhook.identities)) == 3
    assert tick() == "0 sent, 0 waiting."
    assert len(webhook.received) == 3
    assert SECRET not in caplog.text


def test_recovery_is_asked_for_while_the_webhook_is_away(
    registry: Registry, tick: Tick, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    registry.record_deployment("fleet", "v1", ["0"], datetime.now(UTC))
    opened(registry, "routes")
    assert "can't be reached" in tick()
    with dg.build_sensor_context(
        instance=instance, resources=definitions.resources, definitions=definitions
    ) as context:
        data = definitions.resolve_sensor_def("processor_recovery").evaluate_tick(context)
    assert [request.tags["processor"] for request in data.run_requests or []] == ["fleet"]


def test_what_ended_before_the_webhook_was_there_is_no_news(
    registry: Registry, tick: Tick, webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    old = opened(registry)
    registry.close_incident(old, "resolved", datetime.now(UTC))
    failed_run(instance, {})
    still_open = opened(registry, "routes")
    webhook.start()
    tick()
    assert [each["incident"] for each in webhook.received] == [still_open]


def test_a_recovery_run_that_fails_is_told_with_its_incident_only(
    registry: Registry, tick: Tick, webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    webhook.start()
    tick()
    failed_run(instance, {"holdfast/incident": "1"})
    assert tick() == "0 sent, 0 waiting."


def test_more_failed_runs_than_one_tick_looks_at_are_all_told(
    registry: Registry, tick: Tick, webhook: Webhook, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_module, "RUNS_MAX", 2)
    webhook.start()
    tick()
    runs = [failed_run(instance, {}) for _ in range(5)]
    for _ in range(3):
        tick()
    assert [each["run"] for each in webhook.received] == runs


def test_a_tick_that_dies_in_the_middle_sends_nothing_twice_and_loses_nothing(
    registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster drops the cursor of a failed tick. Here the tick fails at the third message, after two were sent."""
    tick()
    webhook.start()
    incidents = [opened(registry, f"processor{number}") for number in range(4)]
    send, tries = sensor_module._send, []

    def dies(message, settings):
        tries.append(message)
        if len(tries) == 3:
            raise KeyboardInterrupt
        return send(message, settings)

    monkeypatch.setattr(sensor_module, "_send", dies)
    with pytest.raises(KeyboardInterrupt):
        tick()
    assert len(webhook.received) == 2
    assert tick() == "2 sent, 0 waiting."
    assert [each["incident"] for each in webhook.received] == incidents


def test_a_retry_after_that_is_no_number_ends_no_tick(registry: Registry, tick: Tick, webhook: Webhook) -> None:
    opened(registry)
    webhook.status, webhook.headers = 429, {"Retry-After": "²"}
    webhook.start()
    assert "429" in tick()
    webhook.status = 200
    assert tick() == "1 sent, 0 waiting."


def test_a_chat_gets_its_own_form(
    registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WEBHOOK__KIND", "slack")
    opened(registry)
    webhook.start()
    tick()
    (document,) = webhook.received
    assert set(document) == {"text", "blocks"}


def test_without_a_webhook_nothing_is_done(
    registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(registry)
    webhook.start()
    monkeypatch.delenv("HOLDFAST_WEBHOOK__URL")
    assert "HOLDFAST_WEBHOOK__URL" in tick()
    assert webhook.received == []


def test_the_sensor_is_switched_on_by_the_setting(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = build_definitions(settings).resolve_sensor_def("notifications")
    monkeypatch.delenv("HOLDFAST_WEBHOOK__URL")
    off = build_definitions(load_settings()).resolve_sensor_def("notifications")
    assert on.default_status is dg.DefaultSensorStatus.RUNNING
    assert off.default_status is dg.DefaultSensorStatus.STOPPED


def broken_off(registry: Registry, processor: str, now: datetime) -> Any:
    """An interrupted clear: the apply (its execution) is open, and the operator's terminal was closed."""
    facts = {"processor": processor, "verb": "clear", "plan_hash": "a", "plan": "{}", "who": "ann", "holder": "none"}
    begun, _ = registry.journal.begin_apply(**facts, now=now)
    assert registry.journal.let_go_of_apply(begun.id, begun.token, "the terminal was closed")
    return begun


def test_an_apply_that_broke_off_is_told_and_its_end(
    registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_messages, "SETTLED_S", 0.0)
    webhook.start()
    tick()
    now = datetime.now(UTC)
    registry.record_deployment("fleet", "v1", ("0",), now, desired="stopped")
    begun = broken_off(registry, "fleet", now)
    tick()
    tick()
    (message,) = [each for each in webhook.received if each["event"] == "state.needs"]
    assert message["processor"] == "fleet"
    assert "the terminal was closed" in message["text"]
    assert f"holdfast apply abandon {begun.id}" in message["action"]
    again = registry.journal.applies(1)[0]
    token = registry.journal.claim_apply(again.id, "run", seen=again.token)
    assert token is not None
    assert registry.journal.end_apply(again.id, token, "abandoned", now)
    tick()
    assert [each["event"] for each in webhook.received] == ["state.needs", "state.over"]


def test_what_dagster_can_not_load_is_told_and_its_end(
    settings: Settings, registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_messages, "SETTLED_S", 0.0)
    webhook.start()
    tick()
    write_broken(settings, [broken_by("shop.orders", ZeroDivisionError("in line 3"))])
    assert settings.paths.dagster.is_dir()
    write_unloaded(settings, {"mine": "ImportError: no module named shop"})
    tick()
    tick()
    told = {each["title"]: each for each in webhook.received}
    assert set(told) == {"definition shop.orders can't be loaded", "code location mine can't be loaded"}
    assert all(each["event"] == "state.needs" and each["action"] for each in told.values())
    assert "in line 3" in told["definition shop.orders can't be loaded"]["text"]
    write_broken(settings, [])
    write_unloaded(settings, {})
    tick()
    assert [each["event"] for each in webhook.received].count("state.over") == 2


def test_the_projects_location_tells_its_broken_definitions(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PROCESSORS", '["no_module_of_this_name"]')
    code_definitions()
    assert set(read_broken(settings)) == {"no_module_of_this_name"}


def test_a_processor_whose_state_can_not_be_read_is_told_and_hides_no_other(
    registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_messages, "SETTLED_S", 0.0)
    webhook.start()
    tick()
    now = datetime.now(UTC)
    for name in ("fleet", "routes"):
        registry.record_deployment(name, "v1", ("0",), now, desired="stopped")
    broken_off(registry, "routes", now)
    original = sensor_module.processor_now

    def processor_now(processor: str, *given: Any, **named: Any) -> Any:
        if processor == "fleet":
            raise ValueError("what nobody expected")
        return original(processor, *given, **named)

    monkeypatch.setattr(sensor_module, "processor_now", processor_now)
    tick()
    tick()
    told = {each["title"]: each["text"] for each in webhook.received}
    assert "what nobody expected" in told["the state of fleet can't be read"]
    assert any(title.startswith("routes needs you") for title in told)
    monkeypatch.setattr(sensor_module, "processor_now", original)
    tick()
    over = [each["title"] for each in webhook.received if each["event"] == "state.over"]
    assert len(over) == 1
    assert over[0].startswith("the state of fleet: over")


def test_a_registry_that_can_not_be_read_is_told_and_its_end(
    settings: Settings, registry: Registry, tick: Tick, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_messages, "SETTLED_S", 0.0)
    webhook.start()
    tick()
    now = datetime.now(UTC)
    registry.record_deployment("fleet", "v1", ("0",), now, desired="stopped")
    broken_off(registry, "fleet", now)
    registry.open_incident("fleet", "dead", {}, now)
    tick()
    tick()
    before = len(webhook.received)
    assert before == 2
    file = Path(settings.registry.removeprefix("sqlite:///"))
    registry.close()
    assert not list(file.parent.glob(f"{file.name}-*"))
    whole = file.read_bytes()
    file.write_bytes(b"no database at all " * 100)
    tick()
    tick()
    (told,) = webhook.received[before:]
    assert (told["event"], told["title"]) == ("state.needs", "the registry can't be read, so nothing is recovered")
    assert told["action"]
    file.write_bytes(whole)
    tick()
    tick()
    (over,) = webhook.received[before + 1 :]
    assert over["event"] == "state.over"
    assert over["title"].startswith("the registry: over")
