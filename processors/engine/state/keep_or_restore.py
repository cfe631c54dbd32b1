"""Decides how a restore begins: from which changelog offset each store is replayed, and whether local state is dropped.

The functions read no files and no topics. The caller reads the facts and passes them. The module ``coherence`` says in
which order the caller must read them. If a restore begins with a checkpoint, ``checkpoints.decision`` chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from holdfast.processors.engine.state.coherence import (
    ChangelogFacts,
    changelog_another,
    changelog_recreated,
    changelog_truncated,
    source_recreated,
)
from holdfast.processors.engine.state.databases.task_meta import RESEEDING, StoreOffset, TaskMeta

#: The maximum age of local state that is used, as a fraction of the changelog's delete.retention.ms. Kafka may have
#: removed tombstones that were written after older state. A replay that begins from such state could miss deletes.
RETENTION_PART_SAFE = 0.75
#: Seconds. If the recorded time of local state is further in the future than this, the clock went back, and the age of
#: the state is unknown.
CLOCK_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How to restore a task: the first changelog offset to replay for each store, and whether local state is dropped.

    ``wipe`` is the reason to drop the local state; None means that the local state is used. If ``aside`` is True, the
    local state is renamed, and kept until the replay has shown that the changelogs are complete. Otherwise, it is
    deleted.
    """

    starts: Mapping[str, int]
    wipe: str | None = None
    aside: bool = False


def plan_restore(
    task: str,
    meta: TaskMeta | None,
    changelogs: Mapping[str, ChangelogFacts],
    now: float,
    committed: Mapping[str, int | None] = MappingProxyType({}),
) -> RestorePlan:
    """Plans the restore of one task: the first changelog offset to replay for each store.

    ``meta`` has the offsets of the local state; None for new state. ``now`` is wall-clock seconds since 1970.
    ``committed`` is the group's committed offset of each input topic. Local state that includes less input than these
    offsets is an old copy, and a lost changelog must not be written again from it.

    Raises:
        StateIncoherent: A changelog was recreated or truncated since the state was written.
    """
    starts: dict[str, int] = {}
    for store, facts in changelogs.items():
        at = None if meta is None else meta.stores.get(store)
        if meta is None or at is None:
            if facts.start > 0 and (facts.source is None or facts.start < facts.end):
                raise changelog_truncated(task, store, facts, 0)
            starts[store] = facts.start
            if meta is not None and (doubt := _doubt_beside(meta, facts, now)) is not None:
                return _from_the_beginning(task, changelogs, doubt)
            continue
        if (why := _not_its_own(at, facts)) is not None:
            return replace(_from_the_beginning(task, changelogs, why), aside=True)
        if at.topic_id != facts.topic_id:
            if facts.end > 0 and is_old_copy(meta, committed):
                why = f"it is an old copy: {facts.topic} was created again since, and other workers went on with it"
                return replace(plan_restore(task, None, changelogs, now), wipe=why, aside=True)
            if facts.source is not None:
                raise source_recreated(task, facts.topic, facts.topic_id, at.topic_id)
            if at.topic != facts.topic and at.topic_id != RESEEDING:
                raise changelog_another(task, store, facts.topic, at.topic)
            raise changelog_recreated(task, store, facts.topic, facts.topic_id, at.topic_id)
        if at.offset > facts.end or at.offset < facts.start:
            raise changelog_truncated(task, store, facts, at.offset)
        doubt = doubt_of_age(now - meta.complete_at, facts, at.offset, restoring=meta.restoring)
        doubt = doubt or doubt_of_tail(at, facts)
        if doubt is not None:
            return _from_the_beginning(task, changelogs, doubt)
        starts[store] = at.offset
    return RestorePlan(starts)


def _from_the_beginning(task: str, changelogs: Mapping[str, ChangelogFacts], why: str) -> RestorePlan:
    """Plans a replay of whole changelogs, without the local state.

    Raises StateIncoherent if a changelog has lost its first records.
    """
    return replace(plan_restore(task, None, changelogs, 0.0), wipe=why)


def _doubt_beside(meta: TaskMeta, facts: ChangelogFacts, now: float) -> str | None:
    """Returns the reason why the task's local state can't be kept while one new table is restored from its topic.

    None means that the state can be kept. The task records one time for all of its stores. The age of its whole local
    state therefore decides about the new table, too.
    """
    if facts.source is None or facts.start >= facts.end:
        return None
    return doubt_of_age(now - meta.complete_at, facts, facts.start)


