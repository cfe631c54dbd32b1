"""Plan ``restore --at``: restore a processor's state from snapshots in the warehouse, through its changelogs.

    check the snapshots ─► stop ─► create and load changelogs ─► set positions, with the records that complete the
    changelogs ─► workers restore, paused ─► compare their state with the snapshots ─► run

The same stages restore to a new cluster, after a loss of changelogs, or to a point in time. Workers restore from the
new changelogs as from any other changelog. Positions are the input offsets at which the workers continue. Before the
positions are set, no worker starts with these changelogs: the check of state and offsets at a worker's start (coherence
guard) refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.processors.engine import provisioning
from holdfast.processors.engine.topology import Subtopology, Topology
from holdfast.processors.lifecycle.plans.explanation import count_of, quoted
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, partition_of, read_facts
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Restore
from holdfast.processors.lifecycle.plans.stages import (
    CheckTable,
    CompareStores,
    CreateTopic,
    DeleteStateAside,
    DeleteTopic,
    LoadChangelog,
    MakeRelease,
    RunProcessor,
    SetPositions,
    SetStateAside,
    Stage,
    StopProcessor,
)
from holdfast.processors.lifecycle.verbs.refusals import (
    not_as_deployed,
    parts_of_groups,
    unknown_stores,
    without_changelog,
)
from holdfast.processors.lifecycle.verbs.releases import provision
from holdfast.processors.lifecycle.verbs.state.table_choice import (
    Chosen,
    Vector,
    Wish,
    choose,
    describe,
    name_of,
    newest,
    sources_of,
    unlike_others,
    vector_of,
)

#: Values of the option ``--input`` with which the input offsets come from the snapshot.
FROM_SNAPSHOT = ("snapshot", "copied")
#: Rows read and written per second, assumed until a rate was measured.
ASSUMED_ROWS_PER_S = 60_000.0


def affected(request: Restore, topology: Topology) -> tuple[str, ...]:
    """The stores to restore: the named stores and, unless input offsets stay, all stores with the same inputs."""
    known = [store.name for store in topology.stores]
    named = [store for store in request.stores or known if store in known]
    if request.inputs == "stay":
        return tuple(named)
    of_subs = [store for sub in _subtopologies(named, topology) for store in sub.stores]
    # A table that is restored from its source topic needs no snapshot, because that topic contains the rows.
    return tuple(store for store in of_subs if store in request.stores or topology.source_log_of(store) is None)


def read(request: Restore, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including the releases and the snapshots of the stores."""
    tables = {store: source.store_table(request.processor, store) for store in affected(request, topology)}
    return replace(read_facts(topology, source, releases=True), tables=tables)


def plan(request: Restore, facts: Facts, topology: Topology) -> Plan:
    """The plan that restores snapshots; refused if state and inputs would not match afterwards."""
    assert request.at is not None
    stores = affected(request, topology)
    subs = _subtopologies(stores, topology)
    basis = _basis(facts, topology, subs)
    refused = unknown_stores(topology, request.stores) or _unfit(facts, topology, stores, subs)
    chosen: Chosen = {}
    for sub in subs if refused is None else ():
        reads = {name: facts.topics[name].partitions for name in sub.inputs}
        wish = Wish(request.at, reads, placed=request.inputs in FROM_SNAPSHOT)
        found = choose(facts, [store for store in stores if store in sub.stores], wish)
        if isinstance(found, Refused):
            refused = found
            break
        chosen |= found
    positions: Vector = {}
    if refused is None:
        basis["snapshots"] = describe(chosen)
        refused = _other_partitions(facts, topology, chosen)
    if refused is None:
        positions = _positions(request, facts, subs, chosen)
        parted = parts_of_groups(topology, unlike_others(request.inputs, facts, topology, chosen))
        refused = parted or _regrouped(request, topology, positions)
        refused = refused or _input_gone(request, facts, subs, chosen, positions)
    if refused is None:
        return _ready(request, facts, topology, chosen, positions, basis)
    return Plan(request=request, verdict=refused, basis=basis)


