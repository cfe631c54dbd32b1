"""Creates missing topics when a processor starts, and checks that no other processor uses its repartition topics."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.errors import AccessRefused, TopicUnusable
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine import provisioning, same_partitioner
from holdfast.processors.engine.changelog.names import other_processors_of
from holdfast.processors.engine.runtime.ports import TopicView
from holdfast.processors.engine.topology import Topology


def prepare(
    topics: TopicView, topology: Topology, *, may_create: bool
) -> tuple[Mapping[str, TopicFacts], tuple[str, ...]]:
    """Create the processor's missing topics if ``may_create`` is True, and check its repartition topics.

    Returns the facts of all topics by name, and warnings about inputs that share state but have different partitioners.
    The warnings are already logged. Raises the errors of ``provisioning.prepare`` and
    ``same_partitioner.check_at_start``, too.

    Raises:
        TopicUnusable: Another processor has a repartition topic with the same name, and has read it.
    """
    facts = provisioning.prepare(topics, topology, may_create=may_create)
    for spec in topology.repartitions:
        for other in other_processors_of(spec.topic, topology.processor):
            if _has_read(topics, other, spec.topic):
                raise TopicUnusable(
                    f"Topic {spec.topic} of `group_by` {spec.name!r} is also the topic of a `group_by` of processor "
                    f"{other}, which has read it: each would count the messages of the other.",
                    action=f"Give the `group_by` another `name`. If {other} is gone, delete its consumer group.",
                    topic=spec.topic,
                    other=other,
                )
    return facts, same_partitioner.check_at_start(topics, topology, facts)


def _has_read(topics: TopicView, group: str, topic: str) -> bool:
    try:
        return any(place.topic == topic for place in topics.committed_offsets(group))
    # This client may not read the offsets of the other group. Assume that the other group has not read the topic.
    except AccessRefused:
        return False
