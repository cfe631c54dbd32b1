"""What can be asked of the lifecycle: one frozen request for each verb, plain data that goes through JSON unchanged.

Invariants:
    - A request says what is wanted, never how; facts are read later, by whoever plans.
    - ``Request`` is the closed union of all of them; its tag is the verb's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

#: How many keys one request may name; a longer list is several requests.
KEYS_MAX = 10_000


class RequestInvalid(HoldfastError):
    """A request contradicts itself, or names what there can't be."""

    exit_code = EXIT_BAD_CONFIGURATION


class Everything(msgspec.Struct, frozen=True, tag="everything"):
    """All keys."""

    def words(self) -> str:
        """For people."""
        return "all keys"


class Keys(msgspec.Struct, frozen=True, tag="keys"):
    """The keys of messages, as text in UTF-8."""

    keys: tuple[str, ...]

    def words(self) -> str:
        """For people."""
        shown = ", ".join(repr(key) for key in self.keys[:3])
        return f"key {shown}" if len(self.keys) == 1 else f"{len(self.keys)} keys ({shown}, …)"


class Prefix(msgspec.Struct, frozen=True, tag="prefix"):
    """The keys of messages that begin so, as text in UTF-8."""

    prefix: str

    def words(self) -> str:
        """For people."""
        return f"keys that begin with {self.prefix!r}"


Selection = Everything | Keys | Prefix


def selection_of(keys: Sequence[str], prefix: str | None, *, everything: bool, action: str) -> Selection:
    """The selection that was named in one of three ways.

    Args:
        keys: Keys; none for not this way.
        prefix: A prefix; None for not this way.
        everything: Whether all keys were named.
        action: What to say to whoever named them otherwise.

    Raises:
        RequestInvalid: They were named in no way, or in two.
    """
    ways = [bool(keys), prefix is not None, everything]
    if sum(ways) != 1:
        raise RequestInvalid(
            f"The keys to clear are named in {sum(ways)} ways, expected one.",
            action=action,
            seen=sum(ways),
            expected=1,
        )
    if keys:
        return Keys(tuple(dict.fromkeys(keys)))
    return Everything() if prefix is None else Prefix(prefix)


class Provision(msgspec.Struct, frozen=True, tag="provision"):
    """Create the topics that a processor needs and that are missing, and repair drifted changelogs."""

    processor: str


class Deploy(msgspec.Struct, frozen=True, tag="deploy"):
    """Bring the defined version of a processor up, and wait until it works on every partition.

    Args:
        processor: Its name.
        timeout_s: How long it may take until it works, seconds; then it is rolled back.
        dropped: Stores whose state is given up on purpose: of the running version, or left by an earlier one. Their
            changelogs are deleted.
    """

    processor: str
    timeout_s: float = 120.0
    dropped: tuple[str, ...] = ()


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop a processor gently; recovery leaves it alone until it is deployed again."""

    processor: str


class Compact(msgspec.Struct, frozen=True, tag="compact"):
    """Rewrite the local stores of a running processor without what was overwritten or deleted."""

    processor: str


class Reposition(msgspec.Struct, frozen=True, tag="reposition"):
    """Read input on from where the state stands, where the group's offsets were reset, expired, or are gone."""

    processor: str


class Clear(msgspec.Struct, frozen=True, tag="clear"):
    """Delete state: locally, in the changelog, and so wherever it is restored from.

    Args:
        processor: Its name.
        stores: The stores; empty for all.
        selection: Which keys.
        partitions: Only in these partitions; empty for all.
        rewind: Where input is read from afterwards: ``stay`` (where it stands) or ``earliest`` (from the beginning, so
            that state is built anew; only together with all keys of all stores).
        export: Whether the keys are written to a file before they are deleted.
    """

    processor: str
    stores: tuple[str, ...] = ()
    selection: Selection = Everything()
    partitions: tuple[int, ...] = ()
    rewind: Literal["stay", "earliest"] = "stay"
    export: bool = True

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        whole = isinstance(self.selection, Everything) and not self.stores and not self.partitions
        if self.rewind != "stay" and not whole:
            raise RequestInvalid(
                f"Input is to be read again from the {self.rewind}, but not all state would be cleared: what stays "
                "would count twice.",
                action="Clear everything with it, or leave the input where it is.",
                rewind=self.rewind,
            )
        if isinstance(self.selection, Keys) and not 1 <= len(self.selection.keys) <= KEYS_MAX:
            raise RequestInvalid(
                f"{len(self.selection.keys)} keys are named, expected 1 to {KEYS_MAX}.",
                action="Name fewer at once, or a prefix.",
                seen=len(self.selection.keys),
                expected=KEYS_MAX,
            )
        if isinstance(self.selection, Prefix) and not self.selection.prefix:
            raise RequestInvalid(
                "The prefix is empty, which would mean all keys.", action="Say --all if all keys are meant."
            )


