"""Plan ``backfill --from topic``: a shadow program builds a store again, and the processor adopts that store.

A shadow is a second run of the processor's functions. The processor is paused only while the shadow reads the last
records, and while the workers change their store until it equals the shadow's store. During the pause, the processor
sends no output.
"""

from __future__ import annotations

from holdfast.processors.engine.changelog.names import changelog_topic, shadow_group
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans import stages
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, selected
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Everything
from holdfast.processors.lifecycle.plans.store_words import calls_again, rebuilt_otherwise
from holdfast.processors.lifecycle.verbs.refusals import (
    UNDO_EXCHANGE,
    not_as_deployed,
    not_exchangeable,
    of_own_store,
    unknown_stores,
)

#: Source records read per second, assumed until a rate was measured.
ASSUMED_RECORDS_PER_S = 20_000.0


def plan(request: Backfill, facts: Facts, topology: Topology) -> Plan:
    """The plan that rebuilds a store from its source topics; refused if source records are gone or workers are down."""
    inputs = _inputs(topology, request.store)
    basis = {
        "topic_id": facts.topic_ids(inputs),
        "first_offsets": selected(facts.starts, inputs),
        "deployed": facts.deployed,
        "working": facts.working,
    }
    refused = unknown_stores(topology, [request.store]) or _unfit(request, facts, topology, inputs)
    if refused is not None:
        return Plan(request=request, verdict=refused, basis=basis)
    records = sum(
        at - facts.starts.get(name, {}).get(number, 0)
        for name in inputs
        for number, at in facts.committed.get(name, {}).items()
    )
    seconds, rate = facts.seconds_for("wait_for_shadow", records, ASSUMED_RECORDS_PER_S, "records")
    lost = [
        f"the part of store `{request.store}` that came from records of {name}[{number}] before offset {start}: the "
        "topic no longer has them"
        for name, number, start in _truncated(facts, inputs)
    ]
    group, topics = shadow_group(topology.processor, request.store), ", ".join(inputs)
    return Plan(
        request=request,
        verdict=Ready(f"build {request.store} again from {topics} beside {topology.processor}, and cut over."),
        stages=_stages(request, topology, group),
        findings=(
            f"{count_of(records, 'record')} of {topics} will be read again, from the first existing one",
            f"the functions of {topology.processor} run again for these records: they repeat their effects outside of "
            "stores, and may compute other results from the clock or other systems",
            f"{group} needs the same access rights as {topology.processor}, and as much memory and disk",
            *rebuilt_otherwise(each for each in topology.stores if each.name == request.store),
            *calls_again(each for each in topology.stores if set(each.inputs) & set(inputs)),
        ),
        kept=(
            "Input offsets and all other stores; no record counts twice, because the exchange happens at one offset.",
            "Outputs: none is published again or withdrawn.",
        ),
        deleted=(f"entries of store `{request.store}` that differ from those built from the source", *lost),
        undo=UNDO_EXCHANGE,
        seconds=seconds,
        estimate=rate,
        basis=basis,
        after_kill="go on",
    )


def _stages(request: Backfill, topology: Topology, group: str) -> tuple[stages.Stage, ...]:
    name, store = topology.processor, request.store
    return (
        stages.RemoveShadow(f"remove {group} of an earlier attempt, if there is one", store),
        stages.StartShadow(f"run the functions of {name} as {group}, from the first record, without outputs", store),
        stages.WaitForShadow(f"wait until {group} has read almost as far as {name} has committed; {name} runs", store),
        stages.PauseProcessor(f"pause {name}: it commits, and its output stops"),
        stages.FinishShadow(f"{group} reads exactly up to the committed offsets of {name}, and stops", store),
        stages.AdoptStore(
            f"the owners write the present keys of {store} to a file, then make it equal to the store of {group}, in "
            "committed transactions",
            store,
            export=Everything(),
        ),
        stages.ResumeProcessor(f"resume {name} from the offsets at which it was paused"),
        stages.RemoveShadow(f"remove {group}: its program, topics, offsets and local state", store),
    )


def _inputs(topology: Topology, store: str) -> tuple[str, ...]:
    """The input topics of all tasks that contain the store."""
    return next((sub.inputs for sub in topology.subtopologies if store in sub.stores), ())


def _regrouped(topology: Topology, store: str) -> Refused | None:
    """Refuses a store that is connected to other stores by ``group_by``.

    The order of messages in a repartition topic differs between runs, so a shadow (second run of the functions) never
    has the same state.
    """
    chain = topology.chain_of(store)
    if len(chain) < 2:
        return None
    name = topology.processor
    return Refused(
        f"Store {store} is in one chain with `group_by` ({' -> '.join(sub.name for sub in chain)}): it can't be built "
        f"beside {name}, which may be at another point between these topics.",
        f"Build all state again from the sources: `holdfast apply stop {name}`, then `holdfast apply clear {name} "
        "--all --rewind earliest`. Outputs are sent again.",
        {"processor": name, "store": store},
    )


def _truncated(facts: Facts, inputs: tuple[str, ...]) -> list[tuple[str, int, int]]:
    return [
        (name, number, start)
        for name in inputs
        for number, start in sorted(facts.starts.get(name, {}).items())
        if start > 0
    ]


def _unfit(request: Backfill, facts: Facts, topology: Topology, inputs: tuple[str, ...]) -> Refused | None:
    name = topology.processor
    group = shadow_group(name, request.store)
    logs = [store for sub in topology.subtopologies if request.store in sub.stores for store in sub.stores]
    # The shadow (second run) runs the present code, so only workers that run the same code can use its state.
    refused = (
        of_own_store(topology, request.store)
        or not_as_deployed(facts, topology)
        or _regrouped(topology, request.store)
        or not_exchangeable(facts, topology, request.store, lambda: [changelog_topic(group, store) for store in logs])
    )
    if refused is not None:
        return refused
    truncated = [] if request.from_available else _truncated(facts, inputs)
    if truncated:
        topic, number, start = truncated[0]
        more = f" (and so do {count_of(len(truncated) - 1, 'more partition')})" if len(truncated) > 1 else ""
        return Refused(
            f"{topic}[{number}] begins at offset {start}, not 0{more}: older records are gone, and store "
            f"`{request.store}` would lack their results.",
            f"Restore it from a snapshot in the warehouse (`holdfast apply restore {name} --at latest`) or from its "
            f"changelog (`holdfast apply restore {name} --from changelog`). To build it without the older records, add "
            "`--from-available`.",
            {"topic": topic, "partition": number, "seen": start, "expected": 0},
        )
    return None