def _ready(
    request: Restore, facts: Facts, topology: Topology, chosen: Chosen, positions: Vector, basis: dict[str, Any]
) -> Plan:
    rows = sum(each.manifest.rows for each in chosen.values() if each.manifest is not None)
    seconds, rate = facts.seconds_for("load_changelog", rows, ASSUMED_ROWS_PER_S, "rows")
    named = ", ".join(f"{store} from snapshot {name_of(each)}" for store, each in chosen.items())
    where = {
        "stay": "leave the input offsets unchanged",
        "earliest": "read the inputs from their first records",
    }.get(request.inputs, "read the inputs from the offsets of the snapshot")
    return Plan(
        request=request,
        verdict=Ready(f"restore {named}, and {where}."),
        stages=_stages(request, facts, topology, chosen, positions),
        findings=_findings(request, facts, topology, chosen, positions),
        kept=_kept(topology, chosen),
        deleted=_deleted(facts, topology, chosen),
        undo=_undo(facts, topology, chosen),
        keys=rows,
        size_bytes=_bytes(chosen),
        seconds=2 * seconds + 10.0,
        estimate=f"keys and bytes of the snapshots; {rate}",
        basis=basis,
        after_kill="go on",
    )


def _subtopologies(stores: Sequence[str], topology: Topology) -> tuple[Subtopology, ...]:
    return tuple(sub for sub in topology.subtopologies if set(sub.stores) & set(stores))


def _basis(facts: Facts, topology: Topology, subs: Sequence[Subtopology]) -> dict[str, Any]:
    inputs = [name for sub in subs for name in sub.inputs]
    logs = [spec.topic.name for spec in topology.changelogs]
    return {
        "topic_id": facts.topic_ids([*inputs, *logs]),
        "deployed": facts.deployed,
        "desired": facts.desired,
        "defined": topology.code_version,
        "alive": facts.alive,
    }


# -- refusals ----------------------------------------------------------------------------------------------------------


def _unfit(facts: Facts, topology: Topology, stores: Sequence[str], subs: Sequence[Subtopology]) -> Refused | None:
    if not stores:
        return Refused(f"{facts.processor} has no stores.", "Name a processor that keeps state.", {"store": None})
    bare = next((refused for store in stores if (refused := without_changelog(topology, store)) is not None), None)
    if bare is not None:
        return bare
    absent = [name for sub in subs for name in sub.inputs if name not in facts.topics]
    if absent:
        return Refused(
            f"Input topic {absent[0]} does not exist, so its offsets and its partition count cannot be checked.",
            "Create the input topic with its records first. If its offsets differ from the former ones, add `--input "
            "earliest` or `--input stay`.",
            {"topic": absent[0]},
        )
    unlisted = _unlisted(facts, subs)
    if unlisted is not None:
        return unlisted
    decided = provisioning.plan(topology, _without(facts, topology, stores), facts.brokers)
    if decided.refusals:
        return Refused(decided.refusals[0].sentence, decided.refusals[0].action, {"topic": decided.refusals[0].topic})
    if facts.members and not facts.running:
        return Refused(
            f"No worker of {facts.processor} runs here, but its group has {count_of(facts.members, 'live member')}: "
            "either a worker died and its session has not timed out, or one runs elsewhere.",
            "Stop workers on other machines; else retry after the group's session timeout.",
            {"processor": facts.processor, "members": facts.members},
        )
    return not_as_deployed(facts, topology)


def _unlisted(facts: Facts, subs: Sequence[Subtopology]) -> Refused | None:
    """Refuses an input partition whose first or last offset is unknown, because an unknown offset is not 0."""
    for topic, number in _places(facts, subs):
        if number not in facts.starts.get(topic, {}) or number not in facts.ends.get(topic, {}):
            return Refused(
                f"Kafka listed {count_of(facts.topics[topic].partitions, 'partition')} of {topic}, but no offsets of "
                f"{topic}[{number}]: the topic changed meanwhile.",
                "Run the command again.",
                {"topic": topic, "partition": number},
            )
    return None


def _places(facts: Facts, subs: Sequence[Subtopology]) -> Iterator[tuple[str, int]]:
    """Yields topic and number of each input partition that tasks of these subtopologies read."""
    for topic in (topic for sub in subs for topic in sub.inputs):
        for number in range(facts.topics[topic].partitions):
            yield topic, number


