"""`holdfast status NAME` shows one processor with its assets, or one asset of the project, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.reports.status import NothingOfThatName, is_of, only
from holdfast.orchestration.view.reasons import Reason

ASSETS = ("number_of_customers", "state/fleet/aircraft_state", "operations/orphans")
REASONS = [
    Reason(subject, "grey", "It was never materialised.", "Materialise it.")
    for subject in (
        "service kafka",
        "processor fleet",
        "processor routes",
        "asset number_of_customers",
        "asset state/fleet/aircraft_state, check matches_changelog",
    )
]


@pytest.mark.parametrize(
    ("name", "subjects"),
    [
        ("fleet", ["processor fleet", "asset state/fleet/aircraft_state, check matches_changelog"]),
        ("number_of_customers", ["asset number_of_customers"]),
        ("operations/orphans", []),
    ],
)
def test_one_processor_or_asset_is_left(name: str, subjects: list[str]) -> None:
    rows = [{"processor": "fleet"}, {"processor": "routes"}]
    document: dict[str, Any] = {part: list(rows) for part in ("processors", "incidents", "adopted", "applies")}
    assert [each.subject for each in only(name, document, ASSETS, REASONS)] == subjects
    assert all(rows == ([{"processor": "fleet"}] if name == "fleet" else []) for rows in document.values())


def test_an_asset_of_that_name_must_be_there() -> None:
    with pytest.raises(NothingOfThatName, match="there are fleet, number_of_customers"):
        only("customers", {"processors": [{"processor": "fleet"}]}, ASSETS, REASONS)


def test_the_command_shows_one_processor_and_refuses_an_unknown_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    assert main(["status", "fleet", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [each["processor"] for each in document["processors"]] == ["fleet"]
    assert [each["subject"] for each in document["reasons"]] == ["processor fleet"]
    assert main(["status", "fleets"]) == EXIT_BAD_CONFIGURATION
    told = " ".join(capfd.readouterr().err.split())
    known = "carriers, delays, fleet, models, rotations, routes, weather"
    assert f"There is no processor and no asset 'fleets'; there are {known}" in told


def test_a_name_is_a_part_of_a_key_and_no_part_of_a_part() -> None:
    assert is_of("fleet", "state/fleet/aircraft_state")
    assert is_of("fleet", "fleet")
    assert not is_of("fleet", "state/fleets/aircraft_state")
