"""An apply (execution of a plan) that rebuilds or fills a store can be abandoned while no worker starts.

The stages run in the production code. Supervisor, workers and topics are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Application
from holdfast.infra.database.records import ApplyRecord
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.application.registration import ProcessorUnknown
from holdfast.processors.engine.serving.worker_client import ProcessorSilent
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.deployment import DeploymentFailed
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors
from holdfast.processors.lifecycle.plans.apply import Applier, ApplyInProgress, Done, Holder
from holdfast.processors.lifecycle.plans.execution import Execution
from holdfast.processors.lifecycle.plans.facts.files import FileFacts, FileStore
from holdfast.processors.lifecycle.plans.plan import Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Backfill, Deploy, Restore
from holdfast.processors.lifecycle.plans.stages import (
    AdoptStore,
    AdoptTable,
    LoadFile,
    PauseProcessor,
    ResumeProcessor,
    RunProcessor,
    WaitForShadow,
)
from holdfast.processors.lifecycle.rebuild.beside import ProcessorPaused, Rebuilding
from holdfast.processors.lifecycle.rebuild.from_tables import TableStages
from holdfast.processors.lifecycle.rebuild.shadow import Machine
from holdfast.processors.lifecycle.recovery.diagnosis import Dead
from holdfast.processors.lifecycle.recovery.working_check import judge_interrupted
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.in_memory import NAME, Installation, open_installation
from tests.unit.processors.lifecycle.worlds import count, orders_topology, world_of

TOPOLOGY = orders_topology()
APPLICATION = Application(consumer_group=NAME)
APPLICATION.dataframe(APPLICATION.topic("placed")).apply(count, stateful=True, store="totals")
FROM_TOPIC = decide(Backfill(NAME, "totals", "topic"), world_of(TOPOLOGY), TOPOLOGY)
FROM_FILE = decide(
    Restore(NAME, file="/exports/a.jsonl"),
    world_of(TOPOLOGY, file=FileFacts("/exports/a.jsonl", "abcd", {"totals": FileStore(2, 3, 60, (0, 1), ("a", "b"))})),
    TOPOLOGY,
)
#: The plan of a deploy that repairs the processor: the workers of this version start.
REPAIRED = Plan(request=Deploy(NAME), verdict=Ready("."), stages=(RunProcessor("run", "v2"),))


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path, slots=2)
    yield made
    made.registry.close()


@dataclass
class InMemoryTopics:
    """The topics of a cluster. Groups are not simulated, because the apply has committed nothing."""

    there: set[str] = field(default_factory=set)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.there))

    def describe(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: TopicFacts(name, f"id-of-{name}", 1, 1, {}) for name in names if name in self.there}

    def delete(self, name: str) -> None:
        self.there.discard(name)

    def delete_group(self, group: str) -> None:
        """Delete nothing, because no group exists."""


@dataclass
class Client:
    """The client of one worker. The request ``resume`` is noted in ``done``."""

    installed: Installation
    slot: str
    #: Whether the worker ends after it has answered with its status.
    dies: bool

    def status(self) -> Any:
        return self.installed.answer(self.slot).status()

    def resume(self) -> None:
        if self.dies:
            self.installed.worker(self.slot).kill()
            raise ProcessorSilent(f"Slot {self.slot} does not answer.", action="Read its log.")
        self.installed.done.append(f"resume {self.slot}")


def as_it_was(processor: str, store: str) -> Topology:
    """The topology of the shadow (the program that rebuilds a store), as it was when the apply began."""
    return APPLICATION.shadow(store).topology()


def execution_of(
    installed: Installation,
    rollout: Rollout,
    dies: str = "",
    topics: Any = None,
    shadow: Callable[[str, str], Topology] = as_it_was,
) -> Execution:
    """The production code that carries out the stages of these plans."""
    topics = topics or InMemoryTopics()
    runner = DeployedProcessors(installed.world, lambda *_: rollout, "ada", lambda name: None, topics)  # type: ignore[arg-type, return-value]

    def client(processor: str, slot: str) -> Any:
        return Client(installed, slot, slot == dies)

    rebuilding = Rebuilding(
        Machine(
            world=installed.world,
            topics=topics,
            runner=runner,
            rollout=lambda name: rollout,
            client=client,
            shadow=shadow,
            state_dir=lambda name: installed.paths.state,
        )
    )
    given: Any = SimpleNamespace(topics=topics)
    others: dict[str, Any] = dict.fromkeys(Execution.__dataclass_fields__)
    tables = TableStages(given, rebuilding)
    return Execution(**{**others, "topics": topics, "runner": runner, "shadows": rebuilding, "tables": tables})


def broken_off(plan: Plan, installed: Installation, kind: type) -> ApplyRecord:
    """The record of an unfinished apply (execution of a plan) that was killed in the stage of this kind."""

    def execute(processor: str, stage: object, tell: object) -> Done:
        if isinstance(stage, kind):
            raise KeyboardInterrupt
        return Done("done")

    with pytest.raises(KeyboardInterrupt):
        Applier(execute, installed.registry.journal, "ada", Holder("gone", lambda name: True)).apply(plan)
    (record,) = installed.registry.journal.applies(open_only=True)
    return record


def crash_loop(installed: Installation) -> None:
    """Let worker 0 end with an error, now and after each start."""
    worker = installed.worker()
    worker.fail("code", "The function raises.")
    worker.restarts = False


def applier(installed: Installation, execute: Any, told: list[str]) -> Applier:
    return Applier(execute, installed.registry.journal, "bob", Holder("bob", lambda name: True), tell=told.append)


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (FROM_TOPIC, WaitForShadow),
        (FROM_TOPIC, PauseProcessor),
        (FROM_TOPIC, AdoptStore),
        (FROM_TOPIC, ResumeProcessor),
        (FROM_FILE, LoadFile),
        (FROM_FILE, AdoptTable),
    ],
    ids=lambda each: each.verb if isinstance(each, Plan) else each.__name__,
)
def test_it_is_abandoned_while_a_worker_ends_at_each_start_and_the_repaired_version_may_be_deployed(
    installed: Installation, plan: Plan, kind: type
) -> None:
    record, told = broken_off(plan, installed, kind), list[str]()
    crash_loop(installed)
    ends = applier(installed, execution_of(installed, installed.rollout), told)
    assert ends.abandon(record, "its workers do not start")
    (said,) = (each for each in told if each.endswith("Recovery continues with them."))
    assert "slot 0 ended (exit status 1)" in said
    assert "IS PAUSED" not in said
    assert "apply resume" not in said
    assert "resume 1" in installed.done, "a worker that answers is not left paused"
    assert told[-1].startswith("remove "), "what the apply made is removed, too"
    assert applier(installed, lambda *_: Done("it runs"), told).apply(REPAIRED).id is not None


def test_a_worker_that_ends_before_it_is_resumed_is_started_again(installed: Installation) -> None:
    record, told = broken_off(FROM_TOPIC, installed, ResumeProcessor), list[str]()
    execute = execution_of(installed, installed.rollout, dies="1")
    assert applier(installed, execute, told).abandon(record, "not needed")
    assert installed.done == ["resume 0", "start 1"]
    assert any("orders reads its inputs again" in each for each in told)


def test_it_is_abandoned_although_the_files_define_another_version_and_no_release_is_recorded(
    installed: Installation,
) -> None:
    """The rebuild is abandoned, but no worker is started.

    Without a release (a copy of the deployed code), workers would start from the present files. These files define
    another version than the deployed one.
    """
    record, told = broken_off(FROM_TOPIC, installed, WaitForShadow), list[str]()
    execute = execution_of(installed, replace(installed.rollout, code_version="v2"))
    assert applier(installed, execute, told).abandon(record, "not needed")
    assert any("the present version is v2" in each for each in told)
    assert installed.done == ["resume 0", "resume 1"], "no worker of another version is started"


def gone(processor: str, store: str) -> Topology:
    """The topology of the shadow (it rebuilds a store) after the store was removed from the definition."""
    renamed = Application(consumer_group=NAME)
    renamed.dataframe(renamed.topic("placed")).apply(count, stateful=True, store="sums")
    return renamed.shadow(store).topology()


def unfinished(processor: str, store: str) -> Topology:
    """Raises an error instead of returning the shadow's topology, because the definition cannot be imported."""
    raise ProcessorUnknown("orders cannot be imported.", action="Correct the module.")