def _not_its_own(at: StoreOffset, facts: ChangelogFacts) -> str | None:
    """Returns the reason why a table's local state does not match the table's topic; None if it does."""
    if facts.source is None:
        return None
    if at.topic != facts.topic:
        return f"its changelog was {at.topic}, and is its topic {facts.topic} now"
    if at.topic_id == facts.topic_id and at.offset > facts.end:
        # The group's offset was set back, but the state has newer rows already. A replay from the beginning up to
        # ``facts.end`` gives the older rows, because every row of the table is a record of the topic.
        return f"it holds {facts.topic} up to {at.offset}, and the group's offset was set back to {facts.end}"
    return None


def is_old_copy(meta: TaskMeta, committed: Mapping[str, int | None]) -> bool:
    """Whether local state includes less input than the group committed, and no input beyond the committed offsets.

    State of an incomplete restore counts as an old copy, because it matches no input offset. Local state from which a
    changelog is being rewritten is an exception. It counts as an old copy only if it includes less input than the group
    committed.
    """
    held = {topic: (meta.inputs[topic], offset or 0) for topic, offset in committed.items() if topic in meta.inputs}
    ahead = any(here > there for here, there in held.values())
    behind = any(here < there for here, there in held.values())
    return not ahead and (behind or (meta.restoring and not meta.reseeding))


def may_begin_empty(stores: Mapping[str, str], changelogs: Mapping[str, ChangelogFacts]) -> frozenset[str]:
    """Returns the names of the stores that may start without data.

    ``stores`` is a start option of the worker. It maps the name of each store that may be empty to the topic id of its
    changelog; an empty id matches any changelog. The worker gets the same option at every restart. If a changelog is
    deleted and created again later, its topic id changes, so the option no longer applies to its store.
    """
    known = {name: changelogs[name].topic_id for name in stores if name in changelogs and not changelogs[name].source}
    return frozenset(name for name, topic_id in known.items() if stores[name] in ("", topic_id))


def without_emptied(
    meta: TaskMeta | None, stores: Set[str], changelogs: Mapping[str, ChangelogFacts]
) -> TaskMeta | None:
    """Returns ``meta``, but without the offsets of those ``stores`` whose changelog was deleted and created again."""
    if meta is None:
        return None
    emptied = {
        name
        for name in stores
        if name in changelogs
        and name in meta.stores
        # If the topic id is unchanged, the changelog has only lost its records. The local state is then still complete.
        and meta.stores[name].topic_id != changelogs[name].topic_id
    }
    return replace(meta, stores={name: at for name, at in meta.stores.items() if name not in emptied})


def doubt_of_tail(at: StoreOffset, facts: ChangelogFacts) -> str | None:
    """Returns the reason why a table's topic can't be replayed from the offset in ``at``; None if the replay is safe.

    Records after this offset may be old, although the state is young. Kafka may have removed tombstones among these
    records. A replay from the beginning is safe, because Kafka removes a tombstone only after the row that it deletes.
    ``at.inputs`` is empty until a replay from the beginning ends.
    """
    if at.inputs and at.offset < min(facts.young_from, facts.end):
        return f"deletes behind offset {at.offset} of {facts.topic} were old when they were processed, and may be gone"
    return None


def doubt_of_age(age_s: float, facts: ChangelogFacts, offset: int, *, restoring: bool = False) -> str | None:
    """Returns the reason why a replay from ``offset`` over state of this age (seconds) is unsafe; None if safe."""
    # If only one offset is left to replay, it is the transaction marker of the last commit, so no tombstone can be
    # missing and the age does not matter. After an interrupted replay, the age matters: the replay may have come so
    # late that it missed tombstones.
    if facts.end - offset <= (1 if facts.source is None else 0) and not restoring:
        return None
    if age_s > facts.delete_retention_s * RETENTION_PART_SAFE:
        return (
            f"the local state is {age_s:.0f} s old, and deletes older than {facts.delete_retention_s:.0f} s "
            f"may be gone from {facts.topic}"
        )
    if age_s < -CLOCK_STEP_S:
        return f"the local state is {-age_s:.0f} s in the future: the clock went back, so its age is unknown"
    return None
