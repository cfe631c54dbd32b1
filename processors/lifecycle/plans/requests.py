"""The requests of operators: one frozen struct for each verb (kind of change, such as ``deploy``).

A request is plain data that JSON stores without loss.

Invariants:
    - A request names the wanted result, not the steps. The planner chooses the steps from the facts.
    - ``Request`` is the closed union of all requests. The tag of a request is the name of its verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar, Literal

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, shown

#: Maximum number of keys in one request; more keys need several requests.
KEYS_MAX = 10_000
#: Maximum number of workers of a processor on one machine.
WORKERS_MAX = 64
#: The value of the field ``processor`` in requests that concern the whole installation. No real name can contain a
#: space.
INSTALLATION = "this installation"


class RequestInvalid(HoldfastError):
    """A request contradicts itself or has an invalid value."""

    exit_code = EXIT_BAD_CONFIGURATION


class Everything(msgspec.Struct, frozen=True, tag="everything"):
    """Selects all keys."""

    def words(self) -> str:
        """The selection as text."""
        return "all keys"


class Keys(msgspec.Struct, frozen=True, tag="keys"):
    """Selects message keys, given as UTF-8 text."""

    keys: tuple[str, ...]

    def words(self) -> str:
        """The selection as text; only the first three keys are listed."""
        shown = ", ".join(repr(key) for key in self.keys[:3])
        return f"key {shown}" if len(self.keys) == 1 else f"{len(self.keys)} keys ({shown}, …)"


class Prefix(msgspec.Struct, frozen=True, tag="prefix"):
    """Selects all message keys that begin with a prefix, given as UTF-8 text."""

    prefix: str

    def words(self) -> str:
        """The selection as text."""
        return f"keys that begin with {self.prefix!r}"


class Windows(msgspec.Struct, frozen=True, tag="windows"):
    """Selects the windows of message keys that overlap the time from ``start_ms`` (included) to ``end_ms`` (excluded).

    Times are milliseconds since 1970.
    """

    start_ms: int
    end_ms: int
    of: Everything | Keys | Prefix = Everything()

    def words(self) -> str:
        """The selection as text."""
        until = "" if self.end_ms == self.start_ms + 1 else f" up to {shown(self.end_ms)}"
        kind = "the windows at" if not until else "the windows from"
        return f"{kind} {shown(self.start_ms)}{until}, of {self.of.words()}"


Selection = Everything | Keys | Prefix | Windows


def selection_of(
    keys: Sequence[str], prefix: str | None, *, everything: bool, action: str, window: str | None = None
) -> Selection:
    """Returns a selection of message keys: a list of keys, the keys with a prefix, or all keys.

    Exactly one of the three must be given. With ``window``, the result selects only those windows of the keys that
    overlap the time span.

    Args:
        keys: The keys; empty for none.
        prefix: The prefix; None for none.
        everything: Whether all keys are selected. This is the default if only a window is given.
        action: The action that the error names, in the caller's words.
        window: The time span of windows, as ``START`` or ``START..END``; None for none.

    Raises:
        RequestInvalid: Not exactly one of keys, prefix and everything is given, or the time span is invalid.
    """
    if window is not None:
        start_ms, end_ms = window_times(window)
        named = bool(keys) or prefix is not None
        of = selection_of(keys, prefix, everything=everything or not named, action=action)
        assert not isinstance(of, Windows)
        return Windows(start_ms, end_ms, of)
    ways = [bool(keys), prefix is not None, everything]
    if sum(ways) != 1:
        raise RequestInvalid(
            f"The keys are given in {sum(ways)} ways, expected one of keys, a prefix and all of them.",
            action=action,
            seen=sum(ways),
            expected=1,
        )
    if keys:
        return Keys(tuple(dict.fromkeys(keys)))
    return Everything() if prefix is None else Prefix(prefix)


def window_times(text: str) -> tuple[int, int]:
    """Parses ``START`` or ``START..END`` into milliseconds since 1970; the end is excluded.

    A time is ISO 8601, in UTC unless it names another zone, or a number of milliseconds since 1970.

    Raises:
        RequestInvalid: The text is not a time span.
    """
    first, between, second = text.partition("..")
    try:
        start_ms = _time_ms(first)
        end_ms = _time_ms(second) if between else start_ms + 1
        if 0 <= start_ms < end_ms <= EVENT_TIME_END_MS:
            return start_ms, end_ms
        seen = f"{shown(start_ms)} to {shown(end_ms)}"
    except (ValueError, OverflowError):
        seen = repr(text)
    raise RequestInvalid(
        f"The window is {seen}, expected a time, or a time and a later one with `..` between them.",
        action="Write, for example, `2026-11-25T14:00..2026-11-25T15:00`, in UTC, or milliseconds since 1970.",
        seen=text,
    )


def _time_ms(text: str) -> int:
    text = text.strip()
    if text.isdecimal():
        return int(text)
    read = datetime.fromisoformat(text)
    return round((read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp() * 1000)


class Provision(msgspec.Struct, frozen=True, tag="provision"):
    """Create missing topics of a processor, and repair changelogs whose configuration differs from the expected one."""

    processor: str


class Deploy(msgspec.Struct, frozen=True, tag="deploy"):
    """Start the defined version of a processor, and wait until it processes every partition.

    Args:
        processor: Name of the processor.
        timeout_s: Maximum seconds until every partition is processed. After this time, the deploy is rolled back.
        dropped: Stores of the running or of an earlier version whose state may be deleted; their changelogs are
            deleted.
    """

    processor: str
    timeout_s: float = 120.0
    dropped: tuple[str, ...] = ()


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Run the deployed version of a processor with this number of ``workers``, which share the partitions.

    Args:
        processor: Name of the processor.
        workers: The number of workers, 1 to ``WORKERS_MAX``.
        warm_s: Maximum seconds that workers may fetch the state of their new tasks before the group rebalances; 0 for
            no wait.
        timeout_s: Maximum seconds until every partition is processed after the change.
    """

    processor: str
    workers: int
    warm_s: float = 600.0
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Raises RequestInvalid for an impossible number of workers."""
        if not 1 <= self.workers <= WORKERS_MAX:
            raise RequestInvalid(
                f"The request asks for {self.workers} workers, expected 1 to {WORKERS_MAX}.",
                action="Give a number in this range; to stop the processor, use `holdfast apply stop "
                f"{self.processor}`.",
                seen=self.workers,
                expected=WORKERS_MAX,
            )


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop a processor after a final commit; recovery does not restart it until it is deployed again."""

    processor: str


