"""The repair plan of an audit: sentences with the commands to run, chosen by the copy that differs.

    differing copy         repair
    changelog              recreated from local state, before any restore reads it
    store                  restored from the changelog
    warehouse              a full snapshot
    all three              the store rebuilt from its source topics, then the other two from the store
    store, changelog       an audit with the table as third copy, which shows which of the two copies is wrong
    changelog, warehouse   a full snapshot, if store and changelog are equal
    store, warehouse       a full snapshot, while the changelog still has its records

Invariants:
    - No step deletes the only correct copy: the copy that differs is repaired from the two equal copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.processors.audits.comparison import Moment, Odd, Side
from holdfast.processors.engine.topology import SourceLog


@dataclass(frozen=True, slots=True)
class Subject:
    """The store that a repair concerns, with the names that the repair commands need."""

    processor: str
    store: str
    changelog: str
    #: The instruction for taking a full snapshot, without a full stop.
    full_snapshot: str
    #: The source topic from which the table is restored, if the store has no own changelog; otherwise None.
    log: SourceLog | None = None


def repair_plan(subject: Subject, moments: Sequence[Moment]) -> tuple[str, ...]:
    """The repair steps in order, each as one text; empty if all copies are equal."""
    partitions: dict[Odd, set[int]] = defaultdict(set)
    keys: dict[Odd, int] = defaultdict(int)
    for moment in moments:
        for odd, count in moment.odd.items():
            partitions[odd].add(moment.partition)
            keys[odd] += count
    steps: list[str] = []
    for odd in _IN_ORDER:
        if odd in partitions:
            where = sorted(partitions[odd])
            head = f"{keys[odd]:,} {'key' if keys[odd] == 1 else 'keys'} of partition {', '.join(map(str, where))}: "
            steps.append(head + _repair(odd, subject, where, moments))
    if steps:
        steps.append(f"Then audit again: {_audit(subject, warehouse=_has_warehouse(moments))}.")
    return tuple(steps)


#: The order of repairs: the changelog is repaired first, because restores read the changelog.
_IN_ORDER = (
    *(Odd.CHANGELOG, Odd.ALL, Odd.STORE_CHANGELOG, Odd.STORE, Odd.WAREHOUSE),
    *(Odd.CHANGELOG_WAREHOUSE, Odd.STORE_WAREHOUSE),
)


def _repair(odd: Odd, subject: Subject, where: Sequence[int], moments: Sequence[Moment]) -> str:
    """The sentence that describes the repair of one kind of difference.

    It names the wrong copy and the command to run.
    """
    if subject.log is not None:
        return (
            f"store and topic {subject.log.topic} differ. The rows are what the topic has, so the store is wrong. "
            f"Restore it: {_restore(subject, where)}."
        )
    match odd:
        case Odd.CHANGELOG:
            return (
                f"store and warehouse agree, the changelog is wrong. {_recreate_changelog(subject)} The next snapshot "
                "is then a full one, without a command."
            )
        case Odd.STORE:
            return (
                f"changelog and warehouse agree, the store is wrong. Restore it: {_restore(subject, where)}. If "
                "another program wrote these records to the changelog before the snapshot, first remove that "
                f"program's right to write. After the restore, delete its keys: {_clear_key(subject)}."
            )
        case Odd.WAREHOUSE:
            return (
                f"store and changelog agree, the warehouse is wrong. {subject.full_snapshot}; that replaces all rows. "
                "Find the other program that writes to the warehouse, and don't restore from the audited version."
            )
        case Odd.ALL:
            return (
                "no two copies agree, so none is known to be right. Don't restore. Rebuild the store from its source "
                f"topics while the processor runs: {_backfill(subject, 'topic')}. If the topics no longer have their "
                "oldest records, compare the differing keys by hand."
            )
        case Odd.STORE_CHANGELOG:
            third = (
                "The table is at other offsets, so it can't show which copy is wrong."
                if _has_warehouse(moments)
                else f"Two copies can't show which one is wrong; if there is a table, compare it, too: "
                f"{_audit(subject, warehouse=True)}."
            )
            return (
                f"store and changelog differ. {third} Otherwise the offsets and times of the differing keys show which "
                "program wrote them. To rebuild a few keys, while their input is in the topic: "
                f"{_clear_key(subject)}, then {_backfill(subject, 'topic')}. To repair all keys: if the processor "
                f"wrote the records, the changelog is right: {_restore(subject, where)}. If another program wrote "
                f"them, the store is right. {_recreate_changelog(subject)}"
            )
        case Odd.CHANGELOG_WAREHOUSE if set(where) <= _equal_owners(moments):
            return (
                "changelog and warehouse differ at the snapshot's offsets, store and changelog agree: the warehouse is "
                f"wrong. {subject.full_snapshot}. Find the other program that writes to the warehouse."
            )
        case Odd.CHANGELOG_WAREHOUSE:
            return (
                "changelog and warehouse differ at the snapshot's offsets, and store and changelog were not compared, "
                f"or differ. Make those two equal first. Then: {subject.full_snapshot}."
            )
        case Odd.STORE_WAREHOUSE:
            return (
                "store and warehouse differ. Compaction removed the changelog's records of these keys at these "
                f"offsets. {subject.full_snapshot}, and audit immediately after it, before compaction runs again."
            )


def _equal_owners(moments: Sequence[Moment]) -> set[int]:
    """The partitions whose store and changelog were compared and are equal."""
    return {
        moment.partition
        for moment in moments
        if {Side.STORE, Side.CHANGELOG} <= moment.prints.keys()
        and not moment.odd.keys() & {Odd.STORE, Odd.CHANGELOG, Odd.ALL, Odd.STORE_CHANGELOG}
    }


def _recreate_changelog(subject: Subject) -> str:
    return (
        "Until the changelog is repaired, don't restore and don't move partitions: a restore would copy its wrong "
        f"values. 1. Allow only the processor to write to {subject.changelog}. "
        f"2. `holdfast apply stop {subject.processor}`. 3. Delete the topic: `kafka-topics.sh --delete --topic "
        f"{subject.changelog}`. 4. Recreate it: {_backfill(subject, 'local')}. 5. `holdfast apply deploy "
        f"{subject.processor}`."
    )


def _has_warehouse(moments: Sequence[Moment]) -> bool:
    """Whether the comparisons included the table in the warehouse."""
    return any(Side.WAREHOUSE in moment.prints for moment in moments)


def _restore(subject: Subject, where: Sequence[int]) -> str:
    named = " ".join(f"--partition {number}" for number in where)
    return f"`holdfast apply restore {subject.processor} {named} --from changelog`"


def _clear_key(subject: Subject) -> str:
    return f"`holdfast apply clear {subject.processor} --store {subject.store} --key KEY`"


def _backfill(subject: Subject, source: str) -> str:
    return f"`holdfast apply backfill {subject.processor} --store {subject.store} --from {source}`"


def _audit(subject: Subject, *, warehouse: bool) -> str:
    return f"`holdfast audit {subject.processor} --store {subject.store}{' --warehouse' if warehouse else ''}`"
