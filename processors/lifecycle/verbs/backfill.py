"""Plan ``backfill --from local``: fill a changelog from local state."""

from __future__ import annotations

from holdfast.processors.engine import required_topics
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts import Facts, LocalTask, partition_of, selected
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill
from holdfast.processors.lifecycle.plans.stages import DeleteTopic, RunProcessor, Stage, StopProcessor
from holdfast.processors.lifecycle.verbs import provision
from holdfast.processors.lifecycle.verbs.refusals import not_as_deployed, unknown_stores, without_changelog

#: Timeout of writing the changelog and joining the group, seconds.
RESEED_S = 3_600.0


def plan_from_local(request: Backfill, facts: Facts, topology: Topology) -> Plan:
    """The plan that fills a changelog; refused when local state is incomplete or not on this machine."""
    name = topology.changelog_of(request.store)
    changelog = None if name is None else name.name
    basis = {
        "topic_id": facts.topic_ids([changelog or ""]),
        "first_offsets": selected(facts.starts, [changelog or ""]),
        "deployed": facts.deployed,
        "alive": facts.alive,
        "local_state": {f"of {each.task} in slot {each.slot}, inputs": each.inputs for each in facts.local},
    }
    refused = unknown_stores(topology, [request.store]) or _unfit(request, facts, topology, changelog)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    assert changelog is not None
    cut = any(start > 0 for start in facts.starts.get(changelog, {}).values())
    parted = [each for each in facts.local if cut or _parted(each, request.store, facts, changelog)]
    if not parted:
        verdict = NothingToDo(f"Changelog {changelog} is complete and belongs to the local state.")
        return Plan(request=request, verdict=verdict, basis=basis)
    says = (
        f"start {topology.processor} paused; it writes store `{request.store}` from local state to {changelog}, in "
        "transactions that carry the input offsets"
    )
    stages: list[Stage] = [
        *_changelog_stages(facts, topology, changelog, cut=cut),
        RunProcessor(says, topology.code_version, RESEED_S, paused=True, reseed=(request.store,)),
    ]
    if facts.desired == "stopped":
        stages.append(StopProcessor(f"stop {topology.processor}: it was stopped before", for_good=True))
    else:
        stages.append(RunProcessor(f"start {topology.processor} without pause", topology.code_version))
    return Plan(
        request=request,
        verdict=Ready(f"fill changelog {changelog} from the local state of {count_of(len(parted), 'task')}."),
        stages=tuple(stages),
        findings=tuple(_finding(each, request.store, facts, changelog) for each in parted),
        kept=(
            "Local state and input offsets: no input is read again or counted twice. Until this apply ends, local "
            "state is the only complete copy.",
        ),
        deleted=(
            f"changelog {changelog}: its first records are gone, so it is created again"
            if cut
            else f"records of {changelog} that local state does not have, if there are any",
        ),
        undo="Not needed: the changelog holds the same as local state.",
        size_bytes=sum(each.size_bytes or 0 for each in parted),
        estimate="local state of these tasks, all stores",
        basis=basis,
        after_kill="go on",
    )


def _changelog_stages(facts: Facts, topology: Topology, changelog: str, *, cut: bool) -> tuple[Stage, ...]:
    """Stages that create a missing changelog, or replace one whose first records are gone."""
    there = {name: each for name, each in facts.topics.items() if not (cut and name == changelog)}
    stages = provision.stages_of(required_topics.plan(topology, there, facts.brokers))
    created = tuple(stage for stage in stages if getattr(stage, "name", None) == changelog)
    if not cut:
        return created
    return (DeleteTopic(f"delete changelog {changelog}: it lacks its first records", changelog), *created)


def _unfit(request: Backfill, facts: Facts, topology: Topology, changelog: str | None) -> Refused | None:
    if (bare := without_changelog(topology, request.store)) is not None:
        return bare
    if facts.running or facts.members:
        return Refused(
            f"Group {topology.processor} has {count_of(facts.members, 'live member')} that may use the local state.",
            f"Stop the processor first: `holdfast apply stop {topology.processor}`.",
            {"processor": topology.processor, "members": facts.members},
        )
    if (refused := not_as_deployed(facts, topology)) is not None:
        return refused
    inputs = topology.inputs_of(request.store)
    counts = {name: facts.topics[name].partitions for name in inputs if name in facts.topics}
    here = {each.task: each for each in facts.local}
    for task in sorted(set(topology.tasks(counts))):
        found = here.get(task)
        if found is None:
            return Refused(
                f"Local state of task {task} is not on this machine, so the changelog cannot be filled from it.",
                "Run this on the machine that has it, or build the store from its source topics: `holdfast apply "
                f"backfill {topology.processor} --store {request.store} --from topic`.",
                {"task": task},
            )
        if found.restoring:
            return Refused(
                f"Local state of task {task} is incomplete: its last restore did not finish.",
                f"While its changelog exists, restore it first: `holdfast apply restore {topology.processor}`.",
                {"task": task},
            )
        for topic, held in (found.inputs or {}).items():
            at = facts.committed.get(topic, {}).get(partition_of(task))
            if at != held:
                return Refused(
                    f"Local state of task {task} holds {topic} up to offset {held}, but the group has committed {at}.",
                    "Make them equal: set the group's offsets to those of the state, or build the store again from "
                    f"its source topics: `holdfast apply backfill {topology.processor} --store {request.store} --from "
                    "topic`.",
                    {"task": task, "topic": topic, "seen": held, "expected": at},
                )
    return None


def _parted(task: LocalTask, store: str, facts: Facts, changelog: str) -> bool:
    """Whether a task's changelog lacks records of its state."""
    at = (task.stores or {}).get(store)
    seen = facts.topics.get(changelog)
    if seen is None or at is None or at[1] != seen.topic_id:
        return True
    number = partition_of(task.task)
    return facts.ends.get(changelog, {}).get(number, 0) < at[2]


def _finding(task: LocalTask, store: str, facts: Facts, changelog: str) -> str:
    at = (task.stores or {}).get(store)
    seen = facts.topics.get(changelog)
    if seen is None:
        return f"{task.task}: {changelog} does not exist"
    if at is None:
        return f"{task.task}: store `{store}` never had a changelog"
    if at[1] != seen.topic_id:
        return f"{task.task}: {changelog} was recreated (topic id {at[1]} before, {seen.topic_id} now)"
    return f"{task.task}: {changelog} was truncated"
