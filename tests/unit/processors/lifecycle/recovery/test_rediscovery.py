"""A lost registry (Holdfast's database) is filled again from the supervisor's programs and the workers' answers.

Tests only the decisions.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.deploy.program_files import ProgramState, ProgramStatus, asked_for
from holdfast.processors.lifecycle.recovery.rediscovery import Found, rediscover

ONE = json.dumps(["orders.flow:application"])


def program(state: ProgramState) -> ProgramStatus:
    return ProgramStatus("fleet-0", state, None, None, datetime.now(UTC))


def found(*options: str, state: ProgramState | None = "RUNNING", **given: Any) -> Found:
    command = ("python", "-m", "holdfast.processors", "--processor", "fleet", *options)
    status = None if state is None else program(state)
    return Found(command, given.get("environment", {"HOLDFAST_PROCESSORS": ONE}), status, given.get("version"))


def test_a_worker_that_answers_tells_its_version() -> None:
    (adopted,) = rediscover([found("--slot", "0", "--release", "/r/v1-abc", version="v2")], {"fleet": "v3"})
    assert (adopted.code_version, adopted.slots, adopted.desired) == ("v2", ("0",), "deployed")
    assert (adopted.release, adopted.target, adopted.told) == (Path("/r/v1-abc"), "orders.flow:application", True)
    assert "fleet was adopted from its programs as version v2 (from its own answer), slot 0" in adopted.sentence


def test_what_no_worker_tells_is_told_by_its_release_and_then_by_its_definition() -> None:
    assert rediscover([found("--release", "/r/v1-abc")], {"fleet": "v3"})[0].code_version == "v1"
    assert rediscover([found()], {"fleet": "v3"})[0].code_version == "v3"
    assert rediscover([found()], {}) == ()


def test_all_slots_are_found() -> None:
    (adopted,) = rediscover([found("--slot", "b", version="v"), found("--slot", "a", state="STOPPED")], {})
    assert (adopted.slots, adopted.desired) == (("a", "b"), "deployed")


@pytest.mark.parametrize(
    ("state", "desired"),
    [("RUNNING", "deployed"), ("EXITED", "deployed"), ("FATAL", "deployed"), ("STOPPED", "stopped"), (None, "stopped")],
)
def test_what_died_is_meant_to_run_and_what_was_stopped_is_not(state: ProgramState | None, desired: str) -> None:
    (adopted,) = rediscover([found(state=state, version="v")], {})
    assert adopted.desired == desired
    assert ("holdfast apply deploy fleet" in adopted.action) is (desired == "stopped")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("sleep", "10"),
        ("python", "-m", "holdfast.processors"),
        ("python", "-m", "holdfast.processors", "--processor"),
        ("python", "-m", "holdfast.processors", "--processor", "fleet", "--shadow", "counts"),
    ],
)
def test_shadows_and_what_is_no_worker_are_left_out(command: tuple[str, ...]) -> None:
    assert rediscover([Found(command, {}, program("RUNNING"), "v")], {"fleet": "v"}) == ()


@pytest.mark.parametrize("targets", ["", "{", "3", "[]", '["a:b", "c:d"]'])
def test_a_target_that_is_not_told_is_not_guessed(targets: str) -> None:
    (adopted,) = rediscover([found(environment={"HOLDFAST_PROCESSORS": targets}, version="v")], {})
    assert adopted.target is None


def test_program_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps({"command": ["python"], "environment": {"A": "1"}}))
    for name, text in {"cut": '{"comm', "list": "[]", "empty": "", "bare": "{}"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert asked_for(tmp_path) == {"good": (("python",), {"A": "1"})}
    assert asked_for(tmp_path / "absent") == {}
