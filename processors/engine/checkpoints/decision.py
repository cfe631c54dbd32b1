"""Chooses the checkpoint from which a task is restored, and gives a reason for each refused checkpoint.

All functions are pure.

Invariants:
    - Refusing a checkpoint costs only time, because the state can also be restored from the whole changelog.
    - A checkpoint has the same maximum age as local state, because a downloaded checkpoint becomes local state.
      Otherwise the check of local state at startup (``state/coherence.py``) would refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT, Manifest
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.keep_or_restore import doubt_of_age, doubt_of_tail

#: A number of changelog offsets. If a restore without a checkpoint replays fewer offsets, no checkpoint is searched
#: for. A checkpoint is used only if it saves the replay of at least this many offsets, and of at least half of the
#: offsets.
SPARES_AT_LEAST = 1_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """The facts by which a checkpoint is chosen for a task that must be restored.

    ``committed`` has the consumer group's committed offset of each input topic; None if it has committed none. ``now``
    is wall-clock seconds since 1970. ``replay`` is the number of changelog offsets to replay without a checkpoint.
    """

    task: str
    database: str
    changelogs: Mapping[str, ChangelogFacts]
    committed: Mapping[str, int | None]
    sources: Mapping[str, str]
    now: float
    replay: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A checkpoint that can't be used for a restore, and the reason."""

    checkpoint_id: str
    why: str


#: A download is abandoned if no new byte arrives for this many seconds.
SILENT_MAX_S = 60.0
#: A download is abandoned if its first byte does not arrive within this many seconds, because the object store seems to
#: hang.
NOTHING_MAX_S = 15.0
#: The assumed speed of a changelog replay, in offsets per second. A download may take as long as a full replay at this
#: speed, but at least ``SILENT_MAX_S`` seconds.
REPLAY_PER_S = 50_000


@dataclass(slots=True)
class Patience:
    """The timeouts of a checkpoint's download. After a timeout, the task is restored from the changelog alone.

    ``replay`` is the number of offsets of a full replay. ``began_at`` and ``now`` are monotonic seconds.
    """

    replay: int
    began_at: float
    _bytes: int = -1
    _heard_at: float = 0.0

    def spent(self, now: float, received: int) -> str | None:
        """Returns the reason to abandon the download; None while the download may continue.

        ``received`` is in bytes.
        """
        if received != self._bytes:
            self._bytes, self._heard_at = received, now
        if not received and now - self.began_at > NOTHING_MAX_S:
            return f"the store gave no answer for {NOTHING_MAX_S:.0f} s"
        if now - self._heard_at > SILENT_MAX_S:
            return f"the download received nothing for {SILENT_MAX_S:.0f} s"
        took, bound = now - self.began_at, max(SILENT_MAX_S, self.replay / REPLAY_PER_S)
        return None if took <= bound else f"the download took {took:.0f} s, longer than a replay would"


def choose(found: Iterable[Manifest], wanted: Wanted) -> tuple[list[Manifest], list[Refusal]]:
    """Divides checkpoints into usable and refused ones. Usable checkpoints with the shortest replay come first."""
    usable: list[Manifest] = []
    refused: list[Refusal] = []
    for manifest in found:
        why = refusal(manifest, wanted)
        if why is None:
            usable.append(manifest)
        else:
            refused.append(Refusal(manifest.checkpoint_id, why))
    usable.sort(key=lambda manifest: (tail_of(manifest, wanted), manifest.checkpoint_id))
    return usable, refused


def worth_looking(replay: int) -> bool:
    """Whether a replay of ``replay`` changelog offsets is so long that searching for a checkpoint is worthwhile."""
    return replay >= SPARES_AT_LEAST


def refusal(manifest: Manifest, wanted: Wanted) -> str | None:
    """Returns the reason why this checkpoint can't be used for the restore; None if it can be used."""
    return (
        _of_another_kind(manifest, wanted)
        or _of_other_topics(manifest, wanted)
        or _ahead_of_the_group(manifest, wanted)
        or _too_old(manifest, wanted)
        or _not_worth_it(manifest, wanted)
    )


def tail_of(manifest: Manifest, wanted: Wanted) -> int:
    """Returns how many changelog offsets are replayed after restoring this checkpoint, summed over all stores."""
    return sum(max(0, facts.end - manifest.meta.stores[store].offset) for store, facts in wanted.changelogs.items())


def _of_another_kind(manifest: Manifest, wanted: Wanted) -> str | None:
    if manifest.task != wanted.task:
        return f"it is of task {manifest.task}"
    if manifest.database != wanted.database:
        return f"its files are of {manifest.database}, this worker opens {wanted.database}"
    if manifest.state_format != STATE_FORMAT:
        return f"its state has format {manifest.state_format}, this version reads {STATE_FORMAT}"
    stores, ours = sorted(manifest.meta.stores), sorted(wanted.changelogs)
    if stores != ours:
        return f"it holds the stores {stores}, the processor has {ours} now (its code was {manifest.code_version})"
    return None


def _of_other_topics(manifest: Manifest, wanted: Wanted) -> str | None:
    for store, facts in wanted.changelogs.items():
        at = manifest.meta.stores[store]
        if at.topic != facts.topic or at.topic_id != facts.topic_id:
            return (
                f"store {store} belongs to changelog {at.topic} with topic id {at.topic_id}, now it is {facts.topic} "
                f"with {facts.topic_id}"
            )
        if not facts.start <= at.offset <= facts.end:
            return f"changelog {facts.topic} has offsets {facts.start} to {facts.end}, the checkpoint is at {at.offset}"
    for topic, topic_id in manifest.meta.sources.items():
        seen = wanted.sources.get(topic)
        if seen is not None and seen != topic_id:
            return f"it was built from source {topic} with topic id {topic_id}, now it has {seen}"
    return None


def _ahead_of_the_group(manifest: Manifest, wanted: Wanted) -> str | None:
    """Returns a reason if the checkpoint's input offsets are after the group's committed offsets; otherwise None.

    A worker writes local state only after it has committed the offsets. A checkpoint with later offsets therefore shows
    that the group's offsets were reset or lost.
    """
    held = [manifest.meta.inputs, *(at.inputs for at in manifest.meta.stores.values())]
    for topic, committed in wanted.committed.items():
        most = max((inputs[topic] for inputs in held if topic in inputs), default=None)
        if most is not None and (committed is None or most > committed):
            upto = "nothing" if committed is None else f"only up to {committed}"
            return f"it holds {topic} up to {most}, the group has committed {upto}"
    return None


def _too_old(manifest: Manifest, wanted: Wanted) -> str | None:
    for store, facts in wanted.changelogs.items():
        at = manifest.meta.stores[store]
        doubt = doubt_of_age(wanted.now - manifest.meta.complete_at, facts, at.offset) or doubt_of_tail(at, facts)
        if doubt is not None:
            return doubt
    return None


def _not_worth_it(manifest: Manifest, wanted: Wanted) -> str | None:
    tail = tail_of(manifest, wanted)
    if wanted.replay - tail < max(SPARES_AT_LEAST, wanted.replay // 2):
        return f"it would save too little: {tail} offsets to replay after it, {wanted.replay} without it"
    return None