class Restart(msgspec.Struct, frozen=True, tag="restart"):
    """Stop all workers after a final commit, and start the deployed release again, even if the project's files changed.

    Args:
        processor: Name of the processor.
        timeout_s: Maximum seconds until every partition is processed again.
    """

    processor: str
    timeout_s: float = 120.0


class Replay(msgspec.Struct, frozen=True, tag="replay"):
    """Send the messages of a processor's dead letters again to the input topics that they came from."""

    processor: str


class Rollback(msgspec.Struct, frozen=True, tag="rollback"):
    """Start an earlier release of a processor with the present state.

    Args:
        processor: Name of the processor.
        to: Id or version of the release; empty for the release that worked before the present release.
        timeout_s: Maximum seconds until every partition is processed.
    """

    processor: str
    to: str = ""
    timeout_s: float = 120.0


class Compact(msgspec.Struct, frozen=True, tag="compact"):
    """Abort hanging transactions on changelogs, and rewrite local stores without overwritten and deleted entries."""

    processor: str


class Reposition(msgspec.Struct, frozen=True, tag="reposition"):
    """Set the group's input offsets to those that the changelogs record, for example after the offsets expired."""

    processor: str


class Clear(msgspec.Struct, frozen=True, tag="clear"):
    """Delete keys in local stores and changelogs, so that no later restore brings them back.

    Args:
        processor: Name of the processor.
        stores: The stores; empty for all.
        selection: The keys, or windows of keys.
        partitions: The partitions; empty for all.
        rewind: Input offsets after the clear: ``stay`` (unchanged) or ``earliest`` (the topics' first offsets, so that
            state is built again). ``earliest`` needs all keys of all stores.
        export: Whether the entries are written to a file before they are deleted.
    """

    processor: str
    stores: tuple[str, ...] = ()
    selection: Selection = Everything()
    partitions: tuple[int, ...] = ()
    rewind: Literal["stay", "earliest"] = "stay"
    export: bool = True

    def __post_init__(self) -> None:
        """Raises RequestInvalid for a request that contradicts itself."""
        whole = isinstance(self.selection, Everything) and not self.stores and not self.partitions
        if self.rewind != "stay" and not whole:
            raise RequestInvalid(
                f"The input would be read again from the {self.rewind} record, but only a part of the state would be "
                "cleared: the rest would count input twice.",
                action="Add `--all` without `--store` and `--partition`, or leave `--rewind` out.",
                rewind=self.rewind,
            )
        selection = self.selection.of if isinstance(self.selection, Windows) else self.selection
        if isinstance(selection, Keys) and not 1 <= len(selection.keys) <= KEYS_MAX:
            raise RequestInvalid(
                f"The request has {len(selection.keys)} keys, expected 1 to {KEYS_MAX}.",
                action="Use several requests, or `--prefix`.",
                seen=len(selection.keys),
                expected=KEYS_MAX,
            )
        if isinstance(selection, Prefix) and not selection.prefix:
            raise RequestInvalid(
                "The prefix is empty, which would select all keys.", action="To clear all keys, use `--all`."
            )


