"""Plan ``restore``: local state is set aside and built anew, from a checkpoint and the tail or the whole changelog.

What was set aside goes only once the new state works.
"""

from __future__ import annotations

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import in_bytes
from holdfast.processors.lifecycle.plans.facts import Facts, partition_of, selected
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Restore
from holdfast.processors.lifecycle.plans.stages import (
    DeleteStateAside,
    RunProcessor,
    SetStateAside,
    Stage,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.refusals import missing_topics, not_as_deployed, unknown_partitions

#: Changelog records a second where nothing was measured yet.
ASSUMED_RECORDS_PER_S = 300_000.0


def plan(request: Restore, facts: Facts, topology: Topology) -> Plan:
    """Decide which tasks are built anew, and refuse where the changelog could not give their state back."""
    counts = {spec.name: facts.topics[spec.name].partitions for spec in topology.inputs if spec.name in facts.topics}
    tasks = tuple(
        task for task in topology.tasks(counts) if not request.partitions or partition_of(task) in request.partitions
    )
    changelogs = [spec.topic.name for spec in topology.changelogs]
    basis = {
        "topic_id": {name: facts.topics[name].topic_id for name in selected(facts.topics, changelogs)},
        "first_offsets": selected(facts.starts, changelogs),
        "deployment": facts.deployment,
        "alive": {each.slot: each.alive for each in facts.instances},
    }
    refused = (
        missing_topics(facts, topology)
        or unknown_partitions(topology, facts, request.partitions)
        or not_as_deployed(facts, topology)
        or _irretrievable(request, facts, topology)
    )
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    if facts.deployment is None:
        verdict = NothingToDo("It was never deployed: its first start restores what there is.")
        return Plan(request=request, verdict=verdict, basis=basis)
    records = _records(facts, topology, tasks)
    seconds, measured = facts.seconds_for("run_processor", records, ASSUMED_RECORDS_PER_S)
    where = (
        "the whole changelog"
        if request.source == "changelog"
        else "the newest valid checkpoint and the changelog's tail"
    )
    held = [each.size_bytes or 0 for each in facts.local if each.task in tasks]
    size = sum(held) or sum(each.store_bytes or 0 for each in facts.instances)
    return Plan(
        request=request,
        verdict=Ready(f"build the local state of {len(tasks)} task(s) anew from {where}."),
        stages=_stages(request, facts, topology, tasks),
        findings=(
            f"the changelogs have at most {records:,} records for these tasks",
            f"local state has {in_bytes(size)}; the disk has to hold it twice for a while",
        ),
        kept=("Changelogs, input offsets and checkpoints; the old local state, until the new one works.",),
        undo="While it is under way: stop the processor, and move the folders that were set aside back.",
        size_bytes=size,
        seconds=seconds + 5.0,
        estimate="at the measured rate; less with a checkpoint"
        if measured
        else "300,000 records a second assumed; less with a checkpoint",
        basis=basis,
        after_kill="go on",
    )


def _stages(request: Restore, facts: Facts, topology: Topology, tasks: tuple[str, ...]) -> tuple[Stage, ...]:
    assert facts.deployment is not None
    stages: list[Stage] = []
    if facts.running:
        stages.append(StopProcessor(f"stop {topology.processor} for the time of the exchange", for_good=False))
    name = f"aside-{facts.deployment.generation}"
    stages.append(SetStateAside(f"set the local state of {len(tasks)} task(s) aside", tasks, name))
    meant_down = facts.deployment.desired == "stopped"
    says = (
        f"start {topology.processor} paused: it restores every partition, and reads no input"
        if meant_down
        else f"start {topology.processor} and wait until every partition is restored and worked on"
    )
    stages.append(
        RunProcessor(says, topology.code_version, request.timeout_s, paused=meant_down, restore_from=request.source)
    )
    if meant_down:
        stages.append(StopProcessor(f"stop {topology.processor}, as it was found", for_good=True))
    stages.append(DeleteStateAside("delete the local state that was set aside", tasks, name))
    return tuple(stages)


def _records(facts: Facts, topology: Topology, tasks: tuple[str, ...]) -> int:
    partitions = {partition_of(task) for task in tasks}
    return sum(
        end - facts.starts.get(spec.topic.name, {}).get(number, 0)
        for spec in topology.changelogs
        for number, end in facts.ends.get(spec.topic.name, {}).items()
        if number in partitions
    )


def _irretrievable(request: Restore, facts: Facts, topology: Topology) -> Refused | None:
    """Where the changelog would not give the state back: recreated, truncated, or without the input offsets."""
    logged = {spec.store for spec in topology.changelogs}
    bare = [store.name for store in topology.stores if store.name not in logged]
    if bare:
        return Refused(
            f"Store {', '.join(bare)} has no changelog: what is set aside could not be built again.",
            "Turn changelogs on and fill them first: holdfast apply backfill --from local.",
            {"store": bare[0]},
        )
    for task in facts.local:
        for store, (topic, topic_id, _) in (task.stores or {}).items():
            seen = facts.topics.get(topic)
            if seen is not None and seen.topic_id != topic_id:
                return Refused(
                    f"Changelog {topic} was recreated: local state of {task.task} belongs to another topic of that "
                    "name, and is the only copy.",
                    f"Fill the changelog from it: holdfast apply backfill {topology.processor} --store {store} "
                    "--from local.",
                    {"store": store, "topic": topic, "seen": seen.topic_id, "expected": topic_id},
                )
    for spec in topology.changelogs:
        for number, start in facts.starts.get(spec.topic.name, {}).items():
            if start > 0 and (not request.partitions or number in request.partitions):
                return Refused(
                    f"Changelog {spec.topic.name}[{number}] begins at offset {start}: older records are gone, and the "
                    "state could not be built again from it.",
                    f"Fill the changelog from local state: holdfast apply backfill {topology.processor} --store "
                    f"{spec.store} --from local.",
                    {"topic": spec.topic.name, "partition": number, "seen": start, "expected": 0},
                )
    return None
