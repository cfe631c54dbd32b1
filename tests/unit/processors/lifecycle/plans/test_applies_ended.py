"""Each verb's apply (a running plan) is killed before and after each stage.

The command that the error names then ends the apply and completes its work.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.deploy.marks import Mark
from holdfast.processors.lifecycle.plans.apply import Applier, ApplyInProgress, Done, Holder
from holdfast.processors.lifecycle.plans.facts.behind import Behind, Recorded
from holdfast.processors.lifecycle.plans.facts.facts import Facts, InstanceFacts
from holdfast.processors.lifecycle.plans.facts.orphans import (
    Archived,
    Deletion,
    Look,
    Manifest,
    Orphan,
    OrphanFacts,
    Subject,
)
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Clean,
    OfProcessor,
    Provision,
    PutBack,
    Reposition,
    Scale,
    Stop,
)
from holdfast.processors.lifecycle.plans.stages import (
    AdoptDeployment,
    ArchiveOrphan,
    CreateTopic,
    DeleteOrphan,
    PutTopicBack,
    RunProcessor,
    SetPositions,
    SetTopicConfig,
    StopProcessor,
)
from holdfast.processors.lifecycle.plans.way_on import way_on
from holdfast.processors.lifecycle.verbs import clean, put_back
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.in_memory import NAME, Installation, open_installation
from tests.unit.processors.lifecycle.plans.test_way_on import Killed, typed
from tests.unit.processors.lifecycle.worlds import PARTITIONS, orders_topology, world_of

TOPOLOGY = orders_topology()
NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
GRACE = timedelta(days=7)
CHANGELOG = "orders-seen-changelog"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path)
    yield made
    made.registry.close()


class OfProcessorWorld:
    """A simulated processor.

    It keeps in memory the facts that a planner would read from Kafka, supervisor and database. Each stage that is
    executed changes these facts.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def plan(self, request: Any) -> Plan:
        return decide(request, self.facts, TOPOLOGY)

    def execute(self, stage: Any) -> None:
        change = msgspec.structs.replace
        match stage:
            case CreateTopic(name=name) | SetTopicConfig(name=name):
                right = world_of(TOPOLOGY).topics[name]
                self.facts = change(self.facts, topics={**self.facts.topics, name: right})
            case AdoptDeployment():
                self.facts = change(self.facts, behind=None)
            case SetPositions(positions=positions):
                self.facts = change(self.facts, committed=positions)
            case StopProcessor():
                self._run((), "stopped" if stage.for_good else "deploying")
            case RunProcessor():
                self._run(stage.slots or ("0",), "deployed")
            case _:
                raise AssertionError(f"{stage.says} is not carried out here")

    def _run(self, slots: tuple[str, ...], desired: Any) -> None:
        deployment = self.facts.deployment
        assert deployment is not None
        now = msgspec.structs.replace(deployment, desired=desired, slots=slots or deployment.slots)
        up = tuple(InstanceFacts(slot, bool(slots), "running", TOPOLOGY.code_version) for slot in now.slots)
        self.facts = msgspec.structs.replace(self.facts, deployment=now, instances=up, members=len(slots))


class OfInstallationWorld:
    """An installation in memory: topics without an owner, and their archived copies."""

    def __init__(self, subjects: tuple[Subject, ...] = ()) -> None:
        self.subjects = subjects
        self.exists = False

    def plan(self, request: Any) -> Plan:
        if isinstance(request, Clean):
            return clean.plan(request, OrphanFacts(NOW, GRACE, self.subjects))
        copy = copied("gone-changelog")
        copy.manifest.about.update(partitions=1, records={"0": 3})
        return put_back.plan(request, copy, exists=self.exists)

    def execute(self, stage: Any) -> None:
        match stage:
            case ArchiveOrphan(name=name):
                self.subjects = tuple(
                    Subject(each.orphan, each.look, copied(name, at=NOW)) if each.orphan.name == name else each
                    for each in self.subjects
                )
            case DeleteOrphan(name=name):
                self.subjects = tuple(each for each in self.subjects if each.orphan.name != name)
            case PutTopicBack():
                self.exists = True
            case _:
                raise AssertionError(f"{stage.says} is not carried out here")


def copied(name: str, *, at: datetime = NOW - 2 * GRACE, deletion: Deletion | None = None) -> Archived:
    about: dict[str, Any] = {"kind": "topic", "name": name, "processor": "gone", "why": "-", "who": "me"}
    manifest = Manifest(**about, archived_at=at, facts={"topic_id": name}, about={}, files={})
    return Archived(Path(f"/archive/topic/{name}/1"), manifest, deletion)


def orphan(name: str, archived: Archived | None = None) -> Subject:
    return Subject(Orphan("topic", name, "gone", "-"), Look({"topic_id": name}), archived)