class Erase(msgspec.Struct, frozen=True, tag="erase"):
    """Erase one message key: delete all its copies, and prove for each copy that it is gone.

    Args:
        processor: Name of the processor.
        key: The message key, as UTF-8 text.
    """

    processor: str
    key: str

    def __post_init__(self) -> None:
        """Raises RequestInvalid for an empty key."""
        if not self.key:
            raise RequestInvalid(
                "The key is empty, expected the text of a message key.",
                action="Name the key: `holdfast erase PROCESSOR KEY`.",
            )


class Backfill(msgspec.Struct, frozen=True, tag="backfill"):
    """Fill a store or its changelog from another source.

    Args:
        processor: Name of the processor.
        store: The store.
        source: ``local`` writes the changelog from local state. ``topic`` builds the store again from its source
            topics, while the processor runs, and then replaces the old store. ``table`` fills the store from any table
            of the catalog.
        from_available: Build the store from the source records that still exist, although the results of deleted
            records are lost. Only with source ``topic``.
        table: The table, as ``namespace.table``. ``table``, ``key`` and ``columns`` are only for source ``table``.
        key: The column with the message keys.
        columns: The columns that the processor's functions see; empty for all.
    """

    processor: str
    store: str
    source: Literal["local", "topic", "table"]
    from_available: bool = False
    table: str = ""
    key: str = ""
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises RequestInvalid for a request that contradicts itself."""
        if self.from_available and self.source != "topic":
            raise RequestInvalid(
                f"`--from-available` needs a backfill from the topic, but this one is from {self.source}.",
                action="Use `--from topic`, or leave `--from-available` out.",
            )
        if self.source == "table" and not (self.table and self.key):
            raise RequestInvalid(
                "A backfill from a table needs the table and the column with the message keys.",
                action="Add `--table namespace.table --key COLUMN`.",
            )
        if self.source != "table" and (self.table or self.key or self.columns):
            raise RequestInvalid(
                f"The request has a table, a key or columns, but the backfill is from {self.source}.",
                action="Use `--from table`, or leave `--table`, `--key` and `--column` out.",
            )


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """Restore local state from checkpoints and changelogs; with ``at``, state and changelogs from the warehouse.

    Args:
        processor: Name of the processor.
        partitions: Partitions of the tasks to restore; empty for all.
        source: ``newest`` uses the newest valid checkpoint and the changelog's tail; ``changelog`` uses the whole
            changelog.
        timeout_s: Maximum seconds until the processor runs again.
        stores: The stores to restore from the warehouse; empty for all. ``stores`` and ``inputs`` need ``at``.
        at: The snapshot to restore: a tag, a snapshot id, a version number, or ``latest``; None for no snapshot.
        inputs: Input offsets after the restore. ``snapshot``: the offsets of the snapshot, in the same topics.
            ``copied``: the offsets of the snapshot, in copies of the topics. ``earliest``: the topics' first offsets,
            for topics whose records are all newer than the snapshot. ``stay``: unchanged.
        file: The absolute path of an export file whose entries are put back (with ``stores``, only the entries of these
            stores); None for no file.
    """

    processor: str
    partitions: tuple[int, ...] = ()
    source: Literal["newest", "changelog"] = "newest"
    timeout_s: float = 600.0
    stores: tuple[str, ...] = ()
    at: str | None = None
    inputs: Literal["snapshot", "copied", "earliest", "stay"] = "snapshot"
    file: str | None = None

    def __post_init__(self) -> None:
        """Raises RequestInvalid for a request that contradicts itself."""
        if self.file is not None:
            if self.at is not None or self.partitions or self.source != "newest" or self.inputs != "snapshot":
                raise RequestInvalid(
                    "A restore from a file puts its entries back, and restores nothing else.",
                    action="Leave `--at`, `--partition`, `--from` and `--input` out.",
                )
            return
        if self.at is None and (self.stores or self.inputs != "snapshot"):
            raise RequestInvalid(
                "`--store` and `--input` need a restore from the warehouse or a file, but neither is given.",
                action="Add `--at TAG`, `--at SNAPSHOT-ID`, `--at latest` or `--from-file FILE`; or leave `--store` "
                "and `--input` out.",
            )
        if self.at is not None and (self.partitions or self.source != "newest" or not self.at.strip()):
            raise RequestInvalid(
                "A restore from the warehouse needs a snapshot, and restores all partitions of its stores.",
                action="Leave `--partition` and `--from` out, and name a snapshot after `--at`.",
            )


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Correct a registry that was replaced by a backup: record the newest deployment of a processor again."""

    processor: str


