"""Decides whether local state may be used, and from which input offsets the task continues (the *coherence guard*).

``keep_or_restore`` decides where the replay of a changelog begins.

The functions read no files and no topics. The caller reads the facts and passes them. It first reads the group's
committed offsets, after pending transactions have ended. Then it reads the changelogs' high watermarks. In another
order, it could miss the last transaction of the worker that had the task before.

Invariants:
    - State that does not match the committed input offsets is never used. The error names the command that repairs it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.changelog.format import UNFINISHED
from holdfast.processors.engine.state.databases.task_meta import RESEEDING
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.topology import SourceLog, Topology

#: Kafka's default of delete.retention.ms, used if a changelog's configuration can't be read.
DELETE_RETENTION_MS_DEFAULT = 86_400_000


@dataclass(frozen=True, slots=True)
class ChangelogFacts:
    """What the checks must know about one partition of a changelog.

    If a topic is deleted and created again, its ``topic_id`` changes. ``start`` is the first offset, ``end`` the high
    watermark. Kafka keeps tombstones for ``delete_retention_s`` seconds.

    A table without a changelog is restored from its own topic (``source``); then ``end`` is the group's committed
    offset. Among the records before offset ``young_from``, Kafka may already have removed tombstones.
    """

    topic: str
    topic_id: str
    start: int
    end: int
    delete_retention_s: float
    source: SourceLog | None = None
    young_from: int = 0


def delete_retention_s(facts: TopicFacts) -> float:
    """Returns the number of seconds for which a topic keeps tombstones."""
    return int(facts.config.get("delete.retention.ms", DELETE_RETENTION_MS_DEFAULT)) / 1000


def not_to_wipe(task: str, stores: Sequence[str], why: str) -> StateIncoherent:
    """Returns the error for local state that must not be deleted, because no changelog contains its content."""
    return StateIncoherent(
        f"Task {task}: the local state of {', '.join(stores)} does not belong to its changelog ({why}), and dropping "
        "it would lose it.",
        action=_from_local(*stores),
        cause="changelog-truncated",
        task=task,
        store=stores[0] if stores else "",
    )


#: A hint for errors about a store without data: the data may be stored under a former store name. In earlier versions
#: of Holdfast, a step without `store=` had the store `default` or `aggregate`.
NAMED_ANEW = " If its state has a former name, such as `default`, keep that name: `store=...`, or `renamed_stores`."
#: The suggested action if a store of schedules, a source or durable calls has no data. Such a store can't be rebuilt
#: from the input.
NOT_OF_INPUT = (
    "If the schedule, source or durable call is new, deploy this version: `holdfast apply deploy PROCESSOR` lets the "
    "store begin empty. Without a deployment, begin at the first message again, which sends outputs again: "
    "`holdfast apply clear PROCESSOR --all --rewind earliest`, or in a test "
    "`cluster.clear_state(app, rewind='earliest')`."
)


def check_inputs(
    task: str,
    state_inputs: Mapping[str, Mapping[str, int]],
    committed: Mapping[str, int | None],
    fed_by: Mapping[str, Collection[str]] | None = None,
    chained: Collection[str] = (),
    not_of_input: Collection[str] = (),
) -> dict[str, int]:
    """Checks that the state matches the group's committed offsets, and returns the next input offset of each topic.

    Each store must include exactly the messages before the committed offsets.

    Args:
        state_inputs: For each store, the input offsets of its last meta record (the changelog record with the offsets
            of a commit); empty for a store that was never written.
        committed: The group's committed offset of each input topic; None without a commit.
        fed_by: For each store, the topics whose messages change the store. The task's remaining topics are not checked,
            because an older version of the processor may not have recorded their offsets. A store without an entry
            depends on all topics.
        chained: The stores before or after a repartition topic. Such a store can't be rebuilt without the other stores
            on both sides of the topic.
        not_of_input: The stores of schedules, sources and durable calls. Their state does not follow from the input, so
            it can't be built again from the input.

    Raises:
        StateIncoherent: The state includes fewer or more messages than the group has committed.
    """
    for store, inputs in state_inputs.items():
        if UNFINISHED in inputs.values():
            raise _unfinished(task, store)
        counts = (fed_by or {}).get(store, committed)
        # Topics with a committed offset above 0 are checked first, because their errors explain better which data is
        # missing.
        for topic, offset in sorted(committed.items(), key=lambda each: not each[1]):
            held = inputs.get(topic)
            if held == offset or topic not in counts:
                continue
            if held is None or (offset is not None and held < offset):
                raise StateIncoherent(
                    f"Task {task}: the group has committed {topic} up to {offset}, but store {store} holds "
                    f"{'nothing of it' if held is None else f'it only up to {held}'}: its changelog lost records, or "
                    "the store is new.",
                    action=NOT_OF_INPUT
                    if store in not_of_input
                    else _rebuild(store, chained=store in chained) + (NAMED_ANEW if held is None else ""),
                    cause="changelog-truncated",
                    task=task,
                    store=store,
                    topic=topic,
                    seen=held,
                    expected=offset,
                )
            raise StateIncoherent(
                f"Task {task}: store {store} holds {topic} up to {held}, but the group's committed offset is "
                f"{'none' if offset is None else offset}: the offsets were reset, or they expired. Processing the "
                "input again would count it twice.",
                action=f"Set the group's offset of {topic} back to {held}: `holdfast apply reposition PROCESSOR`.",
                cause="offsets-reset",
                task=task,
                store=store,
                topic=topic,
                seen=offset,
                expected=held,
            )
    return {topic: offset for topic, offset in committed.items() if offset is not None}


def _rebuild(store: str, *, chained: bool) -> str:
    """Returns the suggested action for a store that must be built again from its source topics."""
    if chained:
        return (
            "Build all state again from the sources, because the store is in one chain with `group_by` or a join by a "
            "foreign key: `holdfast apply stop PROCESSOR`, then `holdfast apply clear PROCESSOR --all --rewind "
            "earliest`. Outputs are sent again."
        )
    return f"Rebuild the store from its source: `holdfast apply backfill PROCESSOR --store {store} --from topic`."


def check_restore_age(task: str, age_s: float, changelogs: Mapping[str, ChangelogFacts]) -> None:
    """Raises StateIncoherent if a restore took longer than delete.retention.ms and may have missed tombstones."""
    for facts in changelogs.values():
        if age_s > facts.delete_retention_s:
            raise StateIncoherent(
                f"Restoring task {task} took {age_s:.0f} s, longer than deletes stay in {facts.topic} "
                f"({facts.delete_retention_s:.0f} s): deleted keys could come back.",
                action=f"Raise `delete.retention.ms` of {facts.topic} to several times this duration, then restart.",
                cause="bad-configuration",
                task=task,
                topic=facts.topic,
                seen=age_s,
                expected=facts.delete_retention_s,
            )


def check_sources_same(task: str, known: Mapping[str, str], seen: Mapping[str, str]) -> None:
    """Raises StateIncoherent if a source topic was deleted and created again since the state was built.

    For each topic, ``known`` has the topic id when the state was built, and ``seen`` the current topic id.
    """
    for topic, topic_id in known.items():
        if topic in seen and seen[topic] != topic_id:
            raise source_recreated(task, topic, seen[topic], topic_id)


def source_recreated(task: str, topic: str, seen: str, expected: str) -> StateIncoherent:
    """Returns the error for a source topic whose topic id differs from the id that the state was built from."""
    return StateIncoherent(
        f"Task {task}: source {topic} was recreated (topic id {seen}, the state was built from {expected}): its "
        "offsets mean other records now.",
        action=_REBUILD,
        cause="source-recreated",
        task=task,
        topic=topic,
        seen=seen,
        expected=expected,
    )


def check_source(topic: str, partition: int, committed: int | None, start: int, end: int) -> None:
    """Raises StateIncoherent if the source topic no longer has the committed offset.

    ``committed`` is None if the group has committed no offset. ``end`` is the high watermark, which is read after
    ``committed``.
    """
    if committed is not None and committed > end:
        raise StateIncoherent(
            f"Source {topic}[{partition}] ends at offset {end}, but {committed} is processed: it was truncated or "
            "recreated.",
            action=_REBUILD,
            cause="source-recreated",
            topic=topic,
            partition=partition,
            seen=end,
            expected=committed,
        )
    if committed is not None and committed < start:
        raise StateIncoherent(
            f"Source {topic}[{partition}] begins at offset {start}, but only {committed} is processed: "
            f"{start - committed} records are gone.",
            action="Skip these records, which the state will lack: `holdfast apply reposition PROCESSOR`.",
            cause="source-truncated",
            topic=topic,
            partition=partition,
            seen=start,
            expected=committed,
        )


def source_missing(topic: str) -> TopicUnusable:
    """Returns the error for a missing source topic."""
    return TopicUnusable(
        f"Source topic {topic} is not there.",
        action="Create the topic, or correct its name.",
        cause="source-missing",
        topic=topic,
    )


def topic_missing(topic: str, topology: Topology) -> HoldfastError:
    """Returns the error for a missing topic. Its action depends on the role: changelog, input, output, dead letters."""
    if topology.store_of(topic) is not None:
        return changelog_missing(topic, topology)
    if any(spec.name == topic for spec in topology.inputs):
        return source_missing(topic)
    role = "Dead-letter" if topology.dead_letter is not None and topology.dead_letter.name == topic else "Output"
    return TopicUnusable(
        f"{role} topic {topic} is missing.",
        action=f"Create it and continue, nothing is lost: `holdfast apply deploy {topology.processor}`.",
        cause="output-missing",
        topic=topic,
    )


def changelog_missing(topic: str, topology: Topology) -> StateIncoherent:
    """Returns the error for a missing changelog."""
    store = topology.store_of(topic)
    return StateIncoherent(
        f"Changelog {topic} is not there.",
        action=_from_local(store or "STORE"),
        cause="changelog-missing",
        topic=topic,
        store=store,
    )


def changelog_recreated(task: str, store: str, topic: str, seen: str, expected: str) -> StateIncoherent:
    """Returns the error for a changelog whose topic id differs from the id in the local state."""
    was = "is being rewritten from local state" if expected == RESEEDING else "was recreated"
    return StateIncoherent(
        f"Task {task}: changelog {topic} {was} (topic id {seen}, the state of store {store} belongs to {expected}).",
        cause="changelog-recreated",
        action=_from_local(store),
        task=task,
        store=store,
        seen=seen,
        expected=expected,
    )


def changelog_another(task: str, store: str, topic: str, former: str) -> StateIncoherent:
    """Returns the error for local state that belongs to another topic than the store's changelog.

    For example, a table that was restored from its source topic now has a changelog.
    """
    return StateIncoherent(
        f"Task {task}: the local state of store {store} belongs to topic {former}, but the changelog of the store is "
        f"{topic} now, which was not written with this state.",
        cause="changelog-recreated",
        action=_from_local(store),
        task=task,
        store=store,
        seen=topic,
        expected=former,
    )


def changelog_too_narrow(topic: str, partition: int) -> StateIncoherent:
    """Returns the error for a changelog that lacks this partition, although the store's source topic has it."""
    return StateIncoherent(
        f"Changelog {topic} has no partition {partition}, but the store's source has: partitions were added to it.",
        action=_REBUILD,
        cause="source-repartitioned",
        topic=topic,
        partition=partition,
    )


