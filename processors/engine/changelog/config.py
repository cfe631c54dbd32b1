"""How a changelog's topic is configured, why, and what may be chosen otherwise.

Invariants:
    - No configuration that can lose state is ever asked for, and none is accepted from an application.
    - What keeps records longer than was asked for is no drift: keeping is never shortened by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

MIN_INSYNC = "min.insync.replicas"
#: No changelog keeps the marks of deleted keys for less: a worker that is away for longer restores from nothing.
DELETE_RETENTION_MIN_MS = 3_600_000
#: Copies of a changelog, where there are brokers enough.
REPLICATION = 3


class ChangelogConfigInvalid(HoldfastError):
    """A configuration for a changelog endangers state, or can't be one; fields: store, entry, seen, expected."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its value, how another value is judged, and why it is chosen so."""

    value: str
    rule: Literal["is", "at least", "at most"]
    why: str

    def fits(self, seen: str, value: str) -> bool:
        """Whether ``seen`` does what ``value`` is asked for; what is no number has to be the same."""
        if self.rule == "is" or seen == value:
            return seen == value
        try:
            return int(seen) >= int(value) if self.rule == "at least" else int(seen) <= int(value)
        except ValueError:
            return False


ENTRIES: Mapping[str, Entry] = {
    "cleanup.policy": Entry(
        "compact", "is", "the newest value of each key stays for ever; nothing goes by age or by size"
    ),
    "min.compaction.lag.ms": Entry(
        "3600000", "at least", "the last hour stays whole, so that a snapshot can still read an exact range"
    ),
    "max.compaction.lag.ms": Entry(
        "604800000",
        "at most",
        "what was overwritten or deleted is gone after a week and a segment, however little it is",
    ),
    "delete.retention.ms": Entry(
        "86400000", "at least", "marks of deleted keys stay a day, longer than any restore or any absence should take"
    ),
    "segment.bytes": Entry(
        "134217728", "at most", "the newest segment is never compacted and is always replayed: 128 MiB take seconds"
    ),
    "segment.ms": Entry(
        "21600000", "at most", "a slow changelog, too, closes a segment every 6 hours, and can be compacted"
    ),
}
#: The configuration of every changelog, where nothing else is asked for.
CHANGELOG_CONFIG: Mapping[str, str] = {name: entry.value for name, entry in ENTRIES.items()}


@dataclass(frozen=True, slots=True)
class Durability:
    """How many copies, how many of them a commit waits for, and why."""

    replication: int
    min_insync: int
    why: str


def durability(brokers: int, inputs_replication: int = 0) -> Durability:
    """What a new changelog gets on a cluster of so many brokers; never fewer copies than its inputs have."""
    copies = max(1, min(brokers, max(REPLICATION, inputs_replication)))
    insync = min_insync(copies)
    if copies >= REPLICATION:
        why = f"{brokers} brokers: any one may be lost without losing state or stopping commits"
    elif copies == 2:
        why = "2 brokers: state has a second copy, and commits go on while one of them is away"
    else:
        why = "1 broker: there is no place for a second copy; losing its disk loses the changelog"
    return Durability(copies, insync, why)


def min_insync(replication: int) -> int:
    """The copies that a commit waits for.

    Of three, two: one broker may go, and what was answered is still on another. Of two, one: waiting for both would
    stop every commit while one restarts.
    """
    return 1 if replication < REPLICATION else replication // 2 + 1


def chosen_config(store: str, overrides: Mapping[str, Any] | None) -> dict[str, str]:
    """The configuration of one store's changelog: the standard one, and what was asked for instead.

    Raises:
        ChangelogConfigInvalid: An override could lose state, or is no configuration.
    """
    config = dict(CHANGELOG_CONFIG)
    for entry, value in (overrides or {}).items():
        if not isinstance(entry, str) or isinstance(value, bool | float) or not isinstance(value, str | int):
            raise _invalid(
                store, str(entry), value, "text or a whole number", "Give names and values as Kafka has them."
            )
        config[entry] = str(value)
    policy = config["cleanup.policy"]
    if policy != "compact":
        reason = "records would be deleted by age or size, and with them keys that still live"
        raise _invalid(store, "cleanup.policy", policy, f"compact ({reason})", "Take it out.")
    for entry, least in (("delete.retention.ms", DELETE_RETENTION_MIN_MS), (MIN_INSYNC, 1)):
        if entry in config and _number(store, entry, config[entry]) < least:
            shown = f"{least} or more" + (
                "" if entry == MIN_INSYNC else " (deleted keys could come back to a worker that was away for longer)"
            )
            raise _invalid(store, entry, config[entry], shown, f"Set it to {least} or more, or take it out.")
    shortest, longest = (
        _number(store, entry, config[entry]) for entry in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        expected = f"at most max.compaction.lag.ms, which is {longest}"
        raise _invalid(store, "min.compaction.lag.ms", str(shortest), expected, "Raise the other, too, or lower this.")
    return config


def drift(expected: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, str]:
    """The entries to be set, with their values; those that keep more than was asked for are none."""
    found = {}
    for name, value in _with_room(expected, seen).items():
        told, entry = seen.get(name), ENTRIES.get(name)
        if name == MIN_INSYNC:
            if told is not None and told != value:
                found[name] = value
        elif told is None or not (entry.fits(told, value) if entry is not None else told == value):
            found[name] = value
    return found


def _with_room(expected: Mapping[str, str], seen: Mapping[str, str]) -> Mapping[str, str]:
    """What is asked for, where records that are left uncompacted for longer than was asked for stay so.

    The broker takes no longest time that is below the shortest one; so the longest is then that one.
    """
    least, most = "min.compaction.lag.ms", "max.compaction.lag.ms"
    kept = seen.get(least, "")
    if least not in expected or most not in expected or not kept.isdigit() or int(kept) <= int(expected[most]):
        return expected
    return {**expected, most: kept}


def kept_longer(expected: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Entries that are left as they are although they differ -> (seen, expected)."""
    differing = {name: (seen[name], value) for name, value in expected.items() if seen.get(name, value) != value}
    mended = drift(expected, seen)
    return {name: pair for name, pair in differing.items() if name not in mended}


def reason_for(entry: str) -> str:
    """Why a changelog has this entry; empty for one that only the application asks for."""
    return ENTRIES[entry].why if entry in ENTRIES else ""


def _number(store: str, entry: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise _invalid(store, entry, value, "a whole number", "Correct it.") from None


def _invalid(store: str, entry: str, seen: Any, expected: str, action: str) -> ChangelogConfigInvalid:
    return ChangelogConfigInvalid(
        f"The changelog of store {store} was given {entry}={seen}, expected {expected}.",
        action=action,
        store=store,
        entry=entry,
        seen=str(seen),
        expected=expected,
    )