class Clean(msgspec.Struct, frozen=True, tag="clean"):
    """Archive orphans, and delete orphans whose archived copy is older than the grace period.

    An orphan is a resource without an owner.

    Args:
        only: ``KIND``, ``NAME`` or ``KIND/NAME`` of the selected orphans; empty for all.
    """

    only: tuple[str, ...] = ()
    processor: ClassVar[str] = INSTALLATION


class PutBack(msgspec.Struct, frozen=True, tag="put-back"):
    """Create a deleted topic again from its archived copy."""

    topic: str
    processor: ClassVar[str] = INSTALLATION


#: The requests that concern the whole installation. They need no definition of a processor.
OfInstallation = Clean | PutBack
OfProcessor = (
    Provision
    | Deploy
    | Scale
    | Stop
    | Restart
    | Rollback
    | Compact
    | Reposition
    | Clear
    | Erase
    | Backfill
    | Restore
    | Adopt
    | Replay
)
#: Requests that use the recorded release, not the definition. They work even if the definition can't be imported.
OF_RELEASE = (Scale, Stop, Restart, Rollback)
#: Requests that never start a worker. So they are also allowed while another installation has workers in the group.
NEVER_START = (Provision, Stop, Compact, Adopt, Replay, Erase)
Request = OfProcessor | OfInstallation


def verb_of(request: Request) -> str:
    """The name of a request's verb, for example ``clear`` or ``deploy``."""
    return str(type(request).__struct_config__.tag)
