"""External assets for topics: source topics, repartition topics, and output topics downstream of processors.

Invariants:
    - A topic is one asset, even if several processors read it.
    - Dagster never materialises a topic, because producers write its records.
    - A topic is downstream of the sources that feed it, which have assets of their own.
    - A repartition topic is downstream of the source topics whose messages it contains, and not of its processor.
      Otherwise the graph would have a cycle, because the processor both writes and reads the topic.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.pages.metadata import docs
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.engine.topology import RepartitionSpec


def topic_assets(definitions: Sequence[ProcessorDefinition]) -> list[dg.AssetSpec]:
    """One external asset for each input, output and dead-letter topic of these processors, sorted by name."""
    writers: dict[str, list[ProcessorDefinition]] = {}
    readers: dict[str, list[ProcessorDefinition]] = {}
    specs: dict[str, TopicSpec] = {}
    dead: set[str] = set()
    grouped: dict[str, tuple[ProcessorDefinition, RepartitionSpec]] = {}
    feeds: dict[str, list[tuple[ProcessorDefinition, str]]] = {}
    for definition in definitions:
        topology = definition.topology
        for spec in (*topology.inputs, *topology.global_tables):
            specs.setdefault(spec.name, spec)
        for name in topology.read():
            readers.setdefault(name, []).append(definition)
        for spec in topology.outputs:
            specs.setdefault(spec.name, spec)
            writers.setdefault(spec.name, []).append(definition)
        for source in topology.connectors:
            if source.role == "source":
                feeds.setdefault(source.topics[0], []).append((definition, source.name))
        grouped |= {each.topic: (definition, each) for each in topology.repartitions}
        if topology.dead_letter is not None:
            specs.setdefault(topology.dead_letter.name, topology.dead_letter)
            writers.setdefault(topology.dead_letter.name, []).append(definition)
            dead.add(topology.dead_letter.name)
    return [
        _grouped(specs[name], *grouped[name])
        if name in grouped
        else _fed(
            _topic(specs[name], writers.get(name, []), readers.get(name, []), is_dead_letter=name in dead),
            feeds.get(name, []),
        )
        for name in sorted(specs)
    ]


def topic_facts(definitions: Sequence[ProcessorDefinition], topics: Topics) -> dict[str, dict[str, Any]]:
    """Maps each existing topic of these processors, except changelogs, to its number of partitions and records.

    Raises:
        HoldfastError: Kafka does not answer.
    """
    logs = {log.topic.name for each in definitions for log in each.topology.changelogs}
    names = {spec.name for each in definitions for spec in each.topology.topics()} - logs
    counts = {name: facts.partitions for name, facts in topics.describe(names).items()}
    starts, ends = topics.offsets_of_all(counts, "start"), topics.offsets_of_all(counts, "end")
    return {
        name: {
            "partitions": count,
            "records": sum(ends[name].values()),
            "records_kept": sum(ends[name].values()) - sum(starts[name].values()),
        }
        for name, count in counts.items()
    }


def _topic(
    spec: TopicSpec, writers: list[ProcessorDefinition], readers: list[ProcessorDefinition], *, is_dead_letter: bool
) -> dg.AssetSpec:
    names = [definition.name for definition in writers]
    reading = [definition.name for definition in readers]
    if is_dead_letter:
        text = f"Dead letters of {', '.join(names)}: records that could not be processed, with the reason in headers."
    elif names:
        text = f"Output topic of {', '.join(names)}."
    else:
        text = f"Source topic, read by {', '.join(reading)}."
    # The owners of a topic, as Dagster shows them, are those of the processors that write it. Without such a processor
    # in this installation, they are those of the processors that read it.
    owners = list(dict.fromkeys(owner for definition in writers or readers for owner in definition.owners))
    # Dagster allows no cycles, so a processor that reads and writes the topic is not upstream of the topic.
    deps = [keys.processor_key(name) for name in names if name not in reading]
    return _asset(spec, text, keys.safe(names[0]) if names else keys.SOURCES_GROUP, deps, owners)


def _fed(topic: dg.AssetSpec, feeds: list[tuple[ProcessorDefinition, str]]) -> dg.AssetSpec:
    """The asset of a topic, downstream of the sources that feed it: pairs of a processor and a source's name."""
    if not feeds:
        return topic
    sources = [keys.connector_key(definition.name, "source", name) for definition, name in feeds]
    names = ", ".join(f"{name} of {definition.name}" for definition, name in feeds)
    return topic.replace_attributes(
        deps=[*topic.deps, *sources],
        description=f"{topic.description} Fed by source {names}.",
        group_name=keys.safe(feeds[0][0].name) if topic.group_name == keys.SOURCES_GROUP else topic.group_name,
    )


def _grouped(spec: TopicSpec, processor: ProcessorDefinition, grouping: RepartitionSpec) -> dg.AssetSpec:
    text = (
        f"Repartition topic of {processor.name}: messages of {', '.join(grouping.sources)}, grouped by "
        f"{grouping.name}. Its workers write it, read it, and delete what they have committed."
    )
    deps = [keys.topic_key(source) for source in grouping.sources]
    return _asset(spec, text, keys.safe(processor.name), deps, list(processor.owners))


def _asset(spec: TopicSpec, text: str, group: str, deps: list[dg.AssetKey], owners: list[str]) -> dg.AssetSpec:
    # The layer is stored as a tag, because the asset already has another Dagster group (``group``).
    return dg.AssetSpec(
        keys.topic_key(spec.name),
        deps=deps,
        description=text,
        group_name=group,
        kinds={"kafka"},
        owners=owners,
        tags=keys.tags(keys.TOPICS),
        metadata={
            "topic": spec.name,
            "dagster/uri": f"kafka://{spec.name}",
            **docs("watching.md"),
            "declared_partitions": spec.partitions if spec.partitions is not None else "the cluster's default",
        },
    )
