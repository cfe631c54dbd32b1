"""Plan ``reposition``: sets the group's committed offsets to the input offsets that the changelogs record.

The reason for the command, and the new offset:

offsets were reset or expired        ──► set to the offsets of the state: no input is lost or counted twice
unread input was deleted by Kafka    ──► set to the topic's first offset; the plan states the number of lost records
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.processors.engine.changelog.format import UNFINISHED
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts, selected
from holdfast.processors.lifecycle.plans.facts.shape import Shape, shape_of
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Reposition
from holdfast.processors.lifecycle.plans.stages import RunProcessor, SetPositions, Stage
from holdfast.processors.lifecycle.verbs.refusals import code_not_kept, deployed_release, missing_topics

Places = dict[str, dict[int, int]]


def read(request: Reposition, source: FactSource, topology: Topology) -> Facts:
    """Reads the data that the plan needs, including the input offsets in the changelogs."""
    facts = read_facts(topology, source)
    logs = {spec.store: spec.topic.name for spec in topology.changelogs if spec.topic.name in facts.topics}
    held = {store: source.held_inputs(log) for store, log in logs.items()}
    return replace(facts, held=held, releases=source.releases(request.processor))


def plan(request: Reposition, facts: Facts, topology: Topology) -> Plan:
    """The plan that sets input offsets to the offsets of the state; refused if no changelog records these offsets."""
    held = _held(facts, topology)
    basis = {
        "committed": facts.committed,
        "first_offsets": selected(facts.starts, [spec.name for spec in topology.inputs]),
        "held": facts.held,
        "alive": facts.alive,
        "deployed": facts.deployed,
        "desired": facts.desired,
    }
    refused = (
        code_not_kept(facts, topology)
        or _other_stores(facts, topology)
        or missing_topics(facts, topology)
        or _unfit(facts, topology, held)
    )
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    positions = {
        topic: {number: max(at, facts.starts[topic].get(number, 0)) for number, at in each.items()}
        for topic, each in held.items()
    }
    moved = [
        (topic, number, facts.committed.get(topic, {}).get(number), at)
        for topic, each in positions.items()
        for number, at in each.items()
        if facts.committed.get(topic, {}).get(number) != at
    ]
    if not moved:
        said = "The group's offsets equal those of the state, and the topics still have the next records."
        return Plan(request=request, verdict=NothingToDo(said), basis=basis)
    lost = sum(at - held[topic][number] for topic, each in positions.items() for number, at in each.items())
    moves = [f"{topic}[{number}]: from {'none' if was is None else was} to {at}" for topic, number, was, at in moved]
    skipped = f" Skip {count_of(lost, 'record')} that Kafka deleted before the processor read them."
    where = count_of(len(moved), "partition")
    return Plan(
        request=request,
        verdict=Ready(f"set the input offsets of {where} to those of the state.{skipped if lost else ''}"),
        stages=_stages(facts, topology, positions),
        findings=tuple(moves),
        kept=("State and changelogs; no record is processed twice, and no output is published twice.",),
        deleted=(f"nothing, but {count_of(lost, 'record')} of input are never processed",) if lost else (),
        undo="Not needed: the former offsets, listed under Found, did not belong to the state.",
        seconds=10.0,
        estimate="a restart of the processor",
        basis=basis,
        after_kill="go on",
    )


def _held(facts: Facts, topology: Topology) -> Places:
    """Maps each input topic and partition to the next input offset, as recorded in the changelogs.

    A partition is left out if the stores of its task record different offsets.
    """
    found: Places = {}
    for sub in topology.subtopologies:
        logged = [facts.held.get(store, {}) for store in sub.stores if topology.changelog_of(store) is not None]
        for number in set[int]().union(*logged):
            inputs = [each.get(number, {}) for each in logged]
            for topic in sub.inputs:
                at = {each.get(topic) for each in inputs}
                if len(at) == 1 and (one := at.pop()) is not None and one != UNFINISHED:
                    found.setdefault(topic, {})[number] = one
    return found


def _other_stores(facts: Facts, topology: Topology) -> Refused | None:
    """Refuses if the files define other stores or inputs than the deployed version, whose offsets are to be set."""
    release = deployed_release(facts)
    if release is None or release.code_version == topology.code_version:
        return None
    inputs = {spec.name for spec in topology.inputs}
    if inputs == release.shape.inputs.keys() and _places(shape_of(topology, {})) == _places(release.shape):
        return None
    name, version = topology.processor, release.code_version
    return Refused(
        f"The files of {name} define other stores or inputs than the deployed version {version}: the offsets of that "
        "version's state can't be found by them.",
        f"Check out the code of version {version}, and repeat the command.",
        {"processor": name, "deployed": version, "defined": topology.code_version},
    )


def _places(shape: Shape) -> set[tuple[str, str | None, str | None, tuple[str, ...]]]:
    """Each store with the topic that holds it, and its inputs."""
    return {(each.name, each.changelog, each.restored_from, each.inputs) for each in shape.stores}


def _unfit(facts: Facts, topology: Topology, held: Places) -> Refused | None:
    name = topology.processor
    of_topics = [
        sub for sub in topology.subtopologies if sub.stores and not any(map(topology.changelog_of, sub.stores))
    ]
    if of_topics and topology.source_logs:
        return Refused(
            f"The tables of {', '.join(of_topics[0].inputs)} are restored from their topics: they have the rows of any "
            "offset, so none is the right one.",
            f"Set the offsets of group {name} with `kafka-consumer-groups.sh --reset-offsets`: the next start restores "
            "the rows of these offsets.",
            {"processor": name},
        )
    if facts.deployment is None or topology.logged < {store.name for store in topology.stores} or not topology.stores:
        return Refused(
            f"{name} was never deployed, or has a store without changelog, or has no store: no changelog holds its "
            "input offsets.",
            f"If the offsets of group {name} are wrong, set them with `kafka-consumer-groups.sh --reset-offsets`.",
            {"processor": name},
        )
    if facts.running:
        return Refused(
            f"{name} has a live worker, so its input offsets cannot be set.",
            "If it works, leave it: it reads from the offsets of its state. Else stop it: "
            f"`holdfast apply stop {name}`.",
            {"processor": name},
        )
    for topic in dict.fromkeys(topic for sub in topology.subtopologies for topic in sub.inputs if sub.stores):
        for number in range(facts.topics[topic].partitions):
            at, end = held.get(topic, {}).get(number), facts.ends.get(topic, {}).get(number, 0)
            fields: dict[str, str | int | float | bool | None] = {"topic": topic, "partition": number}
            if at is None and (facts.committed.get(topic, {}).get(number) is not None or _written(facts, number)):
                return Refused(
                    f"The changelogs hold no offset of {topic}[{number}], or different ones.",
                    f"Restore all state from the warehouse: `holdfast apply restore {name} --at latest`. Without a "
                    f"snapshot, build it again: `holdfast apply clear {name} --all --rewind earliest`.",
                    fields,
                )
            if at is not None and at > end:
                return Refused(
                    f"State holds {topic}[{number}] up to offset {at}, but the topic ends at {end}: the topic was "
                    "recreated or truncated.",
                    f"Build the state again from it: `holdfast apply clear {name} --all --rewind earliest`.",
                    {**fields, "seen": end, "expected": at},
                )
    return None


def _written(facts: Facts, number: int) -> bool:
    """Whether any changelog has a meta record (the record with the input offsets of a commit) in this partition."""
    return any(number in each for each in facts.held.values())


def _stages(facts: Facts, topology: Topology, positions: Places) -> tuple[Stage, ...]:
    stores = tuple(spec.store for spec in topology.changelogs)
    count = count_of(sum(map(len, positions.values())), "partition")
    says = f"set the input offsets of {count}, in one transaction with their changelogs"
    stages: list[Stage] = [SetPositions(says, stores, positions)]
    if facts.desired not in (None, "stopped"):
        # the deployed version holds this state, also if the project's files define another one by now
        version = facts.deployed or topology.code_version
        stages.append(RunProcessor(f"start version {version} of {topology.processor}", version))
    return tuple(stages)
