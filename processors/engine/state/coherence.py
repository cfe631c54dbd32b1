"""The coherence guard: may this state run on, from where is it replayed, and does it fit the input offsets?

Pure functions over facts that were read in this order (anything else can miss the last batch of a former owner):
the group's committed offsets with pending transactions waited for, *then* the changelogs' high watermarks.

Invariants:
    - State that does not belong to the committed input offsets never runs; the error says which command mends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.changelog.format import UNFINISHED
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.task_store import RESEEDING, TaskMeta
from holdfast.processors.engine.topology import Topology

#: Local state may be older than this part of delete.retention.ms before its deletes may be missing.
RETENTION_PART_SAFE = 0.75
#: Kafka's default of delete.retention.ms, for changelogs whose configuration can't be read.
DELETE_RETENTION_MS_DEFAULT = 86_400_000
#: Clocks are set back by less than this without anybody noticing, in seconds.
CLOCK_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class ChangelogFacts:
    """One partition of a changelog: ``end`` is the high watermark, ``delete_retention_s`` how long deletes stay."""

    topic: str
    topic_id: str
    start: int
    end: int
    delete_retention_s: float


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """From which offset each store's changelog is replayed; ``wipe`` says to start from nothing, and why."""

    starts: Mapping[str, int]
    wipe: str | None = None


def delete_retention_s(facts: TopicFacts) -> float:
    """How long deletes stay in a topic, in seconds."""
    return int(facts.config.get("delete.retention.ms", DELETE_RETENTION_MS_DEFAULT)) / 1000


def plan_restore(task: str, meta: TaskMeta | None, changelogs: Mapping[str, ChangelogFacts], now: float) -> RestorePlan:
    """Decide the replay of one task (store name -> first offset).

    Args:
        task: The task's name, for messages.
        meta: The offsets in the local store; None when it is new.
        changelogs: Facts by store name.
        now: Wall-clock seconds since 1970.

    Raises:
        StateIncoherent: A changelog was recreated or truncated behind the local state.
    """
    starts: dict[str, int] = {}
    for store, facts in changelogs.items():
        at = meta.stores.get(store) if meta is not None else None
        if at is None:
            if facts.start > 0:
                raise _truncated(task, store, facts, 0)
            starts[store] = facts.start
            continue
        if at.topic_id != facts.topic_id:
            raise changelog_recreated(task, store, facts.topic, facts.topic_id, at.topic_id)
        if at.offset > facts.end or at.offset < facts.start:
            raise _truncated(task, store, facts, at.offset)
        assert meta is not None
        doubt = doubt_of_age(now - meta.complete_at, facts, at.offset, restoring=meta.restoring)
        if doubt is not None:
            for name, known in changelogs.items():
                if known.start > 0:
                    raise _truncated(task, name, known, 0)
            return RestorePlan({name: known.start for name, known in changelogs.items()}, wipe=doubt)
        starts[store] = at.offset
    return RestorePlan(starts)


def without_emptied(
    meta: TaskMeta | None, stores: Set[str], changelogs: Mapping[str, ChangelogFacts]
) -> TaskMeta | None:
    """The offsets without those of stores that begin empty: of a changelog that was deleted with all that it held."""
    if meta is None:
        return None
    emptied = {name for name in stores if name in changelogs and changelogs[name].end == 0}
    return replace(meta, stores={name: at for name, at in meta.stores.items() if name not in emptied})


def not_to_wipe(task: str, stores: Sequence[str], why: str) -> StateIncoherent:
    """Local state would be dropped that no changelog has."""
    return StateIncoherent(
        f"Task {task}: the local state of {', '.join(stores)} does not belong to its changelog ({why}), and dropping "
        "it would lose it.",
        action=f"If the local state is right, re-seed the changelog from it (--reseed {' --reseed '.join(stores)}); "
        "else delete the task's state folder and reset the group's input offsets.",
        cause="changelog-truncated",
        task=task,
        store=stores[0] if stores else "",
    )


