"""Plan ``clear``: owners delete keys in transactions, so that no later restore brings the keys back.

    keys, a prefix, windows; workers run   ──► the running owners delete them
    everything else                        ──► refused while a worker is alive; the plan starts workers paused, lets
                                               them delete the keys, and then stops or resumes them

The owner deletes the keys, because its committed deletes reach local state, changelog and standbys. The deletes also
reach a restore from an earlier checkpoint, because such a restore replays the changelog's tail. A deletion of folders
and topics would miss some of these copies.
"""

from __future__ import annotations

import msgspec

from holdfast.processors.engine.topology import Subtopology, Topology
from holdfast.processors.lifecycle.plans.explanation import count_of, counted_by, in_bytes, quoted
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts, selected
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Clear, Everything, Windows
from holdfast.processors.lifecycle.plans.stages import (
    ClearGroups,
    ClearKeys,
    DeleteStateAside,
    ReadAgain,
    RunProcessor,
    SetStateAside,
    Stage,
    StopProcessor,
)
from holdfast.processors.lifecycle.plans.store_words import calls_again, rebuilt_otherwise, times_of
from holdfast.processors.lifecycle.verbs.refusals import (
    missing_topics,
    not_as_deployed,
    of_topic,
    parts_of_groups,
    retracting_with,
    unknown_partitions,
    unknown_stores,
    without_windows,
)
from holdfast.processors.lifecycle.verbs.state.backfill import created_again, tasks_of, unusable

#: Keys deleted per second, assumed until a rate was measured.
ASSUMED_KEYS_PER_S = 20_000.0
#: Maximum seconds to wait until the paused workers have restored their state and joined the group.
START_S = 600.0


def read(request: Clear, source: FactSource, topology: Topology) -> Facts:
    """Reads the facts for the plan, including the number of keys that the selection has in each store."""
    names = tuple(store.name for store in topology.stores)
    stores = tuple(store for store in request.stores or names if store in names)
    return read_facts(topology, source, count=(stores, request.selection, request.partitions))


def plan(request: Clear, facts: Facts, topology: Topology) -> Plan:
    """The plan that deletes the selected keys, by running or paused workers."""
    stores = request.stores or tuple(store.name for store in topology.stores)
    basis = _basis(request, facts, topology, stores)
    online = facts.running and not isinstance(request.selection, Everything)
    refused = (
        unknown_stores(topology, stores)
        or (None if request.rewind == "earliest" else _of_topics(topology, stores))
        or _part_of_groups(request, topology, stores)
        or (without_windows(topology, stores) if isinstance(request.selection, Windows) else None)
        or _missing(request, facts, topology)
        or unknown_partitions(topology, facts, request.partitions, request.stores)
        or _still_alive(request, facts, topology, online=online)
        # Running workers delete keys with the code that they run now. So the definition may differ from that code, for
        # example after a rollback.
        or (None if online else not_as_deployed(facts, topology))
    )
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    again = request.rewind == "earliest"
    positions = _positions(facts, topology) if again else _left_out(facts, topology, stores)
    made = created_again(facts, topology, unusable(facts, topology)) if request.rewind == "earliest" else ()
    moved = any(
        facts.committed.get(topic, {}).get(number) != at
        for topic, at_each in positions.items()
        for number, at in at_each.items()
    )
    known = [facts.counted[store] for store in stores if store in facts.counted]
    # If the plan creates a changelog again, the old changelog's keys are also deleted, so their number is unknown.
    keys = sum(each.keys for each in known) if len(known) == len(stores) and not made else None
    if keys == 0 and not moved:
        selected_keys = f"{request.selection.words()}{_where(request.partitions)}"
        said = f"Store {quoted(stores)} holds no key of the selection ({selected_keys})."
        return Plan(request=request, verdict=NothingToDo(said), basis=basis)
    rewound = " and read the input again from its beginning" if again else ""
    seconds, rate = facts.seconds_for("clear_keys", keys or 0, ASSUMED_KEYS_PER_S, "keys")
    return Plan(
        request=request,
        verdict=Ready(f"delete {_what(request, stores, request.partitions)}{rewound}."),
        stages=_stages(request, facts, topology, stores, positions, made, online=online),
        findings=(
            *_findings(facts, topology, stores, positions, again=again),
            *times_of(tuple(each for each in topology.stores if each.name in stores)),
        ),
        kept=_kept(request, topology, stores),
        deleted=tuple(_deleted(facts, store, request) for store in stores),
        undo=_undo(request, topology, stores),
        keys=keys,
        size_bytes=sum(each.size_bytes for each in known) if keys is not None else None,
        seconds=seconds + (0.0 if online else 10.0),
        estimate=f"{counted_by(known[0])}; {rate}" if known else rate,
        basis=basis,
        after_kill="go on",
    )


