"""Builds the frozen, checked description (``Topology``) of an application from its declarations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.application.arguments import (
    check_calls,
    check_dead_letters,
    check_late,
    check_own_topics,
    check_stores_named,
    check_strategy,
    check_time,
    check_time_before_groups,
)
from holdfast.processors.application.schedules import check_one_task
from holdfast.processors.application.source_tables import check_source_tables, check_time_of_tables
from holdfast.processors.engine.changelog.config import chosen_config
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.connectors import ConnectorSpec, check_system
from holdfast.processors.engine.dataframe.calls import call_of
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.groups import Streams
from holdfast.processors.engine.dataframe.sinks import named_sinks, stores_of_sinks
from holdfast.processors.engine.dataframe.store_specs import described_stores, with_meaning
from holdfast.processors.engine.joins.global_tables import GlobalTable
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.schedules.declaration import Schedule
from holdfast.processors.engine.sinks.errors import SinkInvalid
from holdfast.processors.engine.sinks.staging import STORE_PREFIX
from holdfast.processors.engine.sources.declaration import DeclaredSource
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.node import Node, steps_of
from holdfast.processors.engine.steps.store_options import StoreOptions
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.topology import (
    SCHEDULES,
    SINK,
    SOURCE,
    ChangelogSpec,
    RepartitionSpec,
    SourceLog,
    StoreSpec,
    Subtopology,
    Topology,
    code_version_of,
    source_of,
    subtopologies_of,
)

#: `min.compaction.lag.ms` (one day) of a new topic that is the source of a table and also serves as its changelog.
SOURCE_LAG_MS = "86400000"


@dataclass(frozen=True, slots=True)
class Declared:
    """The declarations of an application, from which ``describe`` builds the topology.

    ``changelog_config`` is None if the application has no changelogs.
    """

    group: str
    frames: Mapping[str, StreamingDataFrame]
    stores: Mapping[str, StoreOptions]
    changelog_config: Mapping[str, Mapping[str, Any]] | None
    renamed_stores: Mapping[str, str]
    dead_letter_topic: str | None
    consumer_config: Mapping[str, Any]
    global_tables: Mapping[str, GlobalTable]
    table_topics: Collection[str]
    source_logs: Sequence[SourceLog]
    streams: Streams[StreamingDataFrame]
    exactly_once: bool
    prove: bool
    #: Whether the application has `on_processing_error`, which is called for failed messages.
    asks: bool = False
    #: Whether a partition without a committed offset is read from its end (``auto_offset_reset="latest"``).
    skips_old: bool = False

    @property
    def topics(self) -> list[Topic]:
        """The topics that the application reads or writes.

        A ``Topic`` object that is used several times is listed once.
        """
        written = [node.topic for node in steps_of(frame.source for frame in self.frames.values()) if node.topic]
        written += [topic for each in self.streams.schedules.by_name.values() for topic in each.outputs]
        read = [*(frame.topic for frame in self.frames.values()), *(each.topic for each in self.global_tables.values())]
        return list({id(topic): topic for topic in (*read, *written)}.values())

    @property
    def format_lines(self) -> list[str]:
        """Text lines that describe the topics' serializers with a schema.

        They are part of the application's version hash.
        """
        return sorted({f"{topic.name} {line}" for topic in self.topics for line in topic.formats.lines})


def describe(app: Declared) -> Topology:
    """Builds and checks the description of an application.

    Raises:
        ApplicationInvalid: Parts of the application contradict each other.
        StepInvalid: Steps that share a store contradict each other.
        AsyncInvalid: A step that awaits async calls comes after a step with state or outputs.
        SchemaInvalid: A model can't become columns.
        JoinInvalid: In a join by a foreign key, a task would send messages to a topic that the task itself reads.
    """
    nodes = {name: frame.source.walk() for name, frame in app.frames.items()}
    users, outputs, feeds = _users_of(app, nodes)
    inputs = _inputs(app)
    steps = steps_of(frame.source for frame in app.frames.values())
    scheduled = _scheduled(app)
    stores = with_meaning(described_stores(steps, users, app.stores), _sources(app))
    stores += _stores_of_schedules(scheduled, users)
    stores += _stores_of_sources(sourced := app.streams.sources.by_store(), (*users, *scheduled))
    stores += _stores_of_sinks(nodes, (*users, *scheduled, *sourced), kept=app.changelog_config is not None)
    for topic in (topic for _, schedules in scheduled.values() for each in schedules for topic in each.outputs):
        outputs[topic.name] = topic.spec()
    has_changelogs, config = app.changelog_config is not None, app.changelog_config or {}
    check_time(stores, loses_commits=app.exactly_once and not has_changelogs)
    check_time_before_groups(stores, {} if has_changelogs else feeds)
    check_calls(() if has_changelogs else stores)
    changelogs = tuple(
        ChangelogSpec(
            store.name,
            TopicSpec(changelog_topic(app.group, store.name), config=chosen_config(store.name, config.get(store.name))),
        )
        for store in stores
        if has_changelogs and store.name not in {log.store for log in app.source_logs}
    )
    check_stores_named("changelog_config", config, (*users, *scheduled, *sourced))
    check_stores_named("renamed_stores", app.renamed_stores.values(), (*users, *scheduled, *sourced))
    check_stores_named("app.store()", app.stores, users)
    read = (*inputs, *(each.topic.spec() for each in app.global_tables.values()))
    taken = [spec.name for spec in (*read, *outputs.values(), *(each.topic for each in changelogs))]
    check_dead_letters(app.group, app.dead_letter_topic, taken)
    check_own_topics(app.group, feeds, (*outputs, *(each.topic.name for each in app.global_tables.values())))
    late = [node.store or "" for node in steps if getattr(node.window, "on_late", None) == "dead-letter"]
    aside = app.dead_letter_topic is not None or app.asks
    check_late(late, goes_somewhere=aside)
    subtopologies = subtopologies_of(tuple(spec.name for spec in inputs), stores)
    check_one_task(scheduled, [sub.inputs for sub in subtopologies])
    _check_source_tables(app, stores, subtopologies, aside=aside)
    described = Topology(
        processor=app.group,
        inputs=inputs,
        outputs=tuple(outputs.values()),
        dead_letter=None if app.dead_letter_topic is None else TopicSpec(app.dead_letter_topic),
        stores=stores,
        changelogs=changelogs,
        subtopologies=subtopologies,
        prove=app.prove and _is_provable(app, steps),
        table_topics=tuple(name for name in app.frames if name in app.table_topics),
        global_tables=tuple(_table_topic(each.topic) for each in app.global_tables.values()),
        repartitions=_grouped(app.frames, feeds),
        source_logs=tuple(app.source_logs),
        connectors=(*_described_sources(app), *_described_sinks(nodes, _sources(app))),
    )
    _check_circles(described, [app.frames[name].topic for name in feeds if app.frames[name].topic.between])
    check_strategy(app.consumer_config, described)
    functions = [code for node in steps for code in node.functions]
    functions += [code for options in app.stores.values() for code in options.functions]
    functions += [each.function for _, schedules in scheduled.values() for each in schedules]
    functions += [code for each in sourced.values() for code in each.functions]
    texts = [*map(source_of, functions), *(node.rule for node in steps), *app.format_lines, *_places(steps)]
    return replace(described, code_version=code_version_of(described, "".join(texts)))


def _users_of(
    app: Declared, nodes: Mapping[str, Sequence[Node]]
) -> tuple[dict[str, list[str]], dict[str, TopicSpec], dict[str, list[str]]]:
    """Returns three mappings that show which streams use the stores and topics.

    The mappings: store to the streams that use it, output topic to its description, and repartition topic to the
    streams that write to it. Streams are given by the names of their input topics.
    """
    users: dict[str, list[str]] = {}
    outputs: dict[str, TopicSpec] = {}
    feeds: dict[str, list[str]] = {}
    for name, steps in nodes.items():
        call_of(app.frames[name].source)
        for node in steps:
            if node.store is not None and name not in users.setdefault(node.store, []):
                users[node.store].append(name)
            if node.topic is not None and node.topic.repartitions:
                feeds.setdefault(node.topic.name, []).append(name)
            elif node.topic is not None:
                outputs[node.topic.name] = node.topic.spec()
    return users, outputs, feeds


def _is_provable(app: Declared, steps: Sequence[Node]) -> bool:
    """Whether a new version can be tested on the last messages.

    False with a global table or a table with ``changelog="source"``, because the rows of older messages would be
    missing. Also False with a sink, because the test would write to the external system of the sink. Also False with a
    source, because a source is user code that fills a topic. Also False with durable calls, because the test would
    repeat answered calls.
    """
    has_sinks = any(node.outbox and node.topic is None for node in steps)
    is_durable = any(node.call is not None and node.call.answers is not None for node in steps)
    return not (app.global_tables or app.source_logs or app.streams.sources.by_name or has_sinks or is_durable)


def _places(steps: Sequence[Node]) -> list[str]:
    """Returns texts with the positions of steps, for the version hash, which must change if steps change places.

    Only steps of certain kinds have such a text. Its form is ``before<at kind``: the number of the previous step, the
    step's own number, and its kind.
    """
    number = {id(node): at for at, node in enumerate(steps)}
    before = {id(child): number[id(node)] for node in steps for child in node.children}
    return [
        f" {before.get(id(node))}<{at} {node.kind}"
        for at, node in enumerate(steps)
        if node.of_engine is not None and node.of_engine.stands_in_order
    ]


def _scheduled(app: Declared) -> dict[str, tuple[str, tuple[Schedule, ...]]]:
    """Maps each store of schedules to its input topic and its schedules."""
    # An application without an input cannot start a worker, so its schedules never run.
    if not app.streams.schedules.by_name or not app.frames:
        return {}
    return app.streams.schedules.by_store({name: frame.topic.label for name, frame in app.frames.items()})


def _stores_of_schedules(
    scheduled: Mapping[str, tuple[str, tuple[Schedule, ...]]], users: Collection[str]
) -> tuple[StoreSpec, ...]:
    made = []
    for store, (topic, schedules) in scheduled.items():
        if store in users:
            raise StepInvalid(
                f"Store {store!r} has the slots of schedule {schedules[0].name!r}, and a step uses it, too.",
                action="Give the store of the step another name.",
                store=store,
            )
        uses = tuple(each.use for each in schedules)
        made.append(StoreSpec(store, (topic,), SCHEDULES, columns=tuple(use.text() for use in uses), uses=uses))
    return tuple(made)


def _stores_of_sources(sourced: Mapping[str, DeclaredSource], users: Collection[str]) -> tuple[StoreSpec, ...]:
    for store, each in sourced.items():
        if store in users:
            raise StepInvalid(
                f"Store {store!r} has the state of source {each.name!r}, and a step uses it, too.",
                action=f"Give the store of the step another name, for example `steps-of-{each.name}`; sources take the "
                "names `source-<name of the source>`.",
                store=store,
            )
    return tuple(
        StoreSpec(store, (each.topic.name,), SOURCE, columns=(each.use.text(),), uses=(each.use,))
        for store, each in sourced.items()
    )


def _stores_of_sinks(
    nodes: Mapping[str, Sequence[Node]], users: Collection[str], *, kept: bool
) -> tuple[StoreSpec, ...]:
    """Returns the stores with the lists of staging sinks. ``kept`` is whether stores have changelogs.

    Raises:
        SinkInvalid: Two steps have a sink of one name, a step uses the store, or stores have no changelogs.
    """
    steps: dict[str, dict[int, list[str]]] = {}
    for topic, each in nodes.items():
        for place, store in stores_of_sinks(each).items():
            steps.setdefault(store, {}).setdefault(place, []).append(topic)
    for store, places in steps.items():
        name = store.removeprefix(STORE_PREFIX)
        if len(places) > 1 or store in users:
            raise SinkInvalid(
                f"Two steps have a sink of the name {name!r}, or a step has the store {store!r}; expected one sink.",
                action="Give each step a sink of its own, with `name='another'`.",
                name=name,
            )
        if not kept:
            raise SinkInvalid(
                f"Sink {name!r} keeps the list of what it stages in state, but use_changelog_topics is off.",
                action="Set `use_changelog_topics=True`.",
                name=name,
            )
    return tuple(
        StoreSpec(store, tuple(*places.values()), SINK, columns=("what a sink has staged",))
        for store, places in steps.items()
    )


def _described_sources(app: Declared) -> list[ConnectorSpec]:
    return [
        ConnectorSpec(
            name,
            "source",
            type(each.source).__name__,
            check_system(each.source.connects_to, f"source {name!r}"),
            (each.topic.name,),
        )
        for name, each in app.streams.sources.by_name.items()
    ]


def _described_sinks(nodes: Mapping[str, Sequence[Node]], sources: Mapping[str, Node]) -> list[ConnectorSpec]:
    found = []
    for name, steps in named_sinks(sources.values()).items():
        sink, those = steps[0].sink, {id(step) for step in steps}
        topics = tuple(topic for topic, own in nodes.items() if any(id(node.function) in those for node in own))
        system = check_system(sink.connects_to, f"sink {name!r}")
        found.append(ConnectorSpec(name, "sink", type(sink).__name__, system, topics))
    return found


def _sources(app: Declared) -> dict[str, Node]:
    return {name: frame.source for name, frame in app.frames.items()}


def _inputs(app: Declared) -> tuple[TopicSpec, ...]:
    logs = {log.topic for log in app.source_logs}
    return tuple(
        _table_topic(each.topic, is_log=name in logs) if name in app.table_topics else each.topic.spec()
        for name, each in app.frames.items()
    )


def _check_source_tables(
    app: Declared, stores: Sequence[StoreSpec], subtopologies: Sequence[Subtopology], *, aside: bool
) -> None:
    """Raises ApplicationInvalid if a table with ``changelog="source"`` can't be restored from its topic."""
    named = None if app.changelog_config is None else (*app.stores, *app.changelog_config)
    check_source_tables(app.source_logs, _sources(app), named, skips_old=app.skips_old, aside=aside)
    check_time_of_tables(app.source_logs, stores, subtopologies, aside=aside)


