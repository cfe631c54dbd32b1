"""Plan ``restore --at``: a processor's state comes back from snapshots in the warehouse, by way of its changelogs.

    read and compare the snapshots ─► stop ─► new changelogs, loaded ─► positions, with the records that make them whole
    ─► workers restore, paused ─► what they hold is compared ─► work again

One way for all cases: a new cluster, lost changelogs, a point in time. The changelogs are made anew, and the workers
restore from them as ever, the coherence guard included: until positions are set, no worker can start on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.processors.engine import required_topics
from holdfast.processors.engine.topology import Subtopology, Topology
from holdfast.processors.lifecycle.plans.facts import Facts, partition_of, selected
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
from holdfast.processors.lifecycle.verbs import provision
from holdfast.processors.lifecycle.verbs.refusals import not_as_deployed, unknown_stores
from holdfast.processors.lifecycle.verbs.table_choice import (
    Chosen,
    Vector,
    choose,
    describe,
    name_of,
    newest,
    sources_of,
    vector_of,
)

#: Rows a second that are read and written where nothing was measured yet.
ASSUMED_ROWS_PER_S = 60_000.0


def affected(request: Restore, topology: Topology) -> tuple[str, ...]:
    """The stores that are brought back: those that are named, and, unless input stays where it is, all that are built
    from the same inputs."""
    known = [store.name for store in topology.stores]
    named = [store for store in request.stores or known if store in known]
    if request.inputs == "stay":
        return tuple(named)
    return tuple(store for sub in _subtopologies(named, topology) for store in sub.stores)


def plan(request: Restore, facts: Facts, topology: Topology) -> Plan:
    """Decide which snapshots are brought back, and refuse where state and inputs would not belong together."""
    assert request.at is not None
    stores = affected(request, topology)
    subs = _subtopologies(stores, topology)
    basis = _basis(facts, topology, subs)
    refused = unknown_stores(topology, request.stores) or _unfit(facts, topology, stores, subs)
    chosen: Chosen = {}
    for sub in subs if refused is None else ():
        found = choose(facts, [store for store in stores if store in sub.stores], request.at)
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
        refused = _input_gone(request, facts, subs, chosen, positions)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    return _ready(request, facts, topology, chosen, positions, basis)


def _ready(
    request: Restore, facts: Facts, topology: Topology, chosen: Chosen, positions: Vector, basis: dict[str, Any]
) -> Plan:
    rows = sum(each.manifest.rows for each in chosen.values() if each.manifest is not None)
    seconds, measured = facts.seconds_for("load_changelog", rows, ASSUMED_ROWS_PER_S)
    named = ", ".join(f"{store} from snapshot {name_of(each)}" for store, each in chosen.items())
    where = {
        "stay": "read on where the input stands",
        "earliest": "read all that the inputs have",
    }.get(request.inputs, "read the input on from where the snapshot stood")
    stages = _stages(request, facts, topology, chosen, positions)
    return Plan(
        request=request,
        verdict=Ready(f"bring {named} back, and {where}."),
        stages=stages,
        findings=_findings(request, facts, topology, chosen, positions),
        kept=_kept(topology, chosen),
        deleted=_deleted(facts, topology, chosen),
        undo=_undo(facts, topology, chosen),
        keys=rows,
        size_bytes=_bytes(chosen),
        seconds=2 * seconds + 10.0,
        estimate="keys and bytes of the snapshots; " + ("at the measured rate" if measured else "no rate was measured"),
        basis=basis,
        after_kill="go on",
    )


def _subtopologies(stores: Sequence[str], topology: Topology) -> tuple[Subtopology, ...]:
    return tuple(sub for sub in topology.subtopologies if set(sub.stores) & set(stores))


def _basis(facts: Facts, topology: Topology, subs: Sequence[Subtopology]) -> dict[str, Any]:
    inputs = [name for sub in subs for name in sub.inputs]
    logs = [spec.topic.name for spec in topology.changelogs]
    return {
        "topic_id": {name: facts.topics[name].topic_id for name in selected(facts.topics, [*inputs, *logs])},
        "deployed": None if facts.deployment is None else facts.deployment.code_version,
        "desired": None if facts.deployment is None else facts.deployment.desired,
        "defined": topology.code_version,
        "alive": {each.slot: each.alive for each in facts.instances},
    }


# -- what stands against it --------------------------------------------------------------------------------------------


def _unfit(facts: Facts, topology: Topology, stores: Sequence[str], subs: Sequence[Subtopology]) -> Refused | None:
    bare = next((store for store in stores if topology.changelog_of(store) is None), None)
    if bare is not None or not stores:
        return Refused(
            f"Store {bare} has no changelog in the definition." if bare else f"{facts.processor} has no stores.",
            "Turn changelogs on (use_changelog_topics=True), deploy, then ask again.",
            {"store": bare},
        )
    absent = [name for sub in subs for name in sub.inputs if name not in facts.topics]
    if absent:
        return Refused(
            f"Input topic {absent[0]} is not there: where to read on from can't be checked, nor how many partitions "
            "state has.",
            "Bring the input back first; with other offsets than it had, say --input earliest or --input stay then.",
            {"topic": absent[0]},
        )
    decided = required_topics.plan(topology, _without(facts, topology, stores), facts.brokers)
    if decided.refusals:
        return Refused(decided.refusals[0].sentence, decided.refusals[0].action, {"topic": decided.refusals[0].topic})
    if facts.members and not facts.running:
        return Refused(
            f"No worker of {facts.processor} runs here, but its group has {facts.members} member(s): one died and the "
            "brokers have not noticed yet, or it runs elsewhere.",
            "Ask again when its session has timed out; stop what runs elsewhere.",
            {"processor": facts.processor, "members": facts.members},
        )
    return not_as_deployed(facts, topology)


def _other_partitions(facts: Facts, topology: Topology, chosen: Chosen) -> Refused | None:
    for store, version in chosen.items():
        assert version.manifest is not None
        now, then = _width(facts, topology, store), len(version.manifest.partitions)
        if now != then:
            return Refused(
                f"Snapshot {name_of(version)} of {store} has {then} partition(s), its inputs have {now}: keys and "
                "their state would part.",
                "Give the inputs the partition count that they had, or build the store anew from them: holdfast apply "
                f"backfill {facts.processor} --store {store} --from topic.",
                {"store": store, "seen": now, "expected": then},
            )
    return None


def _width(facts: Facts, topology: Topology, store: str) -> int:
    inputs = next(spec.inputs for spec in topology.stores if spec.name == store)
    return max(facts.topics[name].partitions for name in inputs)


def _positions(request: Restore, facts: Facts, subs: Sequence[Subtopology], chosen: Chosen) -> Vector:
    """Where input is read on from; nothing where it stays."""
    positions: Vector = {}
    for sub in subs if request.inputs != "stay" else ():
        version = next(chosen[store] for store in sub.stores if store in chosen)
        assert version.manifest is not None
        vector = vector_of(version.manifest)
        for topic in sub.inputs:
            for number in range(facts.topics[topic].partitions):
                first = facts.starts.get(topic, {}).get(number, 0)
                held = vector.get(topic, {}).get(number, 0)  # what was never read is read from its beginning
                positions.setdefault(topic, {})[number] = first if request.inputs == "earliest" else held
    return positions


def _input_gone(
    request: Restore, facts: Facts, subs: Sequence[Subtopology], chosen: Chosen, positions: Vector
) -> Refused | None:
    """Where the input is not any more what the snapshot continues with."""
    if request.inputs == "stay":
        return _nowhere(facts, subs)
    if request.inputs == "snapshot":
        other = _other_inputs(facts, subs, chosen)
        if other is not None:
            return other
    for topic, each in positions.items():
        for number, offset in each.items():
            first, end = facts.starts.get(topic, {}).get(number, 0), facts.ends.get(topic, {}).get(number, 0)
            fields: dict[str, str | int | float | bool | None] = {"topic": topic, "partition": number}
            if offset < first:
                return Refused(
                    f"The snapshot continues with {topic}[{number}] at offset {offset}, but that topic begins at "
                    f"{first}: {first - offset:,} records are gone, and with them what they gave.",
                    f"Name a newer snapshot. {_newer(facts, chosen)} Or go on without these records: --input earliest "
                    "reads all that is there.",
                    {**fields, "seen": first, "expected": offset},
                )
            if offset > end:
                return Refused(
                    f"The snapshot continues with {topic}[{number}] at offset {offset}, but that topic ends at {end}: "
                    "it was cut, or is another topic.",
                    "Bring the input back with the offsets that it had; or, if all that it has is newer than the "
                    "snapshot, say --input earliest.",
                    {**fields, "seen": end, "expected": offset},
                )
    return None


def _nowhere(facts: Facts, subs: Sequence[Subtopology]) -> Refused | None:
    for sub in subs:
        for topic in sub.inputs:
            for number in range(facts.topics[topic].partitions):
                if number not in facts.committed.get(topic, {}):
                    return Refused(
                        f"Group {facts.processor} has no committed offset of {topic}[{number}]: there is no place "
                        "where the input stands.",
                        "Say --input snapshot, or, on a new cluster, --input copied or --input earliest.",
                        {"topic": topic, "partition": number},
                    )
    return None


def _other_inputs(facts: Facts, subs: Sequence[Subtopology], chosen: Chosen) -> Refused | None:
    for sub in subs:
        version = next(chosen[store] for store in sub.stores if store in chosen)
        assert version.manifest is not None
        known, read = sources_of(version.manifest), vector_of(version.manifest)
        for topic in (topic for topic in sub.inputs if topic in read):
            now, then = facts.topics[topic].topic_id, known.get(topic, set())
            if then == {now}:
                continue
            was = f"was made from another one ({', '.join(sorted(then))})" if then else "does not say which it was"
            return Refused(
                f"{topic} is topic {now}, and snapshot {name_of(version)} {was}: whether its offsets mean the same "
                "records can't be known from here.",
                "On a new cluster, or after a topic was made anew, say what holds: --input copied (each record has the "
                "offset that it had; checked is only that the offsets are there), --input earliest (all that the topic "
                "has is newer than the snapshot), or --input stay (only content comes back).",
                {"topic": topic, "seen": now, "expected": ", ".join(sorted(then)) or None},
            )
    return None


def _newer(facts: Facts, chosen: Chosen) -> str:
    said = []
    for store, version in chosen.items():
        found = newest(facts.tables[store])
        if found is not None and found.version != version.version:
            said.append(f"The newest of {store} is {name_of(found)}.")
    return " ".join(said[:1]) or "There is none."


# -- what is done ------------------------------------------------------------------------------------------------------


def _without(facts: Facts, topology: Topology, stores: Sequence[str]) -> dict[str, Any]:
    """The topics that are there, but for the changelogs of these stores."""
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
            f"read snapshot {name_of(each)} of {store} whole, and compare it with its manifest; nothing is changed yet",
            store,
            tables[store].table,
            each.version,
            _prints(chosen, store),
        )
        for store, each in chosen.items()
    ]
    if facts.running:
        stages.append(StopProcessor(f"stop {name} for the time of the exchange", for_good=False))
    tasks = _tasks(facts, topology, chosen)
    aside = f"aside-{0 if facts.deployment is None else facts.deployment.generation}"
    stages.append(SetStateAside(f"set the local state of {len(tasks)} task(s) aside", tasks, aside))
    logs = {store: spec.name for store in chosen if (spec := topology.changelog_of(store)) is not None}
    stages += [
        DeleteTopic(f"delete changelog {log}, in whose place a new one comes", log)
        for log in logs.values()
        if log in facts.topics
    ]
    decided = required_topics.plan(topology, _without(facts, topology, tuple(chosen)), facts.brokers)
    stages += [stage for stage in provision.stages_of(decided) if isinstance(stage, CreateTopic)]
    stages += [
        LoadChangelog(
            f"write the snapshot of {store} to {logs[store]}, on which no worker can start yet",
            store,
            tables[store].table,
            each.version,
            _prints(chosen, store),
        )
        for store, each in chosen.items()
    ]
    to = "as they stand" if not positions else f"of {sum(map(len, positions.values()))} partition(s)"
    stages.append(
        SetPositions(
            f"set the input offsets {to}, in one transaction with what makes these changelogs whole",
            tuple(chosen),
            positions,
        )
    )
    return (*stages, *_run_again(request, facts, topology, chosen, (tasks, aside)))


def _run_again(
    request: Restore, facts: Facts, topology: Topology, chosen: Chosen, aside: tuple[tuple[str, ...], str]
) -> list[Stage]:
    name, version, code = topology.processor, topology.code_version, facts.code
    release = code.release_id if code is not None and facts.deployment is None else None
    stages: list[Stage] = []
    if code is not None and release is not None:
        stages.append(MakeRelease(f"record release {release}: {name} was never deployed here", release, version))
    says = f"start {name} paused: it restores from the new changelogs, and reads no input"
    paused = RunProcessor(says, version, request.timeout_s, paused=True, restore_from="changelog", release_id=release)
    stages.append(paused)
    stages.append(
        CompareStores(
            f"have its owners say what they hold of {', '.join(chosen)}, and compare it with the manifests",
            {store: _prints(chosen, store) for store in chosen},
        )
    )
    if facts.deployment is not None and facts.deployment.desired == "stopped":
        stages.append(StopProcessor(f"stop {name}, as it was found", for_good=True))
    else:
        stages.append(RunProcessor(f"let {name} work", version, request.timeout_s, release_id=release))
    stages.append(DeleteStateAside("delete the local state that was set aside", *aside))
    return stages


# -- what is said of it ------------------------------------------------------------------------------------------------


def _findings(request: Restore, facts: Facts, topology: Topology, chosen: Chosen, positions: Vector) -> tuple[str, ...]:
    said = []
    for store, each in chosen.items():
        assert each.manifest is not None
        tags = ", ".join(each.tags) or "no tag"
        said.append(f"{store}: snapshot {name_of(each)} ({tags}) has {each.manifest.rows:,} keys")
        if each.manifest.code_version != topology.code_version:
            said.append(
                f"{store} was written by version {each.manifest.code_version}, and {topology.code_version} goes on "
                "with it: its functions have to understand what the other wrote"
            )
    outputs = ", ".join(spec.name for spec in topology.outputs)
    for topic, each_at in positions.items():
        done = facts.committed.get(topic, {})
        again = sum(max(0, done.get(number, at) - at) for number, at in each_at.items())
        skipped = sum(max(0, at - done.get(number, at)) for number, at in each_at.items())
        left = sum(max(0, facts.ends.get(topic, {}).get(number, at) - at) for number, at in each_at.items())
        sent = f", and what they give is sent again to {outputs}" if outputs and again else ""
        said.append(f"{topic}: {left:,} offsets are to be read; {again:,} of them were processed before{sent}")
        if skipped:
            said.append(f"{topic}: {skipped:,} offsets between the group's and the snapshot's are skipped")
    if request.inputs == "stay":
        said.append(
            "what the inputs gave between the snapshot and the offsets where they stand is not in the state afterwards"
        )
    if request.inputs == "copied":
        said.append(
            "that each record of the inputs has the offset that it had is taken on your word; checked is that these "
            "offsets are there, and the partition counts"
        )
    if request.inputs == "earliest":
        said.append("that all the inputs have is newer than the snapshot is taken on your word; else it counts twice")
    return tuple(said)


def _kept(topology: Topology, chosen: Chosen) -> tuple[str, ...]:
    others = [store.name for store in topology.stores if store.name not in chosen]
    kept = ["snapshots in the warehouse, checkpoints, and outputs that were sent; the inputs themselves"]
    return (f"store {', '.join(others)}", *kept) if others else tuple(kept)


def _deleted(facts: Facts, topology: Topology, chosen: Chosen) -> tuple[str, ...]:
    said = []
    for store in chosen:
        log = topology.changelog_of(store)
        if log is not None and log.name in facts.topics:
            said.append(f"changelog {log.name} as it is, and so the present content of {store}, here and for standbys")
    return tuple(said)


def _undo(facts: Facts, topology: Topology, chosen: Chosen) -> str:
    name = topology.processor
    before = (
        f"Until the changelogs are deleted: holdfast apply abandon, then holdfast apply deploy {name}. While it is "
        "under way, the former local state lies aside."
    )
    found = newest(facts.tables[next(iter(chosen))])
    if found is None or found.version == chosen[next(iter(chosen))].version:
        return (
            f"{before} Afterwards only a newer snapshot leads back, and there is none: to have one, materialise the "
            "snapshots before this is applied."
        )
    return (
        f"{before} Afterwards: holdfast apply restore {name} --at latest. The newest snapshot is {name_of(found)}, and "
        "what came after it is read again."
    )


def _bytes(chosen: Chosen) -> int | None:
    sizes = [each.size_bytes for each in chosen.values()]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
