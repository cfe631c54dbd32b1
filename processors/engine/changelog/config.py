"""The topic configuration of changelogs: standard entries with their reasons, and checks of an application's entries.

Invariants:
    - Holdfast never sets a configuration that can lose state, and refuses such a configuration from an application.
    - If a topic keeps records longer than the standard entries require, Holdfast leaves its configuration unchanged, so
      retention is never shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.infra.errors import BadConfiguration

MIN_INSYNC = "min.insync.replicas"
MIN_LAG, MAX_LAG = "min.compaction.lag.ms", "max.compaction.lag.ms"
#: Minimum ``delete.retention.ms``. Kafka may delete tombstones after this time. A worker that was down for longer
#: may miss them, so it must restore its state from the changelog's first record.
DELETE_RETENTION_MIN_MS = 3_600_000
#: Number of replicas of a changelog, if the cluster has at least this many brokers.
REPLICATION = 3


class ChangelogConfigInvalid(BadConfiguration):
    """A changelog's configuration could lose state, or is invalid.

    The error has the fields ``store``, ``entry``, ``seen`` (the refused value) and ``expected``.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """One configuration entry of a topic.

    ``value`` is the standard value, and ``why`` its reason. ``rule`` says which other values a topic may keep.
    """

    value: str
    rule: Literal["is", "at least", "at most"]
    why: str

    def fits(self, seen: str, value: str) -> bool:
        """Whether a topic may keep its value ``seen`` of this entry, although the expected value is ``value``.

        The entry's rule says whether ``seen`` must be equal to ``value``, at least ``value``, or at most ``value``.
        """
        if self.rule == "is" or seen == value:
            return seen == value
        try:
            return int(seen) >= int(value) if self.rule == "at least" else int(seen) <= int(value)
        except ValueError:
            return False


ENTRIES: Mapping[str, Entry] = {
    "cleanup.policy": Entry(
        "compact", "is", "the newest value of each key stays for ever; nothing is deleted by age or by size"
    ),
    MIN_LAG: Entry(
        "3600000", "at least", "the last hour stays uncompacted, so that a snapshot can still read an exact range"
    ),
    MAX_LAG: Entry("604800000", "at most", "overwritten and deleted values are gone after a week and one segment"),
    "delete.retention.ms": Entry(
        "86400000", "at least", "tombstones of deleted keys stay a day, longer than a restore or an outage should take"
    ),
    "segment.bytes": Entry(
        "134217728", "at most", "the newest segment is never compacted and always replayed: 128 MiB take seconds"
    ),
    "segment.ms": Entry("21600000", "at most", "even a slow changelog closes a segment every 6 hours for compaction"),
}
#: The configuration entries of a repartition topic. Workers delete messages from it after they have processed them.
REPARTITION_ENTRIES: Mapping[str, Entry] = {
    "cleanup.policy": Entry("delete", "is", "compaction would drop messages that are not processed yet"),
    "retention.ms": Entry("-1", "is", "nothing is deleted by age: workers delete what they have processed"),
    "retention.bytes": Entry("-1", "is", "nothing is deleted by size: workers delete what they have processed"),
    "message.timestamp.type": Entry("CreateTime", "is", "messages keep their event times"),
    "segment.bytes": Entry("67108864", "at most", "deleted messages free the disk by whole segments"),
}
#: The standard configuration of every repartition topic.
REPARTITION_CONFIG: Mapping[str, str] = {name: entry.value for name, entry in REPARTITION_ENTRIES.items()}
#: The standard configuration of every changelog.
CHANGELOG_CONFIG: Mapping[str, str] = {name: entry.value for name, entry in ENTRIES.items()}


@dataclass(frozen=True, slots=True)
class Durability:
    """The number of replicas of a new changelog, its ``min.insync.replicas``, and the reason for these two numbers."""

    replication: int
    min_insync: int
    why: str


def durability(brokers: int, inputs_replication: int = 0) -> Durability:
    """Returns the replication settings of a new changelog on a cluster with ``brokers`` brokers.

    If the cluster has enough brokers, the changelog has at least as many replicas as the input topics
    (``inputs_replication`` replicas).
    """
    copies = max(1, min(brokers, max(REPLICATION, inputs_replication)))
    insync = min_insync(copies)
    if copies >= REPLICATION:
        why = f"{brokers} brokers: one broker may fail without losing state or stopping commits"
    elif copies == 2:
        why = "2 brokers: state has a second copy, and commits continue while one broker is away"
    else:
        why = "1 broker: no second copy is possible; losing its disk loses the changelog"
    return Durability(copies, insync, why)