class Backfill(msgspec.Struct, frozen=True, tag="backfill"):
    """Fill what is missing from what there is.

    Args:
        processor: Its name.
        store: The store.
        source: ``local`` writes the changelog anew from local state; ``topic`` builds the store anew from the source
            topics beside the running processor, and cuts over; ``table`` fills it from any table of the catalog.
        from_available: Build it from what the source topics still have, where their beginning is gone: what only older
            records would give is lost. Of ``topic`` only.
        table: The table, as ``namespace.table``. Of ``table`` only, as the next two.
        key: The column with the message keys.
        columns: The columns that functions are to see; empty for all.
    """

    processor: str
    store: str
    source: Literal["local", "topic", "table"]
    from_available: bool = False
    table: str = ""
    key: str = ""
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        if self.from_available and self.source != "topic":
            raise RequestInvalid(
                "What the source topics still have is read by a backfill from the topic only.",
                action="Say --from topic, or leave --from-available out.",
            )
        if self.source == "table" and not (self.table and self.key):
            raise RequestInvalid(
                "A backfill from a table needs the table and the column that has the message keys.",
                action="Say --table namespace.table --key COLUMN.",
            )
        if self.source != "table" and (self.table or self.key or self.columns):
            raise RequestInvalid(
                f"A table is named, but the backfill is from {self.source}.",
                action="Say --from table, or leave --table, --key and --column out.",
            )


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """Rebuild state: local state from checkpoints and changelogs, or, with ``at``, all of it from the warehouse.

    Args:
        processor: Its name.
        partitions: The tasks' partitions; empty for all.
        source: ``newest`` takes the newest valid checkpoint and the changelog's tail; ``changelog`` all of it.
        timeout_s: How long it may take until it works again, seconds.
        stores: The stores that come from the warehouse; empty for all. Only with ``at``, as the next.
        at: Which snapshot: a tag, a snapshot's id, a version's number, or ``latest``; None for no snapshot.
        inputs: Where input is read on from: ``snapshot`` (where the snapshot stood, in the very topics that it was
            made from), ``copied`` (the same offsets, in copies of these topics), ``earliest`` (all that the topics
            have is newer than the snapshot), or ``stay`` (where it stands).
    """

    processor: str
    partitions: tuple[int, ...] = ()
    source: Literal["newest", "changelog"] = "newest"
    timeout_s: float = 600.0
    stores: tuple[str, ...] = ()
    at: str | None = None
    inputs: Literal["snapshot", "copied", "earliest", "stay"] = "snapshot"

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        if self.at is None and (self.stores or self.inputs != "snapshot"):
            raise RequestInvalid(
                "Stores, and where to read on from, belong to a restore from the warehouse; no snapshot is named.",
                action="Say --at TAG, --at SNAPSHOT-ID or --at latest; or leave --store and --input out.",
            )
        if self.at is not None and (self.partitions or self.source != "newest" or not self.at.strip()):
            raise RequestInvalid(
                "A restore from the warehouse is of whole stores, and of a snapshot that is named.",
                action="Leave --partition and --from out, and name a snapshot after --at.",
            )


Request = Provision | Deploy | Stop | Compact | Reposition | Clear | Backfill | Restore


def verb_of(request: Request) -> str:
    """The name of the verb: ``clear``, ``deploy``, ..."""
    return str(type(request).__struct_config__.tag)