def _other_partitions(facts: Facts, topology: Topology, chosen: Chosen) -> Refused | None:
    for store, version in chosen.items():
        assert version.manifest is not None
        now, then = _width(facts, topology, store), len(version.manifest.partitions)
        if now != then:
            return Refused(
                f"Snapshot {name_of(version)} of store `{store}` has {count_of(then, 'partition')}, its inputs have "
                f"{now}: keys would go to other partitions than their state.",
                f"Create the inputs with {count_of(then, 'partition')}, or build the store again from its inputs: "
                f"`holdfast apply backfill {facts.processor} --store {store} --from topic`.",
                {"store": store, "seen": now, "expected": then},
            )
    return None


def _width(facts: Facts, topology: Topology, store: str) -> int:
    return max(facts.topics[name].partitions for name in topology.inputs_of(store))


def _positions(request: Restore, facts: Facts, subs: Sequence[Subtopology], chosen: Chosen) -> Vector:
    """The input offsets to set: topic -> partition -> offset; empty if no offset is changed."""
    positions: Vector = {}
    for sub in subs if request.inputs != "stay" else ():
        version = next(chosen[store] for store in sub.stores if store in chosen)
        assert version.manifest is not None
        vector = vector_of(version.manifest)
        for topic, number in _places(facts, [sub]):
            # every partition has an offset, because `_unlisted` and `choose` have checked this
            at = facts.starts if request.inputs == "earliest" else vector
            positions.setdefault(topic, {})[number] = at[topic][number]
    return positions


def _regrouped(request: Restore, topology: Topology, positions: Vector) -> Refused | None:
    """Refuses a plan that reads source records again after ``group_by`` has written them to its repartition topic.

    Otherwise the steps after ``group_by`` would count these records twice.
    """
    name = topology.processor
    feeds = [spec for spec in topology.repartitions if set(spec.sources) & positions.keys()]
    ends = [spec for spec in topology.repartitions if spec.topic in positions and request.inputs != "snapshot"]
    for spec in feeds or ends:
        moved = sorted(set(spec.sources) & positions.keys()) if feeds else [spec.topic]
        return Refused(
            f"`--input {request.inputs}` would read {', '.join(moved)} again, whose messages are behind "
            f"`{spec.step}` {spec.name!r} already: they would count twice there.",
            f"Keep the input offsets: `holdfast apply restore {name} --at {request.at} --input stay`. Or build all "
            f"state again: `holdfast apply clear {name} --all --rewind earliest`.",
            {"processor": name, "topic": moved[0]},
        )
    return None


def _input_gone(
    request: Restore, facts: Facts, subs: Sequence[Subtopology], chosen: Chosen, positions: Vector
) -> Refused | None:
    """Refuses if an input can't be read from its planned offset: other topic id, records gone, or nothing committed."""
    if request.inputs == "stay":
        return _uncommitted(facts, subs)
    if request.inputs == "snapshot":
        other = _other_inputs(facts, subs, chosen)
        if other is not None:
            return other
    for topic, each in positions.items():
        for number, offset in each.items():
            first, end = facts.starts[topic][number], facts.ends[topic][number]
            fields: dict[str, str | int | float | bool | None] = {"topic": topic, "partition": number}
            if offset < first:
                return Refused(
                    f"The snapshot continues with {topic}[{number}] at offset {offset}, but that topic begins at "
                    f"{first}: {first - offset:,} records are gone and would be missing in the state.",
                    f"Name a newer snapshot after `--at`. {_newer(facts, chosen)} To continue without these records, "
                    "add `--input earliest`.",
                    {**fields, "seen": first, "expected": offset},
                )
            if offset > end:
                return Refused(
                    f"The snapshot continues with {topic}[{number}] at offset {offset}, but that topic ends at {end}: "
                    "it was truncated or recreated.",
                    "Restore the input topic with its former offsets. Or, if all its records are newer than the "
                    "snapshot, add `--input earliest`.",
                    {**fields, "seen": end, "expected": offset},
                )
    return None


def _uncommitted(facts: Facts, subs: Sequence[Subtopology]) -> Refused | None:
    for topic, number in _places(facts, subs):
        if number not in facts.committed.get(topic, {}):
            return Refused(
                f"Group {facts.processor} has no committed offset of {topic}[{number}], so `--input stay` has no "
                "offset to keep.",
                "Use `--input snapshot`; on a new cluster, `--input copied` or `--input earliest`.",
                {"topic": topic, "partition": number},
            )
    return None