def doubt_of_age(age_s: float, facts: ChangelogFacts, offset: int, *, restoring: bool = False) -> str | None:
    """Why state that was whole so long ago may not be replayed on from this offset; None when it may."""
    # One offset of difference can only be the marker of the last commit; but a replay that was broken off may have
    # come to the end so late that deletes were gone on its way.
    if facts.end - offset <= 1 and not restoring:
        return None
    if age_s > facts.delete_retention_s * RETENTION_PART_SAFE:
        return (
            f"the local state is {age_s:.0f} s old, and deletes older than {facts.delete_retention_s:.0f} s "
            f"may be gone from {facts.topic}"
        )
    if age_s < -CLOCK_STEP_S:
        return f"the local state is from {-age_s:.0f} s in the future: the clock went back, its age is unknown"
    return None


def check_inputs(
    task: str, state_inputs: Mapping[str, Mapping[str, int]], committed: Mapping[str, int | None]
) -> dict[str, int]:
    """Compare what the state holds with what the group committed; return where to read on (topic -> offset).

    Args:
        task: The task's name, for messages.
        state_inputs: By store, the input offsets of its last meta record; empty for a store that was never written.
        committed: The group's committed offset of each input topic; None when there is none.

    Raises:
        StateIncoherent: State and offsets do not belong together.
    """
    for store, inputs in state_inputs.items():
        for topic, offset in committed.items():
            held = inputs.get(topic)
            if held == offset:
                continue
            if held == UNFINISHED:
                raise _unfinished(task, store)
            if held is None or (offset is not None and held < offset):
                raise StateIncoherent(
                    f"Task {task}: the group has committed {topic} up to {offset}, but store {store} holds it only up "
                    f"to {'nothing' if held is None else held}: its changelog lost records, or the store is new.",
                    action=f"Reset the group's offsets of {topic} to the beginning and clear the store, "
                    "to build its state anew from the source.",
                    cause="changelog-truncated",
                    task=task,
                    store=store,
                    topic=topic,
                    seen=held,
                    expected=offset,
                )
            raise StateIncoherent(
                f"Task {task}: store {store} holds {topic} up to {held}, but the group's committed offset is "
                f"{'none' if offset is None else offset}: the offsets were reset, or they expired. Reading on "
                "would count twice.",
                action=f"Set the group's offset of {topic} back to {held} (holdfast apply reposition PROCESSOR does), "
                "or clear the store before reading the input again.",
                cause="offsets-reset",
                task=task,
                store=store,
                topic=topic,
                seen=offset,
                expected=held,
            )
    return {topic: offset for topic, offset in committed.items() if offset is not None}


def check_restore_age(task: str, age_s: float, changelogs: Mapping[str, ChangelogFacts]) -> None:
    """Refuse a restore that took so long that deletes may have been taken from its changelogs meanwhile.

    Raises:
        StateIncoherent: It took longer than delete.retention.ms.
    """
    for facts in changelogs.values():
        if age_s > facts.delete_retention_s:
            raise StateIncoherent(
                f"Restoring task {task} took {age_s:.0f} s, longer than deletes stay in {facts.topic} "
                f"({facts.delete_retention_s:.0f} s): deleted keys could come back.",
                action=f"Raise delete.retention.ms of {facts.topic} to several times the restore's time, then restart.",
                cause="bad-configuration",
                task=task,
                topic=facts.topic,
                seen=age_s,
                expected=facts.delete_retention_s,
            )


def check_sources_same(task: str, known: Mapping[str, str], seen: Mapping[str, str]) -> None:
    """Refuse a source topic that is another one than the state was built from.

    Args:
        task: The task's name, for messages.
        known: By source topic, the topic id that the state belongs to.
        seen: By source topic, its id now.

    Raises:
        StateIncoherent: A source was deleted and made again.
    """
    for topic, topic_id in known.items():
        if topic in seen and seen[topic] != topic_id:
            raise StateIncoherent(
                f"Task {task}: source {topic} was recreated (topic id {seen[topic]}, the state was built from "
                f"{topic_id}): its offsets mean other records now.",
                action=f"Reset the group's offsets of {topic} and clear the state that was built from it.",
                cause="source-recreated",
                task=task,
                topic=topic,
                seen=seen[topic],
                expected=topic_id,
            )