def _grouped(
    frames: Mapping[str, StreamingDataFrame], feeds: Mapping[str, Sequence[str]]
) -> tuple[RepartitionSpec, ...]:
    """Returns the specifications of the repartition topics, in the order in which messages pass them."""
    return tuple(
        RepartitionSpec(frame.topic.group_by, topic, tuple(feeds[topic]), frame.topic.label)
        for topic, frame in frames.items()
        if topic in feeds
    )


def _check_circles(described: Topology, topics: Iterable[Topic]) -> None:
    """Raises JoinInvalid if tasks both write and read one of ``topics``, because such a task would wait for itself.

    ``topics`` are topics that the engine puts between two steps, for example for a join by a foreign key.
    """
    for topic in topics:
        name = topic.name
        if described.feeds_itself(name):
            inputs = ", ".join(described.subtopology_of(name).inputs)
            in_another_task = (
                "Join a table with its own groups by a key inside the row: `table.join(groups, on='status')`"
                if topic.between == "table groups"
                else "Join a global table: `table.to_stream().join_table(app.global_table(topic), on=...)`"
            )
            raise JoinInvalid(
                "The tables of a join with `on=`, or a table and its groups, share stores in another way, too: "
                f"{name} would be read by tasks that its messages come from. A task of {inputs} would wait for itself.",
                action=f"{in_another_task}; or send the results of a step to a topic, and read that topic in another "
                "application.",
                topic=name,
            )


def _table_topic(topic: Topic, *, is_log: bool = False) -> TopicSpec:
    """Returns the configuration with which a missing topic of a table is created.

    The topic is compacted. If it also serves as a changelog (``is_log``), records are compacted after a day at the
    earliest.
    """
    spec = topic.spec()
    waits = {"min.compaction.lag.ms": SOURCE_LAG_MS} if is_log else {}
    return replace(spec, config={"cleanup.policy": "compact", **waits, **spec.config})
