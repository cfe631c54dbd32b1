"""From a request to its plan: reads the facts that the request's verb needs, and calls its planner."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.processors.engine import same_partitioner
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans import requests
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts import Facts, FactSource, read_facts
from holdfast.processors.lifecycle.plans.orphan_facts import OrphanSource
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.verbs import (
    adopt,
    backfill,
    clean,
    clear,
    compact,
    deploy,
    fill,
    provision,
    put_back,
    put_file_back,
    rebuild,
    replay,
    reposition,
    restart,
    restore,
    restore_table,
    rollback,
    scale,
    stop,
)
from holdfast.processors.lifecycle.verbs.refusals import held_elsewhere, registry_behind


def plan_for(request: requests.OfProcessor, source: FactSource, topology: Topology) -> Plan:
    """The plan for a request, from facts that are read now.

    Raises:
        HoldfastError: Facts can't be read.
    """
    return decide(request, _facts(request, source, topology), topology)


def plan_of_installation(request: requests.OfInstallation, source: OrphanSource) -> Plan:
    """The plan for a request that concerns no single processor, from facts that are read now.

    Raises:
        HoldfastError: Facts can't be read.
    """
    match request:
        case requests.Clean():
            return clean.plan(request, source.orphans())
        case requests.PutBack(topic=topic):
            copy, exists = source.topic_copy(topic)
            return put_back.plan(request, copy, exists=exists)


def decide(request: requests.OfProcessor, facts: Facts, topology: Topology) -> Plan:
    """The plan for a request, from facts alone: a pure function."""
    refused = held_elsewhere(request, facts) or registry_behind(request, facts)
    if refused is not None:
        return Plan(request=request, verdict=refused)
    decided = _decided(request, facts, topology)
    return replace(decided, findings=(*_left_over(facts), *decided.findings))


def _left_over(facts: Facts) -> tuple[str, ...]:
    """A finding on workers that an apply left which was broken off."""
    if not facts.beyond or facts.deployment is None:
        return ()
    slots, recorded = ", ".join(facts.beyond), count_of(len(facts.deployment.slots), "worker")
    return (f"slot {slots} has a process, although {recorded} are recorded: an apply was broken off",)


def _decided(request: requests.OfProcessor, facts: Facts, topology: Topology) -> Plan:
    match request:
        case requests.Adopt():
            return adopt.plan(request, facts, topology)
        case requests.Provision():
            return provision.plan(request, facts, topology)
        case requests.Deploy():
            return deploy.plan(request, facts, topology)
        case requests.Scale():
            return scale.plan(request, facts, topology)
        case requests.Replay():
            return replay.plan(request, facts, topology)
        case requests.Stop():
            return stop.plan(request, facts, topology)
        case requests.Restart():
            return restart.plan(request, facts, topology)
        case requests.Rollback():
            return rollback.plan(request, facts, topology)
        case requests.Compact():
            return compact.plan(request, facts, topology)
        case requests.Reposition():
            return reposition.plan(request, facts, topology)
        case requests.Clear():
            return clear.plan(request, facts, topology)
        case requests.Backfill(source="topic"):
            return rebuild.plan(request, facts, topology)
        case requests.Backfill(source="table"):
            return fill.plan(request, facts, topology)
        case requests.Backfill():
            return backfill.plan_from_local(request, facts, topology)
        case requests.Restore(file=str()):
            return put_file_back.plan(request, facts, topology)
        case requests.Restore(at=str()):
            return restore_table.plan(request, facts, topology)
        case requests.Restore():
            return restore.plan(request, facts, topology)


def _facts(request: requests.OfProcessor, source: FactSource, topology: Topology) -> Facts:
    """The facts that a request's verb needs."""
    names = tuple(store.name for store in topology.stores)
    match request:
        case requests.Deploy():
            given_up = [changelog_topic(request.processor, store) for store in request.dropped]
            facts = _with_keys(read_facts(topology, source, releases=True, also=given_up), source, topology)
            name = request.processor
            return replace(facts, workers=source.workers(name), settings=source.settings(name))
        case requests.Replay():
            facts, spec = read_facts(topology, source), topology.dead_letter
            inputs = tuple(each.name for each in topology.sources)
            letters = None if spec is None else source.letters(request.processor, spec.name, inputs)
            return replace(facts, letters=letters)
        case requests.Provision():
            return _with_keys(read_facts(topology, source), source, topology)
        case requests.Scale():
            return replace(read_facts(topology, source, releases=True), workers=source.workers(request.processor))
        case requests.Restart() | requests.Rollback():
            known = source.releases(request.processor)
            kept = {store.changelog for each in known for store in each.shape.stores if store.changelog is not None}
            facts = read_facts(topology, source, also=sorted(kept))
            now, before = source.released(request.processor), source.before(request.processor)
            return replace(facts, releases=known, released=now, before=before)
        case requests.Compact():
            return read_facts(topology, source, hanging=True)
        case requests.Reposition():
            facts = read_facts(topology, source)
            logs = {spec.store: spec.topic.name for spec in topology.changelogs if spec.topic.name in facts.topics}
            return replace(facts, held={store: source.held_inputs(log) for store, log in logs.items()})
        case requests.Restore(file=str(path)):
            file, facts = source.file(path), read_facts(topology, source)
            found = {store: each for store, each in file.stores.items() if store in names and each.named}
            counted = {
                store: held
                for store, each in found.items()
                if (held := source.count(request.processor, store, requests.Keys(each.named), ())) is not None
            }
            return replace(facts, file=file, counted=counted)
        case requests.Restore(at=str()):
            stores = restore_table.affected(request, topology)
            tables = {store: source.store_table(request.processor, store) for store in stores}
            return replace(read_facts(topology, source, releases=True), tables=tables)
        case requests.Backfill(source="table"):
            facts = read_facts(topology, source)
            inputs = topology.inputs_of(request.store)
            spread = {topic: source.spread(topic) for topic in inputs if topic in facts.topics}
            return replace(facts, other=source.other_table(request.table), spread=spread)
        case requests.Clear():
            stores = tuple(store for store in request.stores or names if store in names)
            return read_facts(topology, source, count=(stores, request.selection, request.partitions))
        case _:
            return read_facts(topology, source)


def _with_keys(facts: Facts, source: FactSource, topology: Topology) -> Facts:
    """The facts with the newest keys of the topics that share state."""
    return replace(facts, keys=source.newest_keys(same_partitioner.judged_topics(topology, facts.topics)))
