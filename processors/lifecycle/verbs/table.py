"""From a request to its plan: reads the facts that the request's verb needs, and calls its planner."""

from __future__ import annotations

from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import (
    Facts,
    FactSource,
    read_facts,
    with_held,
    with_other_table,
    with_tables,
)
from holdfast.processors.lifecycle.plans.orphan_facts import OrphanSource
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clean,
    Clear,
    Compact,
    Deploy,
    OfInstallation,
    OfProcessor,
    Provision,
    PutBack,
    Reposition,
    Restore,
    Selection,
    Stop,
)
from holdfast.processors.lifecycle.verbs import (
    backfill,
    clean,
    clear,
    compact,
    deploy,
    fill,
    provision,
    put_back,
    rebuild,
    reposition,
    restore,
    restore_table,
    stop,
)


def plan_for(request: OfProcessor, source: FactSource, topology: Topology) -> Plan:
    """The plan for a request, from facts that are read now.

    Raises:
        HoldfastError: Facts can't be read.
    """
    if isinstance(request, Deploy):
        given_up = [changelog_topic(request.processor, store) for store in request.dropped]
        return decide(request, read_facts(topology, source, releases=True, also=given_up), topology)
    if isinstance(request, Compact):
        return decide(request, read_facts(topology, source, hanging=True), topology)
    if isinstance(request, Reposition):
        return decide(request, with_held(read_facts(topology, source), source, topology), topology)
    if isinstance(request, Restore) and request.at is not None:
        facts = read_facts(topology, source, releases=True)
        return decide(request, with_tables(facts, source, restore_table.affected(request, topology)), topology)
    if isinstance(request, Backfill) and request.source == "table":
        inputs = next((store.inputs for store in topology.stores if store.name == request.store), ())
        facts = with_other_table(read_facts(topology, source), source, request.table, inputs)
        return decide(request, facts, topology)
    return decide(request, read_facts(topology, source, count=_counting(request, topology)), topology)


def plan_of_installation(request: OfInstallation, source: OrphanSource) -> Plan:
    """The plan for a request that concerns no single processor, from facts that are read now.

    Raises:
        HoldfastError: Facts can't be read.
    """
    match request:
        case Clean():
            return clean.plan(request, source.orphans())
        case PutBack(topic=topic):
            copy, exists = source.topic_copy(topic)
            return put_back.plan(request, copy, exists=exists)


def decide(request: OfProcessor, facts: Facts, topology: Topology) -> Plan:
    """The plan for a request, from facts alone: a pure function."""
    match request:
        case Provision():
            return provision.plan(request, facts, topology)
        case Deploy():
            return deploy.plan(request, facts, topology)
        case Stop():
            return stop.plan(request, facts, topology)
        case Compact():
            return compact.plan(request, facts, topology)
        case Reposition():
            return reposition.plan(request, facts, topology)
        case Clear():
            return clear.plan(request, facts, topology)
        case Backfill(source="topic"):
            return rebuild.plan(request, facts, topology)
        case Backfill(source="table"):
            return fill.plan(request, facts, topology)
        case Backfill():
            return backfill.plan_from_local(request, facts, topology)
        case Restore(at=str()):
            return restore_table.plan(request, facts, topology)
        case Restore():
            return restore.plan(request, facts, topology)


def _counting(request: OfProcessor, topology: Topology) -> tuple[tuple[str, ...], Selection, tuple[int, ...]] | None:
    if not isinstance(request, Clear):
        return None
    known = tuple(store.name for store in topology.stores)
    wanted = request.stores or known
    return tuple(store for store in wanted if store in known), request.selection, request.partitions
