"""Plan ``reposition``: input is read on from where the state stands, where the group's offsets say something else.

offsets were reset or expired   ──► back to what the state holds: nothing is lost, nothing counted twice
input is gone unread            ──► on to where the topic begins now; what is gone is lost, and told as a number
"""

from __future__ import annotations

from holdfast.processors.engine.changelog.format import UNFINISHED
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts import Facts, selected
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Reposition
from holdfast.processors.lifecycle.plans.stages import RunProcessor, SetPositions, Stage
from holdfast.processors.lifecycle.verbs.refusals import missing_topics, not_as_deployed

Places = dict[str, dict[int, int]]


def plan(request: Reposition, facts: Facts, topology: Topology) -> Plan:
    """Decide where input is read on, and refuse where no changelog says it."""
    held = _held(facts, topology)
    basis = {
        "committed": facts.committed,
        "first_offsets": selected(facts.starts, [spec.name for spec in topology.inputs]),
        "held": facts.held,
        "alive": {each.slot: each.alive for each in facts.instances},
        "deployed": None if facts.deployment is None else facts.deployment.code_version,
        "desired": None if facts.deployment is None else facts.deployment.desired,
    }
    refused = missing_topics(facts, topology) or not_as_deployed(facts, topology) or _unfit(facts, topology, held)
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
        said = "The group's offsets are where the state stands, and the input is there."
        return Plan(request=request, verdict=NothingToDo(said), basis=basis)
    lost = sum(at - held[topic][number] for topic, each in positions.items() for number, at in each.items())
    told = [f"{topic}[{number}]: from {'none' if was is None else was} to {at}" for topic, number, was, at in moved]
    skipped = f" {count_of(lost, 'record')} that nothing has processed and that the topic no longer has are skipped."
    return Plan(
        request=request,
        verdict=Ready(f"read on from where the state stands in {len(moved)} partition(s).{skipped if lost else ''}"),
        stages=_stages(facts, topology, positions),
        findings=tuple(told),
        kept=("State and changelogs; what the state holds is not processed again, and outputs are not sent again.",),
        deleted=(f"nothing, but {count_of(lost, 'record')} of input never take effect",) if lost else (),
        undo="The offsets that are replaced are named above; they did not belong to the state.",
        seconds=10.0,
        estimate="a restart of the processor",
        basis=basis,
        after_kill="go on",
    )


def _held(facts: Facts, topology: Topology) -> Places:
    """Where the state stands: topic -> partition -> next offset. Stores of one task stand at one place, or none is
    taken for right.
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


def _unfit(facts: Facts, topology: Topology, held: Places) -> Refused | None:
    name = topology.processor
    if facts.deployment is None or len(topology.changelogs) < len(topology.stores) or not topology.stores:
        return Refused(
            f"{name} was never deployed, or keeps state without changelogs, or none: nothing says where input belongs.",
            f"Set the offsets of group {name} with Kafka's own tools, if they are wrong.",
            {"processor": name},
        )
    if facts.running:
        return Refused(
            f"{name} works: input is read on where its state stands.",
            f"Nothing is to be done. If it is to be repositioned all the same: holdfast apply stop {name}.",
            {"processor": name},
        )
    for topic in dict.fromkeys(topic for sub in topology.subtopologies for topic in sub.inputs if sub.stores):
        for number in range(facts.topics[topic].partitions):
            at, end = held.get(topic, {}).get(number), facts.ends.get(topic, {}).get(number, 0)
            fields: dict[str, str | int | float | bool | None] = {"topic": topic, "partition": number}
            if at is None and (facts.committed.get(topic, {}).get(number) is not None or _written(facts, number)):
                return Refused(
                    f"No changelog says how far {topic}[{number}] was processed, or they don't agree.",
                    f"Take all state from the warehouse (holdfast apply restore {name} --at latest), or build it anew: "
                    f"holdfast apply clear {name} --all --rewind earliest.",
                    fields,
                )
            if at is not None and at > end:
                return Refused(
                    f"State holds {topic}[{number}] up to {at}, but that topic ends at {end}: it is another topic.",
                    f"Build the state anew from it: holdfast apply clear {name} --all --rewind earliest.",
                    {**fields, "seen": end, "expected": at},
                )
    return None


def _written(facts: Facts, number: int) -> bool:
    """Whether any changelog holds something of this partition."""
    return any(number in each for each in facts.held.values())


def _stages(facts: Facts, topology: Topology, positions: Places) -> tuple[Stage, ...]:
    stores = tuple(spec.store for spec in topology.changelogs)
    count = sum(map(len, positions.values()))
    says = f"set the input offsets of {count} partition(s), in one transaction with the changelogs that they belong to"
    stages: list[Stage] = [SetPositions(says, stores, positions)]
    if facts.deployment is not None and facts.deployment.desired != "stopped":
        stages.append(RunProcessor(f"let {topology.processor} work again", topology.code_version))
    return tuple(stages)