def check_source(topic: str, partition: int, committed: int | None, start: int, end: int) -> None:
    """Refuse to skip input that is gone, or that is no longer the input that was processed.

    Args:
        topic: The source topic.
        partition: Its partition.
        committed: The group's committed offset; None when there is none.
        start: The first offset that is still there.
        end: The high watermark, read after ``committed``.

    Raises:
        StateIncoherent: The source topic no longer has the committed offset.
    """
    if committed is not None and committed > end:
        raise StateIncoherent(
            f"Source {topic}[{partition}] ends at offset {end}, but {committed} is processed: it was truncated or "
            "recreated.",
            action=f"Reset the group's offsets of {topic} and clear the state that was built from it.",
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
            action="To go on without them, knowing that the state lacks them: holdfast apply reposition PROCESSOR.",
            cause="source-truncated",
            topic=topic,
            partition=partition,
            seen=start,
            expected=committed,
        )


def source_missing(topic: str) -> TopicUnusable:
    """A source topic is not there."""
    return TopicUnusable(
        f"Source topic {topic} is not there.",
        action="Create it, or correct its name.",
        cause="source-missing",
        topic=topic,
    )


def changelog_missing(topic: str, topology: Topology) -> StateIncoherent:
    """A changelog is not there."""
    return StateIncoherent(
        f"Changelog {topic} is not there.",
        action="If the local state is right, re-seed the changelog from it; else create the topic, clear the store and "
        "reset the group's input offsets.",
        cause="changelog-missing",
        topic=topic,
        store=next((spec.store for spec in topology.changelogs if spec.topic.name == topic), None),
    )


def changelog_recreated(task: str, store: str, topic: str, seen: str, expected: str) -> StateIncoherent:
    """A changelog has another topic id than the one that the state belongs to."""
    was = "is being made anew" if expected == RESEEDING else "was recreated"
    return StateIncoherent(
        f"Task {task}: changelog {topic} {was} (topic id {seen}, the state of store {store} belongs to {expected}).",
        cause="changelog-recreated",
        action=f"If the local state is right, re-seed the changelog from it (--reseed {store}); else delete "
        "the task's state folder and reset the group's input offsets, so that state is built anew.",
        task=task,
        store=store,
        seen=seen,
        expected=expected,
    )


def changelog_too_narrow(topic: str, partition: int) -> StateIncoherent:
    """A source has a partition that a changelog lacks."""
    return StateIncoherent(
        f"Changelog {topic} has no partition {partition}, but the store's source has.",
        action="The source was given more partitions: build all state anew from it, with holdfast apply clear "
        "PROCESSOR --all --rewind earliest.",
        cause="source-repartitioned",
        topic=topic,
        partition=partition,
    )


def _unfinished(task: str, store: str) -> StateIncoherent:
    return StateIncoherent(
        f"Task {task}: the changelog of store {store} is being written from the warehouse, and is not whole yet.",
        action="Go on with the restore that writes it (holdfast apply resume), or restore again: holdfast apply "
        "restore PROCESSOR --at SNAPSHOT.",
        cause="restore-unfinished",
        task=task,
        store=store,
    )


def _truncated(task: str, store: str, facts: ChangelogFacts, held: int) -> StateIncoherent:
    return StateIncoherent(
        f"Task {task}: changelog {facts.topic} has offsets {facts.start} to {facts.end}, but store {store} would be "
        f"replayed from {held}: the changelog was truncated.",
        action="If the local state is right, re-seed the changelog from it; else clear the store and reset the "
        "group's input offsets, so that state is built anew.",
        cause="changelog-truncated",
        task=task,
        store=store,
        seen=facts.start,
        expected=held,
    )