def _unfinished(task: str, store: str) -> StateIncoherent:
    return StateIncoherent(
        f"Task {task}: the changelog of store {store} is being written from the warehouse, and is not complete yet.",
        action="Finish that restore with `holdfast apply resume N`; `holdfast apply list PROCESSOR` shows N.",
        cause="restore-unfinished",
        task=task,
        store=store,
    )


def changelog_truncated(task: str, store: str, facts: ChangelogFacts, held: int) -> StateIncoherent:
    """Returns the error for a changelog without the records from offset ``held`` on, where the replay must begin."""
    if facts.source is not None:
        return StateIncoherent(
            f"Task {task}: topic {facts.topic} begins at offset {facts.start}, but store {store} would be restored "
            f"from {held}: rows of the table are gone.",
            action=f"Write the rows to {facts.topic} again, then build the state from it: `holdfast apply clear "
            "PROCESSOR --all --rewind earliest`.",
            cause="source-recreated",
            task=task,
            store=store,
            topic=facts.topic,
            seen=facts.start,
            expected=held,
        )
    return StateIncoherent(
        f"Task {task}: changelog {facts.topic} has offsets {facts.start} to {facts.end}, but store {store} would be "
        f"replayed from {held}: the changelog was truncated.",
        action=_from_local(store),
        cause="changelog-truncated",
        task=task,
        store=store,
        seen=facts.start,
        expected=held,
    )


#: The suggested action if both the changelog and the local state are lost: rebuild the state from its source topics.
_REBUILD = "Rebuild all state from the source: `holdfast apply clear PROCESSOR --all --rewind earliest`."


def _from_local(*stores: str) -> str:
    """Returns the suggested action for lost changelogs: write them again from the local state of these stores."""
    commands = "`, `".join(f"holdfast apply backfill PROCESSOR --store {store} --from local" for store in stores)
    return f"Write the changelog from local state: `{commands}`. If local state is lost or wrong: {_REBUILD}"