def min_insync(replication: int) -> int:
    """Returns ``min.insync.replicas`` for a topic: the minimum number of in-sync replicas that a commit needs.

    For 3 replicas it is 2: if one broker fails, another broker still has every commit. For 2 replicas it is 1, because
    with 2 no commit would be possible while one broker restarts.
    """
    return 1 if replication < REPLICATION else replication // 2 + 1


def chosen_config(store: str, overrides: Mapping[str, Any] | None) -> dict[str, str]:
    """The configuration of one store's changelog: the standard entries, changed by the application's overrides.

    Raises ChangelogConfigInvalid if an override could lose state, or is invalid.
    """
    config = dict(CHANGELOG_CONFIG)
    for entry, value in (overrides or {}).items():
        if not isinstance(entry, str) or isinstance(value, bool | float) or not isinstance(value, str | int):
            action = "Write names and values as Kafka documents them."
            raise _invalid(store, str(entry), value, "text or a whole number", action)
        config[entry] = str(value)
    policy = config["cleanup.policy"]
    if policy != "compact":
        reason = "any other policy deletes live keys by age or size"
        raise _invalid(store, "cleanup.policy", policy, f"compact ({reason})", "Take `cleanup.policy` out.")
    for entry, least in (("delete.retention.ms", DELETE_RETENTION_MIN_MS), (MIN_INSYNC, 1)):
        if entry in config and _number(store, entry, config[entry]) < least:
            shown = f"{least} or more" + (
                "" if entry == MIN_INSYNC else " (deleted keys could return on a worker that was away for longer)"
            )
            raise _invalid(store, entry, config[entry], shown, f"Set `{entry}` to {least} or more, or take it out.")
    shortest, longest = _number(store, MIN_LAG, config[MIN_LAG]), _number(store, MAX_LAG, config[MAX_LAG])
    if shortest > longest:
        action = f"Raise `{MAX_LAG}`, or lower `{MIN_LAG}`."
        raise _invalid(store, MIN_LAG, shortest, f"at most {MAX_LAG}, which is {longest}", action)
    return config


def drift(
    expected: Mapping[str, str], seen: Mapping[str, str], entries: Mapping[str, Entry] = ENTRIES
) -> dict[str, str]:
    """Returns the configuration entries that must be changed on a topic, with their new values.

    ``seen`` has the entries that the topic has now. An entry that makes the topic keep more data than expected is not
    changed.
    """
    found = {}
    for name, value in _with_room(expected, seen).items():
        present, entry = seen.get(name), entries.get(name)
        if name == MIN_INSYNC:
            if present is not None and present != value:
                found[name] = value
        elif present is None or not (entry.fits(present, value) if entry is not None else present == value):
            found[name] = value
    return found


def _with_room(expected: Mapping[str, str], seen: Mapping[str, str]) -> Mapping[str, str]:
    """Returns ``expected``, with ``max.compaction.lag.ms`` raised to the topic's present ``min.compaction.lag.ms``.

    The maximum is raised only if it is below this minimum, because the broker refuses such a pair. The topic keeps its
    minimum, even if it is larger than expected.
    """
    kept = seen.get(MIN_LAG, "")
    if MIN_LAG not in expected or MAX_LAG not in expected or not kept.isdecimal():
        return expected
    if int(kept) <= int(expected[MAX_LAG]):
        return expected
    return {**expected, MAX_LAG: kept}


def kept_longer(expected: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the entries that differ from ``expected`` but stay unchanged, with their present and expected values.

    Such an entry makes the topic keep more data than expected.
    """
    differing = {name: (seen[name], value) for name, value in expected.items() if seen.get(name, value) != value}
    repaired = drift(expected, seen)
    return {name: pair for name, pair in differing.items() if name not in repaired}


def reason_for(entry: str, entries: Mapping[str, Entry] = ENTRIES) -> str:
    """Returns the reason for the standard value of an entry; an empty text for an entry that has no standard value."""
    return entries[entry].why if entry in entries else ""


def _number(store: str, entry: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise _invalid(store, entry, value, "a whole number", f"Correct `{entry}` in `changelog_config`.") from None


def _invalid(store: str, entry: str, seen: Any, expected: str, action: str) -> ChangelogConfigInvalid:
    return ChangelogConfigInvalid(
        f"changelog_config gives the changelog of store {store} {entry}={seen}, expected {expected}.",
        action=action,
        store=store,
        entry=entry,
        seen=str(seen),
        expected=expected,
    )
