"""Status, check, webhook and command line name the same command for an interrupted apply (execution of a plan).

After the apply has ended, they also agree on the action for the remaining fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.database.registry import Registry
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.recovery_location import build_recovery
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, encode
from holdfast.processors.lifecycle.plans.requests import Deploy, Reposition, Request, Stop
from holdfast.processors.lifecycle.plans.stages import RunProcessor, SetPositions, StopProcessor
from holdfast.processors.lifecycle.recovery.messages import state_messages
from tests.mechanics.tiers import variants
from tests.parts.webhook import Webhook

NAME = "fleet"
STOP = Plan(request=Stop(NAME), verdict=Ready("stop it."), stages=(StopProcessor("stop", for_good=True),))
#: A deploy with an argument. Each place that names its command must repeat this argument.
DEPLOY = Plan(
    request=Deploy(NAME, dropped=("gone",)), verdict=Ready("."), stages=(RunProcessor("run", "v1", slots=("0",)),)
)
#: A verb (operator command) that continues with its recorded plan after an interruption. Other verbs get a new plan.
REPOSITION = Plan(
    request=Reposition(NAME),
    verdict=Ready("."),
    stages=(SetPositions("set", (), {}), RunProcessor("run", "v1", slots=("0",))),
    after_kill="go on",
)
#: The command that ends an interrupted apply (execution of a plan), by verb.
COMMANDS = {"deploy": "holdfast apply deploy fleet --drop gone", "reposition": "holdfast apply resume {id}"}

Tick = Callable[[str], dg.SensorResult]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    there = Webhook().start()
    yield there
    there.stop()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: Webhook) -> Settings:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_WEBHOOK__URL", webhook.url)
    monkeypatch.setattr(state_messages, "SETTLED_S", 0.0)
    return load_settings()


@pytest.fixture
def registry(settings: Settings) -> Iterator[Registry]:
    opened = open_registry(settings)
    opened.record_deployment(NAME, "v1", ["0"], datetime.now(UTC), desired="deploying")
    yield opened
    opened.close()


@pytest.fixture(params=variants([DEPLOY, REPOSITION], tested=1), ids=["deploy", "reposition"])
def broken_off(request: pytest.FixtureRequest, registry: Registry) -> ApplyRecord:
    plan: Plan = request.param
    about = {"processor": NAME, "verb": plan.verb, "plan_hash": plan.hash, "plan": encode(plan), "who": "ada"}
    begun, _ = registry.journal.begin_apply(**about, holder="gone", now=datetime.now(UTC))
    assert registry.journal.let_go_of_apply(begun.id, begun.token, "the terminal was closed")
    (record,) = registry.journal.applies(open_only=True)
    return record


@pytest.fixture
def tick(settings: Settings) -> Iterator[Tick]:
    definitions = build_recovery(settings)
    with dg.DagsterInstance.ephemeral() as instance:

        def evaluate(name: str) -> Any:
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                return definitions.resolve_sensor_def(name).evaluate_tick(context)

        yield evaluate


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace planning, because no broker runs: the only plan is a stop of the processor."""

    def plan(self: Verbs, request: Request) -> Plan:
        assert request == STOP.request
        return STOP

    monkeypatch.setattr(Verbs, "plan", plan)


class Shell:
    """Runs `holdfast` commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> str:
        self._capsys.readouterr()
        main(list(words))
        printed = self._capsys.readouterr()
        return " ".join((printed.out + printed.err).split())

    def document(self, *words: str) -> Any:
        self._capsys.readouterr()
        main([*words, "--json"])
        return json.loads(self._capsys.readouterr().out)


@pytest.mark.usefixtures("planned")
def test_each_surface_names_the_command_that_ends_an_apply(
    broken_off: ApplyRecord, tick: Tick, webhook: Webhook, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(capsys)
    status = shell.document("status")
    (reason,) = [each for each in status["reasons"] if each["subject"] == f"processor {NAME}"]
    (check,) = [each for each in tick("processor_recovery").asset_events or [] if "working" in str(each)]
    description = check.description or ""  # type: ignore[union-attr]
    for _ in range(2):  # the sensor reports a state only at the second tick that sees it
        tick("notifications")
    (message,) = [each for each in webhook.received if each["event"] == "state.needs"]
    (row,) = shell.document("apply", "list")
    command = COMMANDS[broken_off.verb].format(id=broken_off.id)
    assert {
        "status, the apply": status["applies"][0]["action"],
        "status, the processor": reason["action"],
        "the check": description.partition("What to do: ")[2],
        "the webhook": message["action"],
        "apply list": row["action"],
    } == dict.fromkeys(
        ("status, the apply", "status, the processor", "the check", "the webhook", "apply list"), command
    )
    for words in (("status",), ("apply", "list"), ("plan", "stop", NAME), ("explain", "stop", NAME)):
        said = shell(*words)
        named = re.findall(r"holdfast apply (?:deploy|resume|abandon)[a-z0-9 -]*", said)
        assert named, said
        assert all(each.startswith(command) for each in named), said
    # An interrupted deploy would be planned again, so another verb may replace it. A reposition must first be resumed
    # or abandoned.
    if broken_off.verb == "reposition":
        refused = shell.document("apply", "stop", NAME)["error"]
        abandon = f"holdfast apply abandon {broken_off.id} --reason WHY"
        assert re.findall(r"`(holdfast [^`]*)`", refused["action"]) == [command, abandon]


@pytest.mark.thorough
@pytest.mark.parametrize("broken_off", [DEPLOY], indirect=True, ids=["deploy"])
def test_the_end_of_an_abandoned_apply_names_what_the_other_surfaces_name(
    broken_off: ApplyRecord, registry: Registry, tick: Tick, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recovery has given up before the apply (execution of a plan) is abandoned. The incident names one action.

    `holdfast apply abandon` and `holdfast status` must both name this action.
    """
    incident, _ = registry.open_incident(NAME, "dead", {"0": "It has no process."}, datetime.now(UTC))
    registry.decide_incident(incident.id, "dead", "ask", "mend the disk")
    registry.close_incident(incident.id, "failed", datetime.now(UTC), reason="all attempts are used")
    shell = Shell(capsys)
    said = shell("apply", "abandon", str(broken_off.id), "--reason", "not needed")
    (reason,) = [each for each in shell.document("status")["reasons"] if each["subject"] == f"processor {NAME}"]
    assert reason["action"] == "mend the disk"
    assert "What to do: mend the disk" in said
    assert COMMANDS["deploy"] not in said, "the apply is over"
    # after the abandon, recovery may try again; check and status must both report this
    (check,) = tick("processor_recovery").asset_events or []
    (reason,) = [each for each in shell.document("status")["reasons"] if each["subject"] == f"processor {NAME}"]
    assert (check.description, reason["action"]) == (  # type: ignore[union-attr]
        reason["reason"],
        "Nothing; it passes without an action.",
    )
    with open_verbs(settings) as opened:
        assert opened.applies()[0].outcome == "abandoned"
    assert not any(each["action"] for each in shell.document("apply", "list"))
