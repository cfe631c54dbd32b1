"""The registry (Holdfast's database) was replaced by an older copy. Holdfast detects this and refuses changes.

One command corrects the registry.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.marks import Mark, read_mark, write_mark
from holdfast.infra.paths import Paths
from holdfast.processors.lifecycle.deploy.deployment import stop
from holdfast.processors.lifecycle.deploy.marking import behind, judged, keep_mark
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors
from holdfast.processors.lifecycle.plans.facts.behind import Behind, Recorded, judge
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Clear,
    Compact,
    Deploy,
    OfProcessor,
    Provision,
    Stop,
)
from holdfast.processors.lifecycle.plans.stages import AdoptDeployment
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, recover
from holdfast.processors.lifecycle.recovery.incidents import is_left_alone, notice, observe
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.working_check import judge_working
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import orders_topology, world_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OLD, NEW = Recorded(4, "v1", "deployed"), Recorded(6, "v2", "stopped")
MARK = Mark(6, "v2", ("0",), "stopped", None)
BEHIND = Behind("orders", OLD, NEW, MARK)


@pytest.mark.parametrize(
    ("here", "mark", "logged", "found"),
    [
        (OLD, None, None, None),
        (OLD, Mark(4, "v1", ("0",), "deployed"), Recorded(3, "v1"), None),
        (OLD, MARK, None, BEHIND),
        (OLD, MARK, Recorded(5, "v2"), BEHIND),
        (OLD, None, Recorded(5, "v2"), Behind("orders", OLD, Recorded(5, "v2"))),
        (OLD, MARK, Recorded(8, "v3"), Behind("orders", OLD, Recorded(8, "v3"))),
        (None, MARK, None, Behind("orders", None, NEW, MARK)),
        (None, None, Recorded(5, "v2"), None),  # a new installation finds the topics of a former one
    ],
)
def test_the_newest_generation_decides(
    here: Recorded | None, mark: Mark | None, logged: Recorded | None, found: Behind | None
) -> None:
    assert judge("orders", here, mark, logged) == found


@pytest.mark.parametrize(
    "request_", [Deploy("orders"), Stop("orders"), Clear("orders"), Provision("orders"), Compact("orders")]
)
def test_every_other_verb_is_refused_until_the_registry_is_corrected(request_: OfProcessor) -> None:
    topology = orders_topology()
    verdict = decide(request_, world_of(topology, behind=BEHIND), topology).verdict
    assert isinstance(verdict, Refused)
    assert "it has generation 4 (version v1, deployed), but beside its releases stands generation 6" in verdict.sentence
    assert verdict.action == "`holdfast registry adopt orders`"


def test_adopting_records_the_newest_deployment_and_touches_no_worker() -> None:
    topology = orders_topology()
    plan = decide(Adopt("orders"), world_of(topology, behind=BEHIND), topology)
    assert isinstance(plan.verdict, Ready)
    (stage,) = plan.stages
    assert isinstance(stage, AdoptDeployment)
    assert (stage.code_version, stage.slots, stage.desired, stage.after) == ("v2", ("0",), "stopped", 6)
    assert isinstance(decide(Adopt("orders"), world_of(topology), topology).verdict, NothingToDo)


def test_a_deployment_known_from_changelogs_alone_is_recorded_as_stopped() -> None:
    topology = orders_topology()
    old = Behind("orders", OLD, Recorded(9, "v3"))
    plan = decide(Adopt("orders"), world_of(topology, behind=old), topology)
    (stage,) = plan.stages
    assert isinstance(stage, AdoptDeployment)
    assert (stage.code_version, stage.desired, stage.after) == ("v3", "stopped", 9)
    assert any("`holdfast apply deploy orders` starts it" in each for each in plan.findings)


class NoPrograms:
    """A supervisor without programs. The test fails if a program is started."""

    def running(self) -> bool:
        return False

    def programs(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    registry.migrate()
    made = World(cast(Any, NoPrograms()), cast(Any, None), registry, Paths(tmp_path), lambda: NOW)
    yield made
    made.registry.close()


def replaced(world: World, copy: Path) -> World:
    """Replace the file of the registry (Holdfast's database) by an older copy, and open it again."""
    world.registry.close()
    shutil.copy(copy, world.paths.home / "registry.db")
    return world


def deployed(world: World, version: str) -> None:
    book = world.registry.releases
    book.record("orders", f"{version}-aa", code_version=version, target="m:a", folder=None, shape={"v": 1}, now=NOW)
    world.registry.record_deployment("orders", version, ["0"], NOW)
    book.works("orders", f"{version}-aa", NOW)
    keep_mark(world.registry, world.paths, "orders")


def copied(world: World) -> Path:
    world.registry.close()  # closing writes all changes to the file
    copy = world.paths.home / "copy.db"
    shutil.copy(world.paths.home / "registry.db", copy)
    return copy


def test_a_stopped_processor_is_not_started_from_an_older_copy(world: World) -> None:
    deployed(world, "v1")
    copy = copied(world)
    stop("orders", world)
    assert behind("orders", world) is None
    older = replaced(world, copy)
    found = observe("orders", older, Limits())
    answer = judge_working({slot: each.diagnosis for slot, each in found.items()}, None, NOW)
    assert answer is not None
    assert not answer.passed
    assert answer.text.startswith("The registry was replaced by an older copy. The registry is older than orders")
    assert answer.action == "holdfast registry adopt orders"
    assert is_left_alone("orders", older)
    seen = notice("orders", older, Limits())
    assert (seen.incident, seen.opened, older.registry.open_incidents()) == (None, False, ())


def test_recovery_that_is_asked_for_names_the_command_and_starts_nothing(world: World) -> None:
    deployed(world, "v1")
    incident, _ = world.registry.open_incident("orders", "dead", {}, NOW)
    rollout: Any = type("Rollout", (), {"processor": "orders", "slots": ("0",), "code_version": "v1"})
    policy = RecoveryPolicy(behind=Behind("orders", OLD, Recorded(9, "v3")))
    result = recover(incident.id, rollout, world, run_id="run", policy=policy)
    assert result.outcome == "failed"
    closed = world.registry.incident(incident.id)
    assert closed is not None
    assert (closed.kind, closed.remedy, closed.attempts) == ("registry-behind", "ask", 0)
    assert closed.action == "holdfast registry adopt orders"


def test_what_is_adopted_is_what_the_newest_registry_had(world: World) -> None:
    deployed(world, "v1")
    copy = copied(world)
    deployed(world, "v2")
    was = world.registry.deployment("orders")
    older = replaced(world, copy)
    old = behind("orders", older)
    assert old is not None
    topology = orders_topology()
    (stage,) = decide(Adopt("orders"), world_of(topology, behind=old), topology).stages
    assert isinstance(stage, AdoptDeployment)
    later = replace(older, clock=lambda: NOW + timedelta(hours=1))
    runner = DeployedProcessors(later, cast(Any, None), "me", cast(Any, None), cast(Any, None))
    for _ in range(2):  # the second turn repeats the stage, as a resumed apply does
        runner.adopt("orders", stage)
    now = older.registry.deployment("orders")
    assert now is not None
    assert was is not None
    assert (now.code_version, now.slots, now.desired) == (was.code_version, was.slots, was.desired)
    assert now.generation == was.generation + 1
    working = older.registry.releases.working("orders")
    assert working is not None
    assert (working.release_id, working.shape) == ("v2-aa", {"v": 1})
    assert behind("orders", older) is None


def test_a_deployment_that_is_recorded_while_a_tick_looks_is_no_older_copy(world: World) -> None:
    deployed(world, "v1")
    known = world.registry.deployment("orders")
    deployed(world, "v2")
    assert judged("orders", known, world) is None


def test_a_processor_that_the_older_copy_does_not_know_is_adopted(world: World) -> None:
    copy = copied(world)
    deployed(world, "v1")
    older = replaced(world, copy)
    old = behind("orders", older)
    assert old is not None
    assert old.here is None
    assert "it has no deployment of it" in old.sentence


def test_a_mark_never_goes_back(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert read_mark(paths, "orders") is None
    write_mark(paths, "orders", MARK)
    write_mark(paths, "orders", Mark(5, "v1", ("0",), "deployed"))
    assert read_mark(paths, "orders") == MARK
    paths.deployment_mark("orders").write_text("{")
    assert read_mark(paths, "orders") is None


def test_a_new_installation_counts_on_where_its_changelogs_stand(world: World) -> None:
    first = world.registry.record_deployment("orders", "v1", ["0"], NOW, after=7)
    assert first.generation == 8
    assert world.registry.record_deployment("orders", "v1", ["0"], NOW, after=7).generation == 9
    assert world.registry.record_deployment("orders", "v1", ["0"], NOW, after=20).generation == 21
