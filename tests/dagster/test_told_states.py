"""Each state that needs a person is sent to the webhook once within its time limit. So is the end of the state.

Holdfast's registry, the sensor, Dagster's storage and the HTTP server are real. The workers are in memory. The sensor
ticks every 15 s of a virtual clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.marks import Mark, write_mark
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.sizes import Room
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.sensors import webhook as sensor_module
from holdfast.orchestration.world import open_registry
from holdfast.processors.engine.serving.status import InputPosition, ProcessorStatus
from holdfast.processors.lifecycle.plans.requests import INSTALLATION
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.lagging import LAG_S
from holdfast.processors.lifecycle.recovery.messages.state_messages import LASTING_S, PASSING_S
from tests.mechanics.tiers import variants
from tests.parts.webhook import Webhook
from tests.unit.processors.lifecycle.in_memory import ELSEWHERE, NAME, Installation

#: The time limit in seconds that docs/tasks/alerts.md promises for states that need a person.
PROMISED_S = 60.0


@dataclass
class Telling:
    """An installation whose webhook sensor ticks in virtual time, and the messages that its webhook got."""

    installation: Installation
    webhook: Webhook
    definitions: dg.Definitions
    instance: dg.DagsterInstance
    #: Fields of the worker's status that a test sets to other values.
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return self.installation.now

    def world(self, world: World, deployments: Any) -> World:
        """Replaces ``look_at_all`` of the sensor: returns the installation's workers in memory."""
        fake = self.installation.world
        source = fake.statuses(NAME, "0")
        answer = self.answer

        class Answering:
            last_heartbeat, last_failure = source.last_heartbeat, source.last_failure

            def status(self, timeout_s: float = 2.0) -> ProcessorStatus | None:
                told = source.status()
                return None if told is None else replace(told, **answer)

        answering: Any = Answering
        return replace(world, deployer=fake.deployer, statuses=lambda *place: answering(), clock=lambda: self.now)

    def tick(self) -> None:
        """Run one tick of the sensor. The webhook must accept all its messages."""
        sensor = self.definitions.resolve_sensor_def("notifications")
        with dg.build_sensor_context(
            instance=self.instance, resources=self.definitions.resources, definitions=self.definitions
        ) as context:
            assert "0 waiting" in (sensor.evaluate_tick(context).skip_message or "")

    def after(self, seconds: float) -> list[dict[str, Any]]:
        """Let this many seconds pass, with a tick every 15 s.

        Returns the messages about states that arrive meanwhile.
        """
        known = len(self.webhook.received)
        for _ in range(int(seconds // sensor_module.NOTIFY_EVERY_S)):
            self.installation.pass_time(sensor_module.NOTIFY_EVERY_S)
            self.tick()
        return [each for each in self.webhook.received[known:] if each["event"].startswith("state.")]

    def jump(self, seconds: float) -> list[dict[str, Any]]:
        """Let this many seconds pass with only one tick, at the end. Returns the messages about states."""
        self.installation.pass_time(seconds - sensor_module.NOTIFY_EVERY_S)
        return self.after(sensor_module.NOTIFY_EVERY_S)

    def told(self, event: str = "state.needs", within_s: float = PROMISED_S) -> dict[str, Any]:
        """Return the only message about a state that arrives within this time."""
        (message,) = self.after(within_s)
        assert message["event"] == event
        assert message["action"]
        return message


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    there = Webhook()
    there.start()
    yield there
    there.stop()


@pytest.fixture
def settings(tmp_path: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", webhook.url)
    monkeypatch.setattr(sensor_module, "room_of", lambda folder: Room(100, 50))
    return load_settings()


@pytest.fixture
def registry(settings: Settings) -> Iterator[Registry]:
    opened = open_registry(settings)
    yield opened
    opened.close()


@pytest.fixture
def telling(
    settings: Settings, registry: Registry, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Telling]:
    """A healthy processor. The sensor's first ticks have already run and sent no message about a state."""
    installation = Installation(registry, settings.paths, now=datetime.now(UTC))
    with dg.DagsterInstance.ephemeral() as instance:
        made = Telling(installation, webhook, build_definitions(load_settings()), instance)
        monkeypatch.setattr(sensor_module, "look_at_all", made.world)
        monkeypatch.setattr(sensor_module, "now_utc", lambda: made.now)
        installation.pass_time(60.0)
        made.tick()
        assert made.after(30.0) == []
        yield made


def test_a_processor_that_stays_paused_is_told_again_by_the_setting_and_when_it_is_over(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WEBHOOK__REPEAT_HOURS", "3")
    telling.answer["paused"] = True
    message = telling.told()
    assert f"holdfast apply restart {NAME}" in message["action"]
    assert telling.after(PROMISED_S) == [], "once"
    assert telling.jump(2.5 * 3600) == [], "the setting says 3 hours"
    (again,) = telling.jump(3600)
    assert (again["event"], again["id"]) == ("state.needs", f"{message['id']}-again-1")
    telling.answer.clear()
    (over,) = telling.jump(60.0)
    assert (over["event"], over["id"]) == ("state.over", f"{message['id']}-over")
    assert telling.jump(4 * 3600) == []


def apply_of_deploy(telling: Telling) -> Any:
    """Begin a deploy: record an open apply (the execution of its plan).

    The deployment record then has the state `deploying`.
    """
    registry = telling.installation.registry
    facts = {"processor": NAME, "verb": "deploy", "plan_hash": "a", "plan": "{}", "who": "ann", "holder": ELSEWHERE}
    begun, _ = registry.journal.begin_apply(**facts, now=telling.now)
    registry.record_deployment(NAME, "v1", ("0",), telling.now, desired="deploying")
    return begun


def test_a_record_that_says_deploying_is_told_once_its_apply_broke_off(telling: Telling) -> None:
    begun = apply_of_deploy(telling)
    assert telling.after(PROMISED_S) == [], "it is under way"
    journal = telling.installation.registry.journal
    assert journal.let_go_of_apply(begun.id, begun.token, "the terminal was closed")
    message = telling.told()
    assert "the terminal was closed" in message["text"]
    assert "-apply-broken-off-" in message["id"]


def test_an_apply_under_way_is_told_once_it_lasts_too_long(telling: Telling) -> None:
    apply_of_deploy(telling)
    assert telling.jump(30.0) == []
    assert telling.jump(LASTING_S - 60.0) == []
    message = telling.told()
    assert f"holdfast logs {NAME}" in message["action"]
    assert "deploy, started by ann" in message["text"]


@pytest.mark.parametrize("verb", variants(["clean", "put-back", "deploy"]))
def test_an_interrupted_apply_without_a_deployment_is_told_and_its_end(telling: Telling, verb: str) -> None:
    """Applies of the whole installation, and the first deploy of a processor, belong to no deployment.

    They are reported, too.
    """
    name = "first-deploy" if verb == "deploy" else INSTALLATION
    journal = telling.installation.registry.journal
    facts = {"processor": name, "verb": verb, "plan_hash": "a", "plan": "{}", "who": "ann", "holder": ELSEWHERE}
    begun, _ = journal.begin_apply(**facts, now=telling.now)
    assert telling.after(PROMISED_S) == [], "it is under way"
    assert journal.let_go_of_apply(begun.id, begun.token, "the terminal was closed")
    message = telling.told()
    assert message["title"] == f"{name} needs you: an apply was interrupted"
    assert f"holdfast apply abandon {begun.id} " in message["action"]
    assert "Recovery does not wait for it." in message["text"]
    (begun,) = journal.applies(open_only=True)
    assert journal.end_apply(begun.id, begun.token, "abandoned", telling.now, reason="WHY")
    assert telling.told("state.over")["id"] == f"{message['id']}-over"


def test_an_apply_of_the_installation_that_does_not_end_is_told(telling: Telling) -> None:
    facts = {"processor": INSTALLATION, "verb": "clean", "plan_hash": "a", "plan": "{}", "who": "ann"}
    telling.installation.registry.journal.begin_apply(**facts, holder=ELSEWHERE, now=telling.now)
    assert telling.jump(30.0) == []
    assert telling.jump(LASTING_S - 60.0) == []
    message = telling.told()
    assert "clean, started by ann) changes this installation" in message["text"]
    assert "`holdfast apply list`" in message["action"]


def test_a_disk_without_room_is_told_once_with_the_processor_that_waits_for_it(
    telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, worker = telling.installation.registry, telling.installation.worker()
    worker.fail("disk-full", "No space left on device.", path="/state")
    worker.started_at = telling.now
    incident, _ = registry.open_incident(NAME, "disk-full", {"0": "It stopped."}, telling.now)
    assert registry.decide_incident(incident.id, "disk-full", "wait", "")
    message = telling.told()
    assert (message["processor"], "-no-room-" in message["id"]) == (NAME, True)
    assert "holdfast status --sizes" in message["action"]
    monkeypatch.setattr(sensor_module, "room_of", lambda folder: Room(100, 1))
    found = telling.after(PROMISED_S)
    assert [each["event"] for each in found] == ["state.over", "state.needs"], (
        "the disk of the home has its own message"
    )
    assert found[1]["title"] == "the disk is nearly full"
    monkeypatch.setattr(sensor_module, "room_of", lambda folder: Room(100, 50))
    telling.installation.start_program(telling.installation.paths.program(NAME, "0"))
    assert [each["event"] for each in telling.after(PROMISED_S)] == ["state.over"]


def test_a_registry_that_is_an_older_copy_is_told(telling: Telling, settings: Settings) -> None:
    write_mark(settings.paths, NAME, Mark(9, "v2", ("0",), "deployed"))
    message = telling.told()
    assert message["action"] == f"holdfast registry adopt {NAME}"
    assert "-registry-behind-" in message["id"]


def test_a_broker_that_is_away_is_told_once_it_lasts(telling: Telling) -> None:
    telling.answer["phase"] = "waiting"
    assert telling.after(PROMISED_S) == [], "brokers restart"
    message = telling.told(within_s=PASSING_S)
    assert (message["processor"], message["title"]) == (None, "no broker answers, so no processor works")
    assert "holdfast doctor" in message["action"]
    telling.answer.clear()
    telling.told("state.over")


def test_a_lag_that_does_not_shrink_is_told(telling: Telling) -> None:
    source = telling.installation.world.statuses(NAME, "0").status()
    assert source is not None
    at = InputPosition(committed=0, position=0, end=500_000, lag=500_000)
    telling.answer["tasks"] = tuple(replace(each, inputs={"placed": at}) for each in source.tasks)
    assert telling.jump(30.0) == []
    message = telling.told(within_s=LAG_S + PROMISED_S)
    assert "500,000 records wait" in message["text"]
    assert "-lagging-" in message["id"]
    assert "more partitions" in message["action"]


def test_a_supervisor_that_hangs_is_told(telling: Telling) -> None:
    telling.installation.hangs = True
    assert "holdfast down" in telling.told()["action"]
    telling.installation.hangs = False
    telling.told("state.over")