def _of_topics(topology: Topology, stores: tuple[str, ...]) -> Refused | None:
    """Refuses to delete keys of a table that is restored from its source topic: a restore would bring the keys back."""
    log = next((log for log in topology.source_logs if log.store in stores), None)
    if log is None:
        return None
    others = [store.name for store in topology.stores if topology.source_log_of(store.name) is None]
    refused = of_topic(log)
    named = f" To clear the other stores: `{' '.join(f'--store {name}' for name in others)}`." if others else ""
    whole = f" To read all topics again: `holdfast apply clear {topology.processor} --all --rewind earliest`."
    return msgspec.structs.replace(refused, action=f"{refused.action}{named}{whole}")


def _part_of_groups(request: Clear, topology: Topology, stores: tuple[str, ...]) -> Refused | None:
    """Refuses to clear a part of the entries of a ``group_by`` of a table, because the rest would no longer fit it."""
    together = retracting_with(topology, stores)
    whole = isinstance(request.selection, Everything) and not request.partitions
    if whole and set(together) <= set(stores):
        return None
    others = [store.name for store in topology.stores if store.name not in together]
    named = f" To clear the other stores: `{' '.join(f'--store {name}' for name in others)}`." if others else ""
    return parts_of_groups(topology, stores, named)


def _basis(request: Clear, facts: Facts, topology: Topology, stores: tuple[str, ...]) -> dict[str, object]:
    changelogs = [spec.topic.name for spec in topology.changelogs if spec.store in stores]
    basis: dict[str, object] = {
        "topic_id": facts.topic_ids(changelogs),
        "deployed": facts.deployed,
        "defined": topology.code_version,
        "desired": facts.desired,
        "alive": facts.alive,
    }
    if request.rewind != "stay" or retracting_with(topology, stores):
        basis["committed"] = facts.committed
        basis["first_offsets"] = selected(facts.starts, [spec.name for spec in topology.inputs])
        basis["ends"] = selected(facts.ends, [spec.topic for spec in topology.repartitions])
    return basis


def _missing(request: Clear, facts: Facts, topology: Topology) -> Refused | None:
    """Refuses if topics are missing; a clear with ``rewind`` ``earliest`` creates missing changelogs itself."""
    logs = {spec.topic.name for spec in topology.changelogs}
    absent = {spec.name for spec in topology.topics()} - facts.topics.keys()
    if request.rewind == "earliest" and absent <= logs:
        return None
    return missing_topics(facts, topology)


def _lost(facts: Facts, topology: Topology) -> tuple[str, ...]:
    """The stores whose changelog is created again or contains no records; workers must start these stores empty."""
    anew = unusable(facts, topology)
    return tuple(
        spec.store
        for spec in topology.changelogs
        if spec.topic.name in anew or not any(facts.ends.get(spec.topic.name, {}).values())
    )


def _still_alive(request: Clear, facts: Facts, topology: Topology, *, online: bool) -> Refused | None:
    if online:
        idle = [each.slot for each in facts.instances if each.phase != "running"]
        if not idle:
            return None
        return Refused(
            f"Slot {', '.join(idle)} of {topology.processor} has a process that is not running yet.",
            f"Wait until `holdfast status` shows it running, or stop it: `holdfast apply stop {topology.processor}`.",
            {"processor": topology.processor, "slot": idle[0]},
        )
    if facts.running or facts.members:
        if not facts.running and not isinstance(request.selection, Everything):
            return Refused(
                f"No worker of {topology.processor} runs here, but its group has {facts.members} member(s): one died "
                "and the brokers have not noticed yet, or it runs elsewhere.",
                "Retry after the group's session timeout, or after recovery restarted the worker.",
                {"processor": topology.processor, "members": facts.members},
            )
        return Refused(
            f"Group {topology.processor} has {count_of(facts.members, 'live member')}; workers would continue from the "
            "state that is to be deleted.",
            f"Stop the processor first: `holdfast apply stop {topology.processor}`. Keys, prefixes and windows "
            "can be cleared while it runs.",
            {"processor": topology.processor, "members": facts.members},
        )
    return None


