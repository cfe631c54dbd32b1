"""The start of a restore: the offset from which each store's changelog is replayed, and when local state is dropped.

Pure functions of facts, which are read in the order that ``coherence`` gives. ``checkpoints.decision`` chooses the
checkpoint, if a restore begins with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType

from holdfast.processors.engine.state.coherence import ChangelogFacts, changelog_recreated, changelog_truncated
from holdfast.processors.engine.state.task_store import TaskMeta

#: The greatest age of local state, as a part of delete.retention.ms; older state may have missed deletes.
RETENTION_PART_SAFE = 0.75
#: A clock may be set back by this many seconds without doubt about the age of the state.
CLOCK_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The first offset to replay of each store's changelog.

    ``wipe`` is the reason to replay without the local state. It is deleted, or set ``aside`` until the replay has shown
    that the changelogs are whole.
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
    """The replay of one task: the first offset of each store.

    ``meta`` is None for new state. ``now`` is wall-clock seconds since 1970. ``committed`` has the group's offset of
    each input topic; local state that is behind it is an old copy, which no repair can use.

    Raises:
        StateIncoherent: A changelog was recreated or truncated since the state was written.
    """
    starts: dict[str, int] = {}
    for store, facts in changelogs.items():
        at = None if meta is None else meta.stores.get(store)
        if meta is None or at is None:
            if facts.start > 0:
                raise changelog_truncated(task, store, facts, 0)
            starts[store] = facts.start
            continue
        if at.topic_id != facts.topic_id:
            if facts.end > 0 and is_old_copy(meta, committed):
                why = f"it is an old copy: {facts.topic} was created again since, and other workers went on with it"
                return replace(plan_restore(task, None, changelogs, now), wipe=why, aside=True)
            raise changelog_recreated(task, store, facts.topic, facts.topic_id, at.topic_id)
        if at.offset > facts.end or at.offset < facts.start:
            raise changelog_truncated(task, store, facts, at.offset)
        doubt = doubt_of_age(now - meta.complete_at, facts, at.offset, restoring=meta.restoring)
        if doubt is not None:
            for name, known in changelogs.items():
                if known.start > 0:
                    raise changelog_truncated(task, name, known, 0)
            return RestorePlan({name: known.start for name, known in changelogs.items()}, wipe=doubt)
        starts[store] = at.offset
    return RestorePlan(starts)


def is_old_copy(meta: TaskMeta, committed: Mapping[str, int | None]) -> bool:
    """Whether local state holds less input than the group committed, and no input beyond it.

    An incomplete restore is an old copy, too: it is the state at no input offset. The base of a re-seed may be
    incomplete, because other stores of its task are restored meanwhile; it is old only if the group committed more.
    """
    held = {topic: (meta.inputs[topic], offset or 0) for topic, offset in committed.items() if topic in meta.inputs}
    ahead = any(here > there for here, there in held.values())
    behind = any(here < there for here, there in held.values())
    return not ahead and (behind or (meta.restoring and not meta.reseeding))


def may_begin_empty(stores: Mapping[str, str], changelogs: Mapping[str, ChangelogFacts]) -> frozenset[str]:
    """Those of ``stores`` whose changelog is the one with this topic id; an empty id stands for any.

    The worker keeps the option for all its restarts. A changelog that is created again later is another topic.
    """
    known = {name: changelogs[name].topic_id for name in stores if name in changelogs}
    return frozenset(name for name, topic_id in known.items() if stores[name] in ("", topic_id))


def without_emptied(
    meta: TaskMeta | None, stores: Set[str], changelogs: Mapping[str, ChangelogFacts]
) -> TaskMeta | None:
    """The offsets without those of ``stores`` whose former changelog was deleted: the deployment dropped that state."""
    if meta is None:
        return None
    emptied = {
        name
        for name in stores
        if name in changelogs
        and name in meta.stores
        # The same topic, empty now: it lost its records, and local state is whole.
        and meta.stores[name].topic_id != changelogs[name].topic_id
    }
    return replace(meta, stores={name: at for name, at in meta.stores.items() if name not in emptied})


def doubt_of_age(age_s: float, facts: ChangelogFacts, offset: int, *, restoring: bool = False) -> str | None:
    """The reason not to replay from ``offset`` state that is ``age_s`` seconds old; None if the replay is safe."""
    # One missing offset can only be the marker of the last commit. An interrupted replay is different: it may have
    # reached the end so late that it missed deletes on its way.
    if facts.end - offset <= 1 and not restoring:
        return None
    if age_s > facts.delete_retention_s * RETENTION_PART_SAFE:
        return (
            f"the local state is {age_s:.0f} s old, and deletes older than {facts.delete_retention_s:.0f} s "
            f"may be gone from {facts.topic}"
        )
    if age_s < -CLOCK_STEP_S:
        return f"the local state is {-age_s:.0f} s in the future: the clock went back, so its age is unknown"
    return None
