"""Each file in a home folder belongs to one owner (a part of Holdfast). The growth of folders is reported by owner.

A check reports when the disk is nearly full.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.system.sizes import Room
from holdfast.processors.lifecycle.health.growth import OTHER, Owner, Used, judge_room, measure, owners

GIB = 1 << 30
DOCS = Path(__file__).resolve().parents[5] / "docs"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path / "home", checkpoints={"url": None})


def used(name: str, gib: float, room: Room, place: str = "/disk/x") -> Used:
    return Used(Owner(name, f"the {name}", (Path(place),), f"run `{name}`"), int(gib * GIB), room)


def test_each_place_of_a_home_counts_for_one_owner(settings: Settings) -> None:
    paths = settings.paths
    places = {
        "dagster-events": paths.dagster / "history" / "runs" / "index.db",
        "dagster-ticks": paths.dagster / "schedules" / "schedules.db",
        "run-output": paths.dagster / "storage" / "run" / "compute_logs" / "step.err",
        "logs": paths.logs / "fleet-0.log",
        "broker": paths.kafka / "data" / "topic-0" / "0.log",
        "state": paths.state / "fleet" / "0" / "fleet-0" / "CURRENT",
        "checkpoints": paths.checkpoints("fleet") / "1" / "CURRENT",
        "releases": paths.releases("fleet") / "v1" / "code.py",
        "archive": settings.archive_folder / "topic" / "t" / "now" / "manifest.json",
        "exports": paths.exports("fleet") / "keys.jsonl",
        "spark": paths.spark / "local" / "1-2" / "block",
        "rehearsals": paths.rehearsals / "fleet" / "data",
        "registry": paths.registry,
        "checkpoint-store": Path(settings.checkpoint_store) / "fleet" / "data",
        "warehouse": Path(settings.warehouse_store) / "table" / "data.parquet",
        OTHER: paths.run / "fleet-0.json",
    }
    before = {each.owner.name: each.size_bytes for each in measure(owners(settings))}
    for number, file in enumerate(places.values(), 1):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (1 << 20) * number)
    found = measure(owners(settings))
    assert [each.size_bytes for each in found] == sorted((each.size_bytes for each in found), reverse=True)
    mib = {each.owner.name: (each.size_bytes - before[each.owner.name]) >> 20 for each in found}
    assert mib == {name: number for number, name in enumerate(places, 1)}


def test_every_folder_below_a_home_is_named_by_an_owner(settings: Settings) -> None:
    """Each folder in `Paths` needs an owner (a part of Holdfast) under which its size is reported.

    Only the entries in ``small`` need none.
    """
    small = {"run", "home", "broker_address", "catalog", "project_note"}
    named = [place for owner in owners(settings) if owner.name != OTHER for place in owner.places]
    for name, member in vars(Paths).items():
        if isinstance(member, property) and name not in small and isinstance(getattr(settings.paths, name), Path):
            place = getattr(settings.paths, name)
            covered = any(place.is_relative_to(each) or each.is_relative_to(place) for each in named)
            assert covered, f"{name} has no owner"


def test_what_a_proof_writes_counts_for_the_releases_and_has_its_row(settings: Settings) -> None:
    proof = settings.paths.releases("fleet") / ".proof"
    (owner,) = [each for each in owners(settings) if any(proof.is_relative_to(place) for place in each.places[:1])][:1]
    assert owner.name == "releases"
    table = (DOCS / "operations.md").read_text().partition("## What grows")[2].partition("\n## ")[0]
    named = {name for names in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE) for name in names.split(", ")}
    assert {f"`{each.name}`" for each in owners(settings) if each.name != OTHER} == named
    (row,) = [line for line in table.splitlines() if "`.proof`" in line]
    assert "1 h after a kill" in row


def test_what_lies_on_other_machines_has_no_owner_here(tmp_path: Path) -> None:
    away = load_settings(
        home=tmp_path / "home",
        registry_url="postgresql+psycopg://user@host/registry",
        checkpoints={"url": "s3://bucket/checkpoints"},
        warehouse={"url": "s3://bucket/tables", "catalog_url": "postgresql://host:5432/catalog"},
    )
    found = {owner.name: owner.places for owner in owners(away)}
    assert "registry" not in found
    assert "checkpoint-store" not in found
    assert found["warehouse"] == (away.paths.warehouse,)


def test_the_tightest_disk_is_judged_and_its_largest_owner_and_action_are_named() -> None:
    small, large = Room(10 * GIB, GIB // 2), Room(1000 * GIB, 500 * GIB)
    found = [used("warehouse", 90, large, "/data/x"), used("logs", 3, small), used("events", 5, small)]
    verdict = judge_room(found, 10)
    assert not verdict.passed
    assert "0.5 GiB of 10.0 GiB free (5.0 %)" in verdict.sentence
    assert "events has 5.00 GiB" in verdict.sentence
    assert "Of 8.00 GiB" in verdict.sentence
    assert verdict.action.startswith("Run `events`.")
    assert judge_room(found, 5).passed


def test_the_check_fails_before_the_disk_is_full(settings: Settings) -> None:
    """With the default setting, the check fails while a tenth of the disk is still free."""
    least = settings.upkeep.room_min_percent
    for free, passed in ((0.11, True), (0.09, False), (0.0, False)):
        assert judge_room([used("state", 1, Room(100 * GIB, int(100 * GIB * free)))], least).passed is passed