def _positions(facts: Facts, topology: Topology) -> dict[str, dict[int, int]]:
    """The input offsets to set: the first offset of every source partition that has a committed offset.

    For a repartition topic, it is the end offset: the source records that are read again write its records once more.
    """
    found = {
        spec.name: {
            number: facts.starts.get(spec.name, {}).get(number, 0) for number in facts.committed.get(spec.name, {})
        }
        for spec in topology.sources
    }
    return {topic: each for topic, each in {**found, **_ends_behind(facts, topology)}.items() if each}


def _left_out(facts: Facts, topology: Topology, stores: tuple[str, ...]) -> dict[str, dict[int, int]]:
    """The end offsets of the repartition topics that feed the cleared stores of a ``group_by`` of a table.

    The cleared stores skip to these offsets. Records before them may take rows out of groups that are now empty.
    """
    read = {name for store in retracting_with(topology, stores) for name in topology.inputs_of(store)}
    return {topic: each for topic, each in _ends_behind(facts, topology).items() if topic in read and each}


def _ends_behind(facts: Facts, topology: Topology) -> dict[str, dict[int, int]]:
    """The end offset of every partition of the repartition topics, also without a committed offset.

    A partition without a committed offset counts, too, because it may contain records that no worker has read.
    """
    return {spec.topic: dict(facts.ends.get(spec.topic, {})) for spec in topology.repartitions}


def _stages(
    request: Clear,
    facts: Facts,
    topology: Topology,
    stores: tuple[str, ...],
    positions: dict[str, dict[int, int]],
    made: tuple[Stage, ...],
    *,
    online: bool,
) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    if made:
        # Workers refuse local state of a deleted topic, so all copies of these tasks, in all slots, are set aside
        # (renamed).
        anew = [store for name in unusable(facts, topology) if (store := topology.store_of(name))]
        tasks = tuple(sorted(tasks_of(facts, topology, anew)))
        aside = f"aside-{0 if facts.deployment is None else facts.deployment.generation}"
        says = f"set the local state of {count_of(len(tasks), 'task')} aside"
        if request.export:  # The new changelogs contain no keys, so this local state is the last copy of the keys.
            says += "; it stays there until it is deleted as an orphan (`holdfast apply clean`)"
        stages += [SetStateAside(says, tasks, aside), *made]
    if not online:
        says = f"start {topology.processor} paused; it restores its state and reads no input"
        empty = _lost(facts, topology) if request.rewind == "earliest" else ()
        stages.append(RunProcessor(says, topology.code_version, START_S, paused=True, begin_empty=empty))
    groups = [
        (
            group,
            _partitions(request, facts, sub),
            {topic: positions[topic] for topic in sub.inputs if topic in positions},
        )
        for sub in topology.subtopologies
        if (group := tuple(store for store in stores if store in sub.stores))
    ]
    groups = [each for each in groups if each[1] or not request.partitions]
    stages += _read_again(topology, positions)
    for group, numbers, firsts in groups:
        what = _what(request, group, numbers)
        says = f"delete {what} from state and changelog, in committed transactions"
        if request.export:
            says = f"write {what} to a file and delete them from state and changelog, while no input is processed"
        if firsts:
            partitions = sum(len(each) for each in firsts.values())
            place = "the end" if all(map(topology.is_repartition, firsts)) else "the start"
            says += f"; the last commit also sets the input offsets of {count_of(partitions, 'partition')} to {place}"
        kind = ClearGroups if retracting_with(topology, group) else ClearKeys
        stages.append(kind(says, group, request.selection, numbers, firsts, export=request.export))
    if not online:
        stages.append(_as_meant(facts, topology))
    if made and not request.export:
        stages.append(DeleteStateAside("delete the local state that was set aside", tasks, aside))
    return tuple(stages)


