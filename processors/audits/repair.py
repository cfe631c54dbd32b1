"""What mends a difference: sentences that name the verbs to run, from how the copies differ; pure.

    who stands alone         what is done
    changelog                made anew from local state, before anybody restores from it
    store                    restored from the changelog
    warehouse                a full snapshot
    all three                the store built anew from its source topics, then the others from it
    store, changelog         the warehouse is asked as third; the changelog is what every restore takes
    changelog, warehouse     a full snapshot, if the store agrees with the changelog
    store, warehouse         a full snapshot, while the changelog can still be asked at its offsets

Invariants:
    - Nothing here deletes the only right copy: what stands alone is mended from those that agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.processors.audits.comparison import Moment, Odd, Side


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be mended."""

    processor: str
    store: str
    changelog: str
    #: How a full snapshot is taken, as half a sentence.
    full_snapshot: str


def repair_plan(subject: Subject, moments: Sequence[Moment]) -> tuple[str, ...]:
    """Sentences in the order in which they are to be followed; empty when nothing differs."""
    partitions: dict[Odd, set[int]] = defaultdict(set)
    keys: dict[Odd, int] = defaultdict(int)
    for moment in moments:
        for odd, count in moment.odd.items():
            partitions[odd].add(moment.partition)
            keys[odd] += count
    said: list[str] = []
    for odd, mend in _IN_ORDER:
        if odd in partitions:
            where = sorted(partitions[odd])
            head = f"{keys[odd]:,} {'key' if keys[odd] == 1 else 'keys'} of partition {', '.join(map(str, where))}: "
            said.append(head + mend(subject, where, moments))
    if said:
        said.append(f"Then prove it: {_audit(subject, warehouse=_asked(moments))}.")
    return tuple(said)


def _changelog(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    return (
        "store and warehouse agree, the changelog is wrong. " + _changelog_anew(subject) + " The next snapshot is a "
        "full one by itself."
    )


def _store(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    return (
        f"changelog and warehouse agree, the store is wrong: {_restore(subject, where)}. If the table of keys shows "
        "records of somebody else's from before the snapshot, take that right away first, and delete after the restore "
        f"what does not belong there: `holdfast apply clear {subject.processor} --store {subject.store} --key KEY`."
    )


def _warehouse(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    return (
        f"store and changelog agree, the warehouse is wrong. {subject.full_snapshot}: it replaces the table's content. "
        "Find out who else may write to the warehouse, and don't restore from the version that was audited."
    )


def _all(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    return (
        "no two copies agree, so none is taken for right: don't restore. Build the store anew from its source topics, "
        f"beside the running processor: `holdfast apply backfill {subject.processor} --store {subject.store} --from "
        "topic`. Where the topics no longer have their beginning, decide by the table of keys."
    )


def _store_changelog(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    third = (
        "and the table, which is at other offsets, can't say which is wrong."
        if _asked(moments)
        else f"and two can't say which is wrong. Where there is a table, ask it: {_audit(subject, warehouse=True)}."
    )
    return (
        f"store and changelog differ, {third} Otherwise the offsets and times in the table of keys show who wrote "
        f"them. Few keys are built anew alone, whoever wrote them, while their input is in the topic: "
        f"`holdfast apply clear {subject.processor} --store {subject.store} --key KEY`, then `holdfast apply backfill "
        f"{subject.processor} --store {subject.store} --from topic`. Or all: if it was the processor, the changelog is "
        f"right: {_restore(subject, where)}. If it was somebody else, the store is right. {_changelog_anew(subject)}"
    )


def _changelog_warehouse(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    proved = {
        moment.partition
        for moment in moments
        if {Side.STORE, Side.CHANGELOG} <= moment.prints.keys()
        and not moment.odd.keys() & {Odd.STORE, Odd.CHANGELOG, Odd.ALL, Odd.STORE_CHANGELOG}
    }
    if set(where) <= proved:
        return (
            "changelog and warehouse differ at the snapshot's offsets, and store and changelog agree: the warehouse is "
            f"wrong. {subject.full_snapshot}. Find out who else may write to the warehouse."
        )
    return (
        "changelog and warehouse differ at the snapshot's offsets, and the store has not been proved against the "
        f"changelog. Mend that first, then: {subject.full_snapshot}."
    )


def _store_warehouse(subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    return (
        "store and warehouse differ, and of these keys the changelog has only newer records: what it said then is "
        f"compacted away. {subject.full_snapshot}, and audit at once, while the changelog can still be asked."
    )


def _changelog_anew(subject: Subject) -> str:
    return (
        "Until it is mended, don't restore and don't move partitions: whoever restores takes what is wrong. "
        f"1. Take the right to write to {subject.changelog} from everybody but the processor. "
        f"2. `holdfast apply stop {subject.processor}`. 3. Delete the topic with Kafka's own tools. "
        f"4. `holdfast apply backfill {subject.processor} --store {subject.store} --from local` makes it anew. "
        f"5. `holdfast apply deploy {subject.processor}`."
    )


def _asked(moments: Sequence[Moment]) -> bool:
    """Whether the warehouse was one of the copies."""
    return any(Side.WAREHOUSE in moment.prints for moment in moments)


def _restore(subject: Subject, where: Sequence[int]) -> str:
    named = " ".join(f"--partition {number}" for number in where)
    return f"`holdfast apply restore {subject.processor} {named} --from changelog`"


def _audit(subject: Subject, *, warehouse: bool) -> str:
    return f"`holdfast audit {subject.processor} --store {subject.store}{' --warehouse' if warehouse else ''}`"


_IN_ORDER: tuple[tuple[Odd, Callable[[Subject, Sequence[int], Sequence[Moment]], str]], ...] = (
    (Odd.CHANGELOG, _changelog),
    (Odd.ALL, _all),
    (Odd.STORE_CHANGELOG, _store_changelog),
    (Odd.STORE, _store),
    (Odd.WAREHOUSE, _warehouse),
    (Odd.CHANGELOG_WAREHOUSE, _changelog_warehouse),
    (Odd.STORE_WAREHOUSE, _store_warehouse),
)
