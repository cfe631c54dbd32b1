"""Makes the plan for a request: reads the facts that the request needs, and calls the planner of its command."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans import requests
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.facts import Facts, FactSource, read_facts
from holdfast.processors.lifecycle.plans.facts.orphans import OrphanSource
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.verbs import clean, put_back, replay
from holdfast.processors.lifecycle.verbs.refusals import held_elsewhere, never_worked, registry_behind
from holdfast.processors.lifecycle.verbs.releases import adopt, deploy, provision, restart, rollback, scale, stop
from holdfast.processors.lifecycle.verbs.state import (
    backfill,
    clear,
    compact,
    erase,
    fill,
    put_file_back,
    rebuild,
    reposition,
    restore,
    restore_table,
)


def plan_for(request: requests.OfProcessor, source: FactSource, topology: Topology) -> Plan:
    """Reads the data that a request needs (from Kafka, workers, Holdfast's registry), and returns the request's plan.

    Raises:
        HoldfastError: The data for the plan cannot be read.
    """
    facts = _facts(request, source, topology)
    if isinstance(request, requests.Backfill | requests.Restore | requests.Clear):
        facts = replace(facts, erased=source.erasures(request.processor))
    return decide(request, facts, topology)


def plan_of_installation(request: requests.OfInstallation, source: OrphanSource) -> Plan:
    """Returns the plan of a request for the whole installation, after reading the data that the plan needs.

    Raises:
        HoldfastError: The data for the plan cannot be read.
    """
    match request:
        case requests.Clean():
            return clean.plan(request, source.orphans())
        case requests.PutBack(topic=topic):
            copy, exists = source.topic_copy(topic)
            return put_back.plan(request, copy, exists=exists)


def decide(request: requests.OfProcessor, facts: Facts, topology: Topology) -> Plan:
    """Returns the plan for a request, decided only from facts that were already read."""
    refused = held_elsewhere(request, facts) or registry_behind(request, facts) or never_worked(request, facts)
    if refused is not None:
        return Plan(request=request, verdict=refused)
    decided = _decided(request, facts, topology)
    return replace(decided, findings=(*_left_over(facts), *_erased_before(request, facts), *decided.findings))


def _erased_before(request: requests.OfProcessor, facts: Facts) -> tuple[str, ...]:
    """A text about erased keys whose messages the verb would read again; otherwise empty."""
    match request:
        case requests.Backfill(source="topic") | requests.Clear(rewind="earliest"):
            erased = facts.erased
        case requests.Restore(at=str()) if request.inputs != "stay":
            erased = facts.erased
        case _:
            erased = ()
    if not erased:
        return ()
    marks = {each.mark for each in erased}
    keys, were = count_of(len(marks), "key"), "was" if len(marks) == 1 else "were"
    moment = datetime.fromtimestamp(max(each.begun_at for each in erased), UTC).isoformat(timespec="seconds")
    return (
        f"{keys} of {facts.processor} {were} erased, the last at {moment}: messages of these keys that are still in "
        f"the inputs make state again. `holdfast erased {facts.processor} --look` finds it afterwards",
    )


def _left_over(facts: Facts) -> tuple[str, ...]:
    """A text about workers that an interrupted apply (execution of a plan) left running; otherwise empty."""
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
        case requests.Erase():
            return erase.plan(request, facts, topology)
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
    """Reads the facts that the planner of the request's command needs."""
    match request:
        case requests.Deploy():
            return deploy.read(request, source, topology)
        case requests.Replay():
            return replay.read(request, source, topology)
        case requests.Provision():
            return provision.read(request, source, topology)
        case requests.Scale():
            return scale.read(request, source, topology)
        case requests.Restart() | requests.Rollback():
            return rollback.read(request, source, topology)
        case requests.Compact():
            return compact.read(request, source, topology)
        case requests.Reposition():
            return reposition.read(request, source, topology)
        case requests.Restore(file=str()):
            return put_file_back.read(request, source, topology)
        case requests.Restore(at=str()):
            return restore_table.read(request, source, topology)
        case requests.Backfill(source="table"):
            return fill.read(request, source, topology)
        case requests.Clear():
            return clear.read(request, source, topology)
        case requests.Erase():
            return erase.read(request, source, topology)
        case _:
            return read_facts(topology, source)
