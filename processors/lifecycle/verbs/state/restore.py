"""Plan ``restore``: sets local state aside and rebuilds it, from a checkpoint, the changelog, or both.

To set state aside means to rename its folder. The renamed state is deleted only after the processor runs with the
restored state.
"""

from __future__ import annotations

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of, in_bytes, quoted
from holdfast.processors.lifecycle.plans.facts.facts import Facts, partition_of, selected
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

#: Changelog records restored per second, assumed until a rate was measured.
ASSUMED_RECORDS_PER_S = 300_000.0


def plan(request: Restore, facts: Facts, topology: Topology) -> Plan:
    """The plan that restores tasks; refused if the changelogs cannot restore the whole state."""
    counts = {spec.name: facts.topics[spec.name].partitions for spec in topology.inputs if spec.name in facts.topics}
    tasks = tuple(
        task for task in topology.tasks(counts) if not request.partitions or partition_of(task) in request.partitions
    )
    changelogs = [spec.topic.name for spec in topology.changelogs]
    basis = {
        "topic_id": facts.topic_ids(changelogs),
        "first_offsets": selected(facts.starts, changelogs),
        "deployment": facts.deployment,
        "alive": facts.alive,
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
        verdict = NothingToDo("The processor was never deployed: its first start restores any existing state.")
        return Plan(request=request, verdict=verdict, basis=basis)
    records = _records(facts, topology, tasks)
    seconds, rate = facts.seconds_for("run_processor", records, ASSUMED_RECORDS_PER_S, "records")
    where = (
        "the whole changelog"
        if request.source == "changelog"
        else "the newest valid checkpoint and the changelog's tail"
    )
    held = [each.size_bytes or 0 for each in facts.local if each.task in tasks]
    size = sum(held) or sum(each.store_bytes or 0 for each in facts.instances)
    return Plan(
        request=request,
        verdict=Ready(f"restore the local state of {count_of(len(tasks), 'task')} from {where}."),
        stages=_stages(request, facts, topology, tasks),
        findings=(
            f"the changelogs have at most {count_of(records, 'record')} for these tasks",
            f"local state has {in_bytes(size)}; until the apply ends, the disk must hold it twice",
        ),
        kept=("Changelogs, input offsets and checkpoints; the former local state until the restored one works.",),
        undo="While the apply runs: stop the processor, and rename the folders that were set aside back.",
        size_bytes=size,
        seconds=seconds + 5.0,
        estimate=f"{rate}; less with a checkpoint",
        basis=basis,
        after_kill="go on",
    )


def _stages(request: Restore, facts: Facts, topology: Topology, tasks: tuple[str, ...]) -> tuple[Stage, ...]:
    assert facts.deployment is not None
    stages: list[Stage] = []
    if facts.running:
        stages.append(StopProcessor(f"stop {topology.processor} until its state is set aside", for_good=False))
    name = f"aside-{facts.deployment.generation}"
    stages.append(SetStateAside(f"set the local state of {count_of(len(tasks), 'task')} aside", tasks, name))
    meant_down = facts.desired == "stopped"
    says = (
        f"start {topology.processor} paused; it restores every partition and reads no input"
        if meant_down
        else f"start {topology.processor} and wait until every partition is restored and processed"
    )
    stages.append(
        RunProcessor(says, topology.code_version, request.timeout_s, paused=meant_down, restore_from=request.source)
    )
    if meant_down:
        stages.append(StopProcessor(f"stop {topology.processor}: it was stopped before", for_good=True))
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
    """Refuses if a changelog is missing, recreated or truncated, because the whole state cannot be restored from it."""
    bare = [store.name for store in topology.stores if store.name not in topology.logged]
    if bare:
        return Refused(
            f"Store {quoted(bare)} has no changelog, so its local state cannot be restored.",
            f"Set `use_changelog_topics=True` and deploy, which fills the changelog: `holdfast apply deploy "
            f"{topology.processor}`.",
            {"store": bare[0]},
        )
    # Several slots (places of workers) may have a copy of one task's state. A task that moves to another worker can
    # leave its old copy behind.
    copies = {(task.task, store, at[1]) for task in facts.local for store, at in (task.stores or {}).items()}
    for task in facts.local:
        for store, (topic, topic_id, _) in (task.stores or {}).items():
            seen = facts.topics.get(topic)
            if topology.source_log_of(store) is not None:
                # The check is for changelogs only: the source topic of a table cannot be filled from local state.
                continue
            if seen is not None and (task.task, store, seen.topic_id) not in copies:
                return Refused(
                    f"Changelog {topic} was recreated; local state of {task.task} belongs to the former topic and is "
                    "the only copy.",
                    f"Fill the changelog from it: `holdfast apply backfill {topology.processor} --store {store} "
                    "--from local`.",
                    {"store": store, "topic": topic, "seen": seen.topic_id, "expected": topic_id},
                )
    for spec in topology.changelogs:
        for number, start in facts.starts.get(spec.topic.name, {}).items():
            if start > 0 and (not request.partitions or number in request.partitions):
                return Refused(
                    f"Changelog {spec.topic.name}[{number}] begins at offset {start}, not 0: older records are gone, "
                    "so it does not hold the whole state.",
                    f"Fill the changelog from local state: `holdfast apply backfill {topology.processor} --store "
                    f"{spec.store} --from local`.",
                    {"topic": spec.topic.name, "partition": number, "seen": start, "expected": 0},
                )
    return None
