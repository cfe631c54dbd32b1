"""Plan ``backfill --from local``: fill changelogs from local state.

    state of the changelog                                      what the plan does
    missing, first records gone, wrong number of partitions ──► creates it again; stops a running processor first
    recreated by another program, or last records gone      ──► fills it, while no worker is alive

All changelogs that must be created again are created together, so that no worker starts with only some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, cast

from holdfast.processors.engine import provisioning
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.explanation import count_of, quoted
from holdfast.processors.lifecycle.plans.facts.facts import (
    Facts,
    FactSource,
    LocalTask,
    partition_of,
    read_facts,
    selected,
)
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill
from holdfast.processors.lifecycle.plans.stages import (
    CheckLocalState,
    CreateTopic,
    DeleteTopic,
    RunProcessor,
    SetTopicConfig,
    Stage,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.refusals import not_as_deployed, unknown_stores, without_changelog
from holdfast.processors.lifecycle.verbs.releases import provision

#: Maximum seconds until the started workers have joined the group and have written the changelog from local state.
RESEED_S = 3_600.0


def plan_from_local(request: Backfill, facts: Facts, topology: Topology) -> Plan:
    """The plan that fills changelogs from local state; refused if local state is incomplete or on another machine."""
    name = topology.changelog_of(request.store)
    changelog = "" if name is None else name.name
    logs = [spec.topic.name for spec in topology.changelogs]
    basis = {
        "topic_id": facts.topic_ids(logs),
        "first_offsets": selected(facts.starts, logs),
        "deployed": facts.deployed,
        "alive": facts.alive,
        "local_state": {f"of {each.task} in slot {each.slot}, inputs": each.inputs for each in facts.local},
    }
    anew = unusable(facts, topology)
    stores = (request.store, *(each for each in map(topology.store_of, anew) if each not in (None, request.store)))
    refused = unknown_stores(topology, [request.store]) or _unfit(stores, facts, topology, anew)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    here = {each.task: each for each in facts.local if each.task in tasks_of(facts, topology, stores)}
    parted = {task: each for task, each in here.items() if _parted(each, request.store, facts, changelog)}
    if changelog not in anew and not parted:
        verdict = NothingToDo(f"Changelog {changelog} is complete and belongs to the local state.")
        return Plan(request=request, verdict=verdict, basis=basis)
    filled = here if anew else parted
    held = sum(each.size_bytes or 0 for each in filled.values())
    whys = tuple(f"{log}: {why}" for log, why in anew.items())
    named = ", ".join(dict.fromkeys((changelog, *anew)))
    return Plan(
        request=request,
        verdict=Ready(f"fill changelog {named} from the local state of {count_of(len(filled), 'task')}."),
        stages=_stages(stores, facts, topology, anew),
        findings=whys or tuple(_finding(each, request.store, facts, changelog) for each in parted.values()),
        kept=(
            "Local state and input offsets: no input is read again or counted twice. Until this apply ends, local "
            "state is the only complete copy.",
        ),
        deleted=tuple(f"changelog {log}, which is created again" for log in anew if log in facts.topics)
        or (f"records of {changelog} that local state does not have, if there are any",),
        undo="Not needed: the changelog holds the same as local state.",
        size_bytes=held or sum(each.store_bytes or 0 for each in facts.instances),
        estimate="local state of these tasks, all stores",
        basis=basis,
        after_kill="go on",
    )


def check_local(processor: str, stores: Sequence[str], source: FactSource, topology: Topology) -> None:
    """Check, after the workers were stopped, that local state is complete; it becomes the only copy of the state.

    Raises:
        ApplyFailed: Local state lacks committed input, or the state of a task. Nothing was deleted.
        HoldfastError: The data for the plan cannot be read.
    """
    refused = _not_whole(stores, read_facts(topology, source), topology)
    if refused is not None:
        raise ApplyFailed(
            f"{refused.sentence} Nothing was deleted.",
            action=f"Start {processor} again, so that it replays the rest: `holdfast apply deploy {processor}`. Then "
            f"repeat: `holdfast apply backfill {processor} --store {stores[0]} --from local`.",
            **cast("dict[str, Any]", refused.fields),
        )


def unusable(facts: Facts, topology: Topology) -> dict[str, str]:
    """The changelogs that must be deleted and created, each with the reason.

    A changelog is unusable if it is missing, lost its first records, or has another number of partitions than its
    inputs.
    """
    found = {}
    for spec in topology.changelogs:
        name, seen = spec.topic.name, facts.topics.get(spec.topic.name)
        width = _width(spec.store, facts, topology)
        gone = sum(facts.starts.get(name, {}).values())
        if seen is None:
            found[name] = "it does not exist"
        elif gone:
            found[name] = f"its first {count_of(gone, 'record')} are gone"
        elif width and seen.partitions != width:
            found[name] = f"it has {seen.partitions} partitions, its inputs have {width}"
    return found


def created_again(facts: Facts, topology: Topology, anew: Mapping[str, str]) -> tuple[Stage, ...]:
    """Stages that delete the changelogs in ``anew`` (a result of ``unusable``) and create them again."""
    return (
        *(DeleteTopic(f"delete changelog {name}: {why}", name) for name, why in anew.items() if name in facts.topics),
        *(stage for stage in _provisioned(facts, topology, anew) if stage.name in anew),
    )


def _provisioned(facts: Facts, topology: Topology, anew: Mapping[str, str]) -> list[CreateTopic | SetTopicConfig]:
    """Stages that create missing topics and the changelogs in ``anew``, and correct the configuration of others."""
    there = {name: each for name, each in facts.topics.items() if name not in anew}
    stages = provision.stages_of(provisioning.plan(topology, there, facts.brokers))
    return [stage for stage in stages if isinstance(stage, CreateTopic | SetTopicConfig)]


def _stages(stores: tuple[str, ...], facts: Facts, topology: Topology, anew: Mapping[str, str]) -> tuple[Stage, ...]:
    name = topology.processor
    stages: list[Stage] = []
    if facts.running:
        stages.append(StopProcessor(f"stop {name} until its changelogs are created again", for_good=False))
        stages.append(CheckLocalState("check that local state holds exactly the committed input", stores))
    stages += created_again(facts, topology, anew)
    # If another program created a changelog again, its configuration is wrong. These stages correct it.
    others = [stage for stage in _provisioned(facts, topology, anew) if stage.name not in anew]
    stages += [stage for stage in others if topology.store_of(stage.name) in stores]
    says = (
        f"start {name} paused; it writes store {quoted(stores)} from local state to the changelog, in transactions "
        "that carry the input offsets"
    )
    stages.append(RunProcessor(says, topology.code_version, RESEED_S, paused=True, reseed=stores))
    if facts.desired == "stopped":
        stages.append(StopProcessor(f"stop {name}: it was stopped before", for_good=True))
    else:
        stages.append(RunProcessor(f"start {name} without pause", topology.code_version))
    return tuple(stages)


def _unfit(stores: tuple[str, ...], facts: Facts, topology: Topology, anew: Mapping[str, str]) -> Refused | None:
    name = topology.processor
    bare = without_changelog(topology, stores[0])
    refused = bare or not_as_deployed(facts, topology) or _inputs_gone(stores, facts, topology)
    if refused is not None:
        return refused
    asked = topology.changelog_of(stores[0])
    if asked is not None and asked.name in anew and _all_here(facts, tasks_of(facts, topology, stores)):
        return None
    if facts.running or facts.members:
        return Refused(
            f"Group {name} has {count_of(facts.members, 'live member')} that may use the local state.",
            f"Stop the processor first: `holdfast apply stop {name}`.",
            {"processor": name, "members": facts.members},
        )
    return _not_whole(stores, facts, topology)


def _all_here(facts: Facts, tasks: Set[str]) -> bool:
    """Whether all members of the consumer group are workers of this machine, and they run all these tasks."""
    owned = {task for each in facts.instances if not each.paused for task in each.tasks}
    return facts.working and facts.members <= len(facts.instances) and owned >= tasks


def tasks_of(facts: Facts, topology: Topology, stores: Sequence[str]) -> set[str]:
    """The names of all tasks that contain at least one of these stores."""
    return {f"{sub}-{number}" for store in stores for sub, number in topology.tasks_with([store], facts.widths)}


def _width(store: str, facts: Facts, topology: Topology) -> int:
    return max((facts.widths.get(name, 0) for name in topology.inputs_of(store)), default=0)


def _inputs_gone(stores: Sequence[str], facts: Facts, topology: Topology) -> Refused | None:
    """Refuses if the state depends on input topics that are missing, or on partitions that they lost."""
    name = topology.processor
    rebuild = (
        f"Stop the processor if it runs (`holdfast apply stop {name}`), and build all state again: `holdfast apply "
        f"clear {name} --all --rewind earliest`."
    )
    for store in stores:
        absent = [name for name in topology.inputs_of(store) if name not in facts.topics]
        if absent:
            action = f"Have it created again with its records, or create it empty: `holdfast apply provision {name}`."
            return Refused(f"Source topic {absent[0]} is missing.", f"{action} {rebuild}", {"topic": absent[0]})
        log, width = topology.changelog_of(store), _width(store, facts, topology)
        for number, end in facts.ends.get(log.name if log else "", {}).items():
            if number >= width and end > 0:
                assert log is not None
                return Refused(
                    f"{log.name} has state in partition {number}, but its inputs have {width} partitions: keys and "
                    "their state are in different partitions.",
                    rebuild,
                    {"topic": log.name, "partition": number, "seen": number + 1, "expected": width},
                )
    return None


def _not_whole(stores: Sequence[str], facts: Facts, topology: Topology) -> Refused | None:
    """Refuses unless local state of all tasks is on this machine and contains exactly the committed input."""
    name = topology.processor
    lost = (
        f"restore a snapshot (`holdfast apply restore {name} --at latest`), or build all state again: `holdfast apply "
        f"clear {name} --all --rewind earliest`."
    )
    deploy = f"start the processor, which replays it: `holdfast apply deploy {name}`"
    # Several slots can have a copy of one task. The copies are sorted, so that the dict below keeps the last copy of
    # each task, which has processed the most input.
    copies = sorted(facts.local, key=lambda each: (not each.restoring, sum((each.inputs or {}).values())))
    here = {each.task: each for each in copies}
    wanted = [(task, topology.inputs_of(store)) for store in stores for task in tasks_of(facts, topology, [store])]
    for task, inputs in sorted(wanted):
        found = here.get(task)
        if found is None:
            return Refused(
                f"Local state of task {task} is not on this machine, so the changelog cannot be filled from it.",
                f"Run this on the machine that has it. If it is lost, {lost}",
                {"task": task},
            )
        if found.restoring:
            return Refused(
                f"Local state of task {task} is incomplete: its last restore did not finish.",
                f"If its changelog is whole, {deploy}. Else {lost}",
                {"task": task},
            )
        for topic in inputs:
            held = (found.inputs or {}).get(topic)
            at = facts.committed.get(topic, {}).get(partition_of(task))
            if at != held:
                return Refused(
                    f"Local state of task {task} holds {_up_to(topic, held)}, but the group has committed "
                    f"{'nothing' if at is None else at}.",
                    f"If its changelog has the rest, {deploy}. Else {lost}",
                    {"task": task, "topic": topic, "seen": held, "expected": at},
                )
    return None


def _up_to(topic: str, held: int | None) -> str:
    return f"no offset of {topic}" if held is None else f"{topic} up to offset {held}"


def _parted(task: LocalTask, store: str, facts: Facts, changelog: str) -> bool:
    """Whether the local state of a store in this task has records that the changelog lacks.

    Also True if the changelog does not exist or was created again, or if the store never had a changelog.
    """
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
