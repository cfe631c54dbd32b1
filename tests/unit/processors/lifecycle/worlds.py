"""Topologies for tests of plans, and facts (what a command reads of Kafka, supervisor and database before it plans).

The facts describe a processor without faults, unless a test changes them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import Application, State
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.facts import Counted, DeploymentFacts, Facts, InstanceFacts, LocalTask

PARTITIONS = 2


def count(value: dict[str, Any], state: State) -> dict[str, Any]:
    state.set("n", (state.get("n") or 0) + 1)
    return value


def orders_topology(*, changelogs: bool = True) -> Topology:
    application = Application(consumer_group="orders", use_changelog_topics=changelogs)
    frame = application.dataframe(application.topic("placed"))
    frame.apply(count, stateful=True, store="totals")
    frame.apply(count, stateful=True, store="seen")
    return application.topology()


def two_widths_topology() -> Topology:
    """Two subtopologies: ``few`` with store ``narrow``, and ``many`` with store ``wide``."""
    application = Application(consumer_group="orders")
    for topic, store in (("few", "narrow"), ("many", "wide")):
        application.dataframe(application.topic(topic)).apply(count, stateful=True, store=store)
    return application.topology()


def world_of(topology: Topology, **changes: Any) -> Facts:
    """Facts about a processor that runs without faults. Each of ``changes`` replaces one fact."""
    topics = {
        spec.name: TopicFacts(spec.name, f"id-of-{spec.name}", PARTITIONS, 1, dict(spec.config))
        for spec in topology.topics()
    }
    offsets = dict.fromkeys(range(PARTITIONS), 100)
    facts = Facts(
        processor=topology.processor,
        now=1_800_000_000.0,
        topics=topics,
        brokers=1,
        starts={name: dict.fromkeys(range(PARTITIONS), 0) for name in topics},
        ends={name: dict(offsets) for name in topics},
        members=1,
        committed={spec.name: dict(offsets) for spec in topology.inputs},
        deployment=DeploymentFacts(topology.code_version, ("0",), "deployed", 3),
        instances=(InstanceFacts("0", True, "running", topology.code_version, store_bytes=4096),),
        counted={store.name: Counted(10, 640, "the running workers") for store in topology.stores},
    )
    return msgspec.structs.replace(facts, **changes)


def stopped(topology: Topology, **changes: Any) -> Facts:
    """Facts about a processor that was stopped on purpose, and has complete local state."""
    local = tuple(
        LocalTask(
            "0",
            task,
            size_bytes=2048,
            stores={spec.store: (spec.topic.name, f"id-of-{spec.topic.name}", 100) for spec in topology.changelogs},
            inputs={spec.name: 100 for spec in topology.inputs},
        )
        for task in topology.tasks({spec.name: PARTITIONS for spec in topology.inputs})
    )
    down = {
        "members": 0,
        "deployment": DeploymentFacts(topology.code_version, ("0",), "stopped", 3),
        "instances": (InstanceFacts("0", False),),
        "local": local,
    }
    return world_of(topology, **{**down, **changes})