@pytest.mark.parametrize("shadow", [as_it_was, gone, unfinished])
def test_it_is_abandoned_with_its_shadow_although_the_repair_changed_the_definition(
    installed: Installation, shadow: Callable[[str, str], Topology]
) -> None:
    record, told = broken_off(FROM_TOPIC, installed, WaitForShadow), list[str]()
    crash_loop(installed)
    mine = {spec.topic.name for spec in as_it_was(NAME, "totals").changelogs}
    assert mine
    others = {"orders-totals-changelog", "orders--rebuild-seen-seen-changelog", "orders--rebuild-totals-of-a-user"}
    topics = InMemoryTopics(mine | others)
    execute = execution_of(installed, installed.rollout, topics=topics, shadow=shadow)
    assert applier(installed, execute, told).abandon(record, "its workers do not start")
    assert topics.there == others


def test_a_cut_over_that_could_not_start_a_worker_still_says_that_the_processor_is_paused(
    installed: Installation,
) -> None:
    record, told = broken_off(FROM_TOPIC, installed, AdoptStore), list[str]()
    crash_loop(installed)
    execute = execution_of(installed, installed.rollout)
    with pytest.raises(ProcessorPaused, match="IS PAUSED and reads no input") as paused:
        applier(installed, execute, told).resume(record)
    assert "`holdfast apply abandon N --reason WHY`" in paused.value.action
    (record,) = installed.registry.journal.applies(open_only=True)
    assert applier(installed, execute, told).abandon(record, "its workers do not start")


def test_the_way_on_is_the_abandonment_where_workers_do_not_start_for_the_last_stages(installed: Installation) -> None:
    record, told = broken_off(FROM_TOPIC, installed, ResumeProcessor), list[str]()
    crash_loop(installed)
    execute = execution_of(installed, installed.rollout)
    with pytest.raises(DeploymentFailed, match="slot 0 ended"):
        applier(installed, execute, told).resume(record)
    abandon = f"holdfast apply abandon {record.id} --reason WHY"
    with pytest.raises(ApplyInProgress) as refused:
        applier(installed, execute, told).apply(REPAIRED)
    assert f"`{abandon}`" in refused.value.action

    opened, _ = installed.registry.open_incident(NAME, "failed", {}, record.started_at)
    mend = "fix the function, then: holdfast apply deploy orders"
    gave_up = replace(opened, closed_at=record.started_at, outcome="failed", action=mend)
    dead = {"0": Dead(1, None)}
    assert judge_interrupted(record, dead, gave_up).action == f"{abandon}; then: {mend}"
