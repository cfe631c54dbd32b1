"""Why a verb is refused, where several verbs refuse for the same reason."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts import Facts
from holdfast.processors.lifecycle.plans.plan import Refused


def unknown_stores(topology: Topology, stores: Sequence[str]) -> Refused | None:
    """A store that the processor does not have."""
    known = [store.name for store in topology.stores]
    unknown = next((store for store in stores if store not in known), None)
    if unknown is None:
        return None
    near = difflib.get_close_matches(unknown, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return Refused(
        f"{topology.processor} has no store {unknown!r}; it has {', '.join(known) or 'none'}.",
        f"Name one of its stores.{hint}",
        {"store": unknown, "processor": topology.processor},
    )


def unknown_partitions(topology: Topology, facts: Facts, partitions: Sequence[int]) -> Refused | None:
    """A partition that no input has."""
    count = max(
        (facts.topics[spec.name].partitions for spec in topology.inputs if spec.name in facts.topics), default=0
    )
    unknown = next((number for number in partitions if not 0 <= number < count), None)
    if unknown is None:
        return None
    return Refused(
        f"{topology.processor} has no partition {unknown}; its inputs have {count}.",
        f"Name partitions from 0 to {count - 1}." if count else "Create its topics first: provision.",
        {"partition": unknown, "partitions": count},
    )


def not_as_deployed(facts: Facts, topology: Topology) -> Refused | None:
    """The definition is not the one that was deployed: starting its workers would be a deployment."""
    deployed = None if facts.deployment is None else facts.deployment.code_version
    if deployed is None or deployed == topology.code_version:
        return None
    return Refused(
        f"{topology.processor} is defined as version {topology.code_version}, but version {deployed} is deployed: "
        "what is asked for would start another version than the state was made by.",
        f"Deploy first: holdfast apply deploy {topology.processor}.",
        {"defined": topology.code_version, "deployed": deployed},
    )


def missing_topics(facts: Facts, topology: Topology) -> Refused | None:
    """A topic that the processor needs is not there."""
    absent = [spec.name for spec in topology.topics() if spec.name not in facts.topics]
    if not absent:
        return None
    return Refused(
        f"Topics are missing: {', '.join(absent)}.",
        f"Create what is missing: holdfast apply provision {topology.processor}.",
        {"topic": absent[0]},
    )


def without_changelog(topology: Topology, store: str) -> Refused | None:
    """A store whose definition keeps no changelog: there is nothing to fill it through."""
    if topology.changelog_of(store) is not None:
        return None
    return Refused(
        f"Store {store} has no changelog in the definition.",
        "Turn changelogs on (use_changelog_topics=True), deploy, then ask again.",
        {"store": store},
    )


def not_working(facts: Facts, topology: Topology, what: str, then: str = "") -> Refused | None:
    """Not every slot works: nobody could take ``what`` over; ``then`` is said of what follows once it is up."""
    if facts.working and not any(each.paused for each in facts.instances):
        return None
    name = topology.processor
    return Refused(
        f"{name} does not work in every slot: nobody could take {what} over.",
        f"Bring it up: holdfast apply deploy {name}.{then}",
        {"processor": name},
    )