def _other_inputs(facts: Facts, subs: Sequence[Subtopology], chosen: Chosen) -> Refused | None:
    of_subs = ((sub, chosen[store]) for sub in subs for store in sub.stores if store in chosen)
    for sub, version in of_subs:
        assert version.manifest is not None
        known = sources_of(version.manifest)
        for topic in sub.inputs:
            now, then = facts.topics[topic].topic_id, known.get(topic, {""})
            if then == {now}:
                continue
            was = "does not record its topic id" + (" in all partitions" if len(then) > 1 else "")
            if "" not in then:
                was = f"was taken from another one ({', '.join(sorted(then))})"
            return Refused(
                f"{topic} has topic id {now}, and snapshot {name_of(version)} {was}: whether its offsets mean the same "
                "records is unknown.",
                "On a new cluster, or after the topic was recreated, choose what is true: `--input copied` (each "
                "record has its former offset; only the existence of the offsets is checked), `--input earliest` (all "
                "records of the topic are newer than the snapshot), or `--input stay` (restore state only).",
                {"topic": topic, "seen": now, "expected": ", ".join(sorted(then)) or None},
            )
    return None


def _newer(facts: Facts, chosen: Chosen) -> str:
    for store, version in chosen.items():
        found = newest(facts.tables[store])
        if found is not None and found.version != version.version:
            return f"The newest of store `{store}` is {name_of(found)}."
    return "There is none."


# -- stages ------------------------------------------------------------------------------------------------------------


def _without(facts: Facts, topology: Topology, stores: Sequence[str]) -> dict[str, Any]:
    """Facts of the existing topics, as if the changelogs of these stores did not exist."""
    gone = {spec.topic.name for spec in topology.changelogs if spec.store in stores}
    return {name: each for name, each in facts.topics.items() if name not in gone}


def _prints(chosen: Chosen, store: str) -> dict[int, str]:
    manifest = chosen[store].manifest
    assert manifest is not None
    return {part.partition: part.fingerprint.hex for part in manifest.partitions}


def _tasks(facts: Facts, topology: Topology, chosen: Chosen) -> tuple[str, ...]:
    subs = _subtopologies(tuple(chosen), topology)
    counts = {name: facts.topics[name].partitions for sub in subs for name in sub.inputs}
    return tuple(task for task in topology.tasks(counts) if any(task == sub.task(partition_of(task)) for sub in subs))


def _stages(request: Restore, facts: Facts, topology: Topology, chosen: Chosen, positions: Vector) -> tuple[Stage, ...]:
    name, tables = topology.processor, facts.tables
    stages: list[Stage] = [
        CheckTable(
            f"read all of snapshot {name_of(each)} of {store} and compare it with its manifest; change nothing yet",
            store,
            tables[store].table,
            each.version,
            _prints(chosen, store),
        )
        for store, each in chosen.items()
    ]
    if facts.running:
        stages.append(StopProcessor(f"stop {name} until its changelogs are loaded", for_good=False))
    tasks = _tasks(facts, topology, chosen)
    aside = f"aside-{0 if facts.deployment is None else facts.deployment.generation}"
    stages.append(SetStateAside(f"set the local state of {count_of(len(tasks), 'task')} aside", tasks, aside))
    logs = {store: spec.name for store in chosen if (spec := topology.changelog_of(store)) is not None}
    stages += [
        DeleteTopic(f"delete changelog {log}; a new one replaces it", log)
        for log in logs.values()
        if log in facts.topics
    ]
    decided = provisioning.plan(topology, _without(facts, topology, tuple(chosen)), facts.brokers)
    stages += [stage for stage in provision.stages_of(decided) if isinstance(stage, CreateTopic)]
    stages += [
        LoadChangelog(
            f"write the snapshot of {store} to {logs[store]}; no worker can start on it yet",
            store,
            tables[store].table,
            each.version,
            _prints(chosen, store),
        )
        for store, each in chosen.items()
    ]
    changed = f"set the input offsets of {count_of(sum(map(len, positions.values())), 'partition')}"
    says = changed if positions else "commit the present input offsets"
    says += ", in one transaction with the records that complete these changelogs"
    stages.append(SetPositions(says, tuple(chosen), positions))
    return (*stages, *_run_again(request, facts, topology, chosen, (tasks, aside)))


