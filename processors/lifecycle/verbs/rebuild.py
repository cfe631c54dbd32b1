"""Plan ``backfill`` from the topic: a store is built anew beside its running processor, which then takes it over.

The processor's output stops from the pause to the resume only: for as long as the tail, and the store's exchange, take.
"""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.names import changelog_topic, shadow_group
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import Facts, selected
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Everything
from holdfast.processors.lifecycle.plans.stages import (
    AdoptStore,
    ExportKeys,
    FinishShadow,
    PauseProcessor,
    RemoveShadow,
    ResumeProcessor,
    Stage,
    StartShadow,
    WaitForShadow,
)
from holdfast.processors.lifecycle.verbs.refusals import (
    missing_topics,
    not_as_deployed,
    not_working,
    unknown_stores,
    without_changelog,
)

#: Source records a second where nothing was measured yet.
ASSUMED_RECORDS_PER_S = 20_000.0


def plan(request: Backfill, facts: Facts, topology: Topology) -> Plan:
    """Decide whether the source can build the store anew, and refuse where it is not whole, or nobody could take it."""
    inputs = _inputs(topology, request.store)
    basis = {
        "topic_id": {name: facts.topics[name].topic_id for name in selected(facts.topics, inputs)},
        "first_offsets": selected(facts.starts, inputs),
        "deployed": None if facts.deployment is None else facts.deployment.code_version,
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
    seconds, measured = facts.seconds_for("wait_for_shadow", records, ASSUMED_RECORDS_PER_S)
    lost = [
        f"what records of {name}[{number}] before offset {start} gave {request.store}: the topic has them no more"
        for name, number, start in _truncated(facts, inputs)
    ]
    group, topics = shadow_group(topology.processor, request.store), ", ".join(inputs)
    return Plan(
        request=request,
        verdict=Ready(f"build {request.store} anew from {topics} beside {topology.processor}, and cut over."),
        stages=_stages(request, topology, group),
        findings=(
            f"{records:,} records of {topics} are read again, from the first that is there",
            f"the functions of {topology.processor} run twice for them: what they do outside of their stores, they do "
            "again; what they read from the clock or from elsewhere may come out differently",
            f"{group} needs the rights that {topology.processor} has, under its own name, and as much memory and disk",
        ),
        kept=(
            "Input offsets and all other stores; nothing is counted twice: both stand at the same offsets.",
            "Outputs: none is sent again, and none is taken back.",
        ),
        deleted=(f"the present content of {request.store}, where it differs from what its source gives", *lost),
        undo="Until the exchange: holdfast apply abandon. Afterwards its file has every key as it was.",
        seconds=seconds,
        estimate="at the measured rate" if measured else f"{ASSUMED_RECORDS_PER_S:,.0f} records a second assumed",
        basis=basis,
        after_kill="go on",
    )


def _stages(request: Backfill, topology: Topology, group: str) -> tuple[Stage, ...]:
    name, store = topology.processor, request.store
    return (
        RemoveShadow(f"remove what an earlier try may have left of {group}", store),
        StartShadow(f"run {name}'s functions once more as {group}, from the beginning, sending nothing", store),
        WaitForShadow(f"wait until {group} has read what {name} has, but for a small tail; {name} works on", store),
        ExportKeys(f"write the present keys of {store} to a file", (store,), Everything(), ()),
        PauseProcessor(f"pause {name}: it commits, and its output stops"),
        FinishShadow(f"have {group} read exactly up to the offsets that {name} has committed then, and stop it", store),
        AdoptStore(f"make {store} equal to what {group} has, in committed transactions of its owners", store),
        ResumeProcessor(f"let {name} work again, from the very offsets that it was paused at"),
        RemoveShadow(f"remove {group}: its program, topics, offsets and local state", store),
    )


def _inputs(topology: Topology, store: str) -> tuple[str, ...]:
    """The topics whose records the store's tasks see."""
    return next((sub.inputs for sub in topology.subtopologies if store in sub.stores), ())


def _truncated(facts: Facts, inputs: tuple[str, ...]) -> list[tuple[str, int, int]]:
    return [
        (name, number, start)
        for name in inputs
        for number, start in sorted(facts.starts.get(name, {}).items())
        if start > 0
    ]


def _unfit(request: Backfill, facts: Facts, topology: Topology, inputs: tuple[str, ...]) -> Refused | None:
    name = topology.processor
    refused = (
        without_changelog(topology, request.store)
        or missing_topics(facts, topology)
        or not_as_deployed(facts, topology)
        or not_working(facts, topology, "the store")
    )
    if refused is not None:
        return refused
    try:
        for sub in topology.subtopologies:
            for store in sub.stores if request.store in sub.stores else ():
                changelog_topic(shadow_group(name, request.store), store)
    except HoldfastError as illegal:
        return Refused(illegal.message, illegal.action, {"store": request.store})
    truncated = [] if request.from_available else _truncated(facts, inputs)
    if truncated:
        topic, number, start = truncated[0]
        more = f" (and {len(truncated) - 1} more partition(s) like it)" if len(truncated) > 1 else ""
        return Refused(
            f"{topic}[{number}] begins at offset {start}{more}: older records are gone, and {request.store} would lack "
            "what they gave.",
            "Take it from a snapshot in the warehouse, or from its changelog: holdfast apply restore "
            f"{name} --from changelog. To build it from what is there all the same, say --from-available.",
            {"topic": topic, "partition": number, "seen": start, "expected": 0},
        )
    return None