def without_topics() -> OfProcessorWorld:
    """A processor whose two changelogs do not exist, and whose worker was never started."""
    facts = world_of(TOPOLOGY, deployment=None, instances=(), members=0, committed={})
    kept = {spec.name for spec in TOPOLOGY.inputs}
    return OfProcessorWorld(msgspec.structs.replace(facts, topics={k: v for k, v in facts.topics.items() if k in kept}))


def outdated() -> OfProcessorWorld:
    old = Behind(NAME, Recorded(4, "v1", "deployed"), Recorded(6, "v2", "deployed"), Mark(6, "v2", ("0",), "deployed"))
    return OfProcessorWorld(world_of(TOPOLOGY, behind=old))


def rewound() -> OfProcessorWorld:
    """A processor whose group's offsets were reset to 0. Its worker has stopped because of that."""
    held = {store.name: {number: {"placed": 100} for number in range(PARTITIONS)} for store in TOPOLOGY.stores}
    committed = {"placed": dict.fromkeys(range(PARTITIONS), 0)}
    down = (InstanceFacts("0", False),)
    return OfProcessorWorld(world_of(TOPOLOGY, instances=down, members=0, held=held, committed=committed))


def with_orphans() -> OfInstallationWorld:
    """An installation with three topics without an owner. Two have a copy that is old enough to delete the topic."""
    return OfInstallationWorld((orphan("a", copied("a")), orphan("b", copied("b")), orphan("c")))


CASES: list[Any] = [
    pytest.param(Provision(NAME), without_topics, id="provision"),
    pytest.param(Adopt(NAME), outdated, id="adopt"),
    pytest.param(Reposition(NAME), rewound, id="reposition"),
    pytest.param(Clean(("topic/a", "b", "topic")), with_orphans, id="clean"),
    pytest.param(PutBack("gone-changelog"), OfInstallationWorld, id="put-back"),
    pytest.param(Scale(NAME, 2, 0.0, 45.0), lambda: OfProcessorWorld(world_of(TOPOLOGY)), id="scale"),
    pytest.param(Stop(NAME), lambda: OfProcessorWorld(world_of(TOPOLOGY)), id="stop"),
]


def applier(world: Any, installed: Installation, dies: Callable[[], bool] = lambda: False) -> Applier:
    """Return an applier that executes stages on ``world``.

    It is killed if ``dies`` returns True, which is called before and after each stage.
    """

    def execute(processor: str, stage: Any, tell: object) -> Done:
        for act in (lambda: None, lambda: world.execute(stage)):
            act()
            if dies():
                raise Killed
        return Done("done")

    return Applier(execute, installed.registry.journal, "ada", Holder("an operator", lambda name: True))


def broken_off_at(moment: int, request: Any, world: Any, installed: Installation) -> ApplyRecord | None:
    """Execute a plan, and kill the execution at this moment: 0 is before the first stage, 1 after it, and so on.

    Returns the record of the unfinished execution, or None if the plan was complete before this moment.
    """
    moments = iter(range(1_000))
    with suppress(Killed):
        applier(world, installed, lambda: next(moments) == moment).apply(world.plan(request))
        return None
    (record,) = installed.registry.journal.applies(open_only=True)
    return record


def run(command: str, world: Any, installed: Installation) -> None:
    """Execute a `holdfast apply` command on ``world``, as the command line would."""
    words = shlex.split(command)
    bob = applier(world, installed)
    if words[2] == "resume":
        (record,) = installed.registry.journal.applies(open_only=True)
        assert words[3:] == [str(record.id)]
        bob.resume(record)
        return
    request = typed(command)
    bob.apply(world.plan(request))


@pytest.mark.parametrize(("request_", "made"), CASES)
def test_the_command_that_is_named_ends_the_apply_and_the_work(
    request_: Any, made: Callable[[], Any], installed: Installation
) -> None:
    whole = made()
    stages = whole.plan(request_).stages
    assert stages, "there is something to break off"
    for moment in range(2 * len(stages)):
        world = made()
        record = broken_off_at(moment, request_, world, installed)
        assert record is not None
        refused = Holder("another")  # the process of a second operator, which believes that the killed one is alive
        with pytest.raises(ApplyInProgress) as told:
            Applier(lambda *_: Done(""), installed.registry.journal, "eve", refused).resume(record)
        assert f"`{way_on(record)}`" in told.value.action
        run(way_on(record), world, installed)
        assert installed.registry.journal.applies(open_only=True) == (), moment
        assert not world.plan(request_).changes, moment
    assert broken_off_at(2 * len(stages), request_, whole, installed) is None, "all moments were struck"


def test_the_cases_have_the_verbs_that_no_model_draws() -> None:
    drawn = {type(case.values[0]) for case in CASES}
    assert {Provision, Adopt, Clean, PutBack, Reposition} <= drawn
    assert all(isinstance(case.values[0], OfProcessor | Clean | PutBack) for case in CASES)