def _run_again(
    request: Restore, facts: Facts, topology: Topology, chosen: Chosen, aside: tuple[tuple[str, ...], str]
) -> list[Stage]:
    name, version, code = topology.processor, topology.code_version, facts.code
    release = code.release_id if code is not None and facts.deployment is None else None
    stages: list[Stage] = []
    if code is not None and release is not None:
        stages.append(MakeRelease(f"record release {release}: {name} was never deployed here", release, version))
    says = f"start {name} paused; it restores from the new changelogs and reads no input"
    paused = RunProcessor(says, version, request.timeout_s, paused=True, restore_from="changelog", release_id=release)
    stages.append(paused)
    stages.append(
        CompareStores(
            f"compare the restored content of {', '.join(chosen)} with the manifests",
            {store: _prints(chosen, store) for store in chosen},
        )
    )
    if facts.desired == "stopped":
        stages.append(StopProcessor(f"stop {name}: it was stopped before", for_good=True))
    else:
        stages.append(RunProcessor(f"start {name} without pause", version, request.timeout_s, release_id=release))
    stages.append(DeleteStateAside("delete the local state that was set aside", *aside))
    return stages


# -- texts -------------------------------------------------------------------------------------------------------------


def _findings(request: Restore, facts: Facts, topology: Topology, chosen: Chosen, positions: Vector) -> tuple[str, ...]:
    said = []
    for store, each in chosen.items():
        assert each.manifest is not None
        tags = ", ".join(each.tags) or "no tag"
        rows = count_of(each.manifest.rows, "key")
        made = ", and was made from the history" if each.manifest.from_history else ""
        said.append(f"store `{store}`: snapshot {name_of(each)} ({tags}) has {rows}{made}")
        if each.manifest.code_version != topology.code_version:
            said.append(
                f"store `{store}` was written by version {each.manifest.code_version}: the functions of version "
                f"{topology.code_version} must be able to read its values"
            )
    outputs = ", ".join(spec.name for spec in topology.outputs)
    for topic, each_at in positions.items():
        done = facts.committed.get(topic, {})
        again = sum(max(0, done.get(number, at) - at) for number, at in each_at.items())
        skipped = sum(max(0, at - done.get(number, at)) for number, at in each_at.items())
        left = sum(max(0, facts.ends.get(topic, {}).get(number, at) - at) for number, at in each_at.items())
        sent = f", and their outputs are published again to {outputs}" if outputs and again else ""
        said.append(f"{topic}: {count_of(left, 'offset')} to read; {again:,} of them were processed before{sent}")
        if skipped:
            said.append(f"{topic}: {count_of(skipped, 'offset')} between the group's and the snapshot's are skipped")
    if request.inputs == "stay":
        said.append("the state will lack the input between the snapshot and the present input offsets")
    if request.inputs == "copied":
        said.append(
            "you assert that each record of the inputs has its former offset; only the existence of these offsets and "
            "the partition counts are checked"
        )
    if request.inputs == "earliest":
        said.append(
            "you assert that all records of the inputs are newer than the snapshot; older records would count twice"
        )
    return tuple(said)


def _kept(topology: Topology, chosen: Chosen) -> tuple[str, ...]:
    others = [store.name for store in topology.stores if store.name not in chosen]
    kept = ["snapshots in the warehouse, checkpoints, inputs and published outputs"]
    return (f"store {quoted(others)}", *kept) if others else tuple(kept)


def _deleted(facts: Facts, topology: Topology, chosen: Chosen) -> tuple[str, ...]:
    said = []
    for store in chosen:
        log = topology.changelog_of(store)
        if log is not None and log.name in facts.topics:
            said.append(f"changelog {log.name}: the present content of store `{store}`, also in standbys")
    return tuple(said)


def _undo(facts: Facts, topology: Topology, chosen: Chosen) -> str:
    name = topology.processor
    before = (
        "Until the changelogs are deleted: `holdfast apply abandon N --reason WHY`, with the apply's number, then "
        f"`holdfast apply deploy {name}`. While the apply runs, the former local state is kept aside."
    )
    found = newest(facts.tables[next(iter(chosen))])
    if found is None or found.version == chosen[next(iter(chosen))].version:
        return (
            f"{before} Afterwards only a newer snapshot can undo it, and there is none: to have one, materialise the "
            "snapshots before you apply this plan."
        )
    return (
        f"{before} Afterwards: `holdfast apply restore {name} --at latest`. The newest snapshot is {name_of(found)}; "
        "later input is read again."
    )


def _bytes(chosen: Chosen) -> int | None:
    sizes = [each.size_bytes for each in chosen.values()]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