def _read_again(topology: Topology, positions: dict[str, dict[int, int]]) -> list[Stage]:
    """Stages that rewind tasks which have no state themselves, but write the repartition topic of tasks with state."""
    found: list[Stage] = []
    for chain in topology.chains():
        if len(chain) == 1 or not any(sub.stores for sub in chain):
            continue
        for sub in chain:
            firsts = {topic: positions[topic] for topic in sub.inputs if topic in positions}
            if firsts and not sub.stores:
                count = count_of(sum(map(len, firsts.values())), "partition")
                says = f"read {', '.join(firsts)} again from the start, which `group_by` takes on: {count}"
                found.append(ReadAgain(says, firsts))
    return found


def _partitions(request: Clear, facts: Facts, sub: Subtopology) -> tuple[int, ...]:
    """The requested partitions that this subtopology has.

    Stores of another subtopology may have more partitions.
    """
    return tuple(number for number in request.partitions if number < sub.width(facts.widths))


def _as_meant(facts: Facts, topology: Topology) -> Stage:
    """The plan's last stage, after paused workers deleted keys: starts a processor that should run, or stops it."""
    if facts.desired in (None, "stopped"):
        return StopProcessor(f"stop {topology.processor}: it was stopped before", for_good=True)
    return RunProcessor(f"start {topology.processor} without pause, as deployed", topology.code_version)


def _findings(
    facts: Facts, topology: Topology, stores: tuple[str, ...], positions: dict[str, dict[int, int]], *, again: bool
) -> tuple[str, ...]:
    found = []
    for store in stores:
        counted = facts.counted.get(store)
        if counted is None:
            found.append(f"store `{store}`: its number of keys is known after the workers have restored it")
        else:
            amount = f"{count_of(counted.keys, 'key')}, {in_bytes(counted.size_bytes)}"
            found.append(f"store `{store}`: {amount} ({counted_by(counted)})")
    for topic, offsets in positions.items():
        if topology.is_repartition(topic):
            why = f"it comes again from {_sources_of(topic, topology)}" if again else "it is about the cleared rows"
            found.append(f"what is in {topic} is left out: {why}")
            continue
        records = sum(facts.committed.get(topic, {}).get(number, at) - at for number, at in offsets.items())
        found.append(f"{count_of(records, 'record')} of {topic} will be read again")
        gone = [number for number, at in offsets.items() if at > 0]
        if gone:
            found.append(
                f"{topic} no longer begins at offset 0 in {count_of(len(gone), 'partition')}: state from its deleted "
                "records cannot be built again"
            )
    if again:
        found += rebuilt_otherwise(each for each in topology.stores if each.name in stores)
        found += calls_again(topology.stores)
    return tuple(found)


def _sources_of(repartition: str, topology: Topology) -> str:
    return ", ".join(next(spec.sources for spec in topology.repartitions if spec.topic == repartition))


def _kept(request: Clear, topology: Topology, stores: tuple[str, ...]) -> tuple[str, ...]:
    others = [store.name for store in topology.stores if store.name not in stores]
    kept = [f"store {quoted(others)}"] if others else []
    kept += ["the input offsets: no input is read again"] if request.rewind == "stay" else []
    return (*kept, "snapshots in the warehouse, and published outputs")


def _deleted(facts: Facts, store: str, request: Clear) -> str:
    counted = facts.counted.get(store)
    amount = "" if counted is None else f" ({count_of(counted.keys, 'key')})"
    where = f"{_where(request.partitions)}{amount}, in local state, changelog and standbys"
    return f"store `{store}`: {request.selection.words()}{where}"


def _undo(request: Clear, topology: Topology, stores: tuple[str, ...]) -> str:
    if request.rewind == "earliest":
        return "Not needed: state is built again from the input. Outputs of this input are published again."
    if (together := retracting_with(topology, stores)) and request.export:
        name = topology.processor
        return (
            f"Read all input again: `holdfast apply clear {name} --all --rewind earliest`. The exported file has all "
            f"deleted entries. It can't be put back into {', '.join(together)}, because groups depend on these stores."
        )
    if request.export:
        return (
            "Put the deleted entries back. The result of `apply` prints the command for this, with the path of the "
            "exported file."
        )
    return "Only an earlier warehouse snapshot holds the deleted keys."


def _what(request: Clear, stores: tuple[str, ...], partitions: tuple[int, ...]) -> str:
    return f"{request.selection.words()} of {', '.join(stores)}{_where(partitions)}"


def _where(partitions: tuple[int, ...]) -> str:
    return "" if not partitions else f" in partition {', '.join(map(str, partitions))}"
