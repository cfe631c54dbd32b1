"""`holdfast status` shows each processor that cannot be read as one red line, and all other processors as usual."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.infra.database.errors import RegistryUnavailable
from holdfast.infra.database.registry import Registry
from holdfast.infra.settings import load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.reports import processor_rows
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.plans.requests import INSTALLATION
from tests.unit.processors.lifecycle.in_memory import ELSEWHERE

#: By processor name: the error that is raised when `holdfast status` reads this processor. The first is an error of
#: Holdfast, the others are unexpected.
FAULTS: dict[str, Exception] = {
    "registry-locked": RegistryUnavailable("The registry is locked.", action="End the process that holds it."),
    "endpoint-is-no-json": ValueError("its endpoint is no JSON"),
    "no-rights": PermissionError(13, "Permission denied", "run/fleet-0.json"),
    "nested-too-deeply": RecursionError("maximum recursion depth exceeded"),
    "a-field-is-missing": KeyError("phase"),
}
WORKS = "works"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    opened = open_registry(load_settings())
    for name in (*FAULTS, WORKS):
        opened.record_deployment(name, "v1", ("0",), datetime.now(UTC), desired="stopped")
    yield opened
    opened.close()


@pytest.fixture
def status(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    def asked(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["status", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return asked


def reasons_of(document: Any) -> dict[str, tuple[str, str]]:
    """Return the red reasons of the JSON output, as processor -> (sentence, recommended action)."""
    red = [each for each in document["reasons"] if each["colour"] == "red"]
    return {each["subject"].removeprefix("processor "): (each["reason"], each["action"]) for each in red}


def test_each_processor_that_cannot_be_read_is_one_red_line(
    registry: Registry, status: Callable[..., tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = processor_rows.processor_now

    def processor_now(name: str, *given: Any) -> Any:
        if name in FAULTS:
            raise FAULTS[name]
        return original(name, *given)

    monkeypatch.setattr(processor_rows, "processor_now", processor_now)
    code, document = status()
    assert code == 1, "something is red"
    rows = {row["processor"]: row["diagnosis"] for row in document["processors"]}
    assert rows == {**dict.fromkeys(FAULTS, "unknown"), WORKS: "not-deployed"}
    told = reasons_of(document)
    assert set(told) == set(FAULTS)
    for name, (sentence, action) in told.items():
        assert sentence.startswith("Its state can't be read. ")
        assert action == (f"Read `holdfast logs {name}`." if name != "registry-locked" else FAULTS[name].action)  # type: ignore[attr-defined]
    _, alone = status(WORKS)
    assert reasons_of(alone) == {}, "the others' faults are not its own"
    assert main(["status"]) == 1


@pytest.mark.parametrize(("column", "value"), [("slots", "not a list"), ("updated_at", "soon")])
def test_a_record_that_cannot_be_read_is_an_error_with_an_action(
    registry: Registry, status: Callable[..., tuple[int, Any]], column: str, value: str
) -> None:
    """A record of the registry (Holdfast's database) is invalid, for example after a manual edit or a disk fault."""
    with registry.database.engine.begin() as connection:
        text = sa.text(f"UPDATE deployments SET {column} = :value WHERE processor = :name")
        connection.execute(text, {"value": value, "name": WORKS})
    code, document = status()
    assert code == RegistryUnavailable.exit_code
    assert document["error"]["type"] == "RegistryUnavailable"
    assert "has a record that can't be read" in document["error"]["message"]
    assert "in its place; for a SQLite file: `holdfast registry restore COPY`." in document["error"]["action"]


@pytest.mark.parametrize("verb", ["clean", "put-back", "deploy"])
def test_an_interrupted_apply_without_a_deployment_is_one_red_line(
    registry: Registry, status: Callable[..., tuple[int, Any]], verb: str
) -> None:
    name = "first-deploy" if verb == "deploy" else INSTALLATION
    facts = {"processor": name, "verb": verb, "plan_hash": "a", "plan": "{}", "who": "ann"}
    begun, _ = registry.journal.begin_apply(**facts, holder=ELSEWHERE, now=datetime.now(UTC))
    assert reasons_of(status()[1]) == {}, "it is under way"
    assert registry.journal.let_go_of_apply(begun.id, begun.token, "the terminal was closed")
    code, document = status()
    assert code == 1
    told = reasons_of(document)
    assert set(told) == {name}
    sentence, action = told[name]
    assert sentence.startswith(f"An apply was interrupted: {verb}, apply {begun.id}, started by ann")
    assert action == f"holdfast apply abandon {begun.id} --reason WHY"
    (begun,) = registry.journal.applies(open_only=True)
    assert registry.journal.end_apply(begun.id, begun.token, "abandoned", datetime.now(UTC), reason="WHY")
    assert status()[0] == 0, "it is over"
