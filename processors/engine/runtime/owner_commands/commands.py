"""The owner commands as immutable data: count, export, clear, adopt, set input positions, read inputs up to an offset.

Only the worker that owns the state can execute an owner command. Commands arrive as JSON over HTTP (``COMMANDS`` has
the routes), or as objects from Python. This module checks only the form of a command.
``owner_commands.maintenance`` checks at the start of a command whether the worker can carry it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.time.time_records import Span

#: Maximum bytes of a command's HTTP body. The client splits a longer list of keys into several commands.
COMMAND_BYTES_MAX = 1 << 20


class CommandWrong(HoldfastError):
    """The command is malformed, or names something unknown, for example an unknown store. A retry fails again."""


class CommandRefused(HoldfastError):
    """The worker can't run the command now. A retry may succeed later, or on the worker that owns the partition."""


class CommandFailed(HoldfastError):
    """A command failed before it was complete.

    Its field ``done`` is the number of completed entries, records or tasks.
    """


class KeyBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message key that is not UTF-8 text; written as base64 in JSON."""

    base64: bytes


#: A message key, or for ``prefix`` the beginning of message keys.
Key = str | KeyBytes
#: Offsets by topic and partition, for example ``{"orders": {0: 120, 1: 98}}``.
Offsets = Mapping[str, Mapping[int, int]]


class Selected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the commands that select entries by message key, in some stores and partitions.

    Exactly one of ``keys``, ``prefix`` and ``all`` must be set. All entries of a selected message key are selected.
    If ``partitions`` is None, all partitions of the worker are selected.
    """

    store: str | tuple[str, ...]
    partitions: tuple[int, ...] | None = None
    keys: tuple[Key, ...] | None = None
    prefix: Key | None = None
    all: bool = False

    @property
    def stores(self) -> tuple[str, ...]:
        """The selected stores, without duplicates."""
        return (self.store,) if isinstance(self.store, str) else tuple(dict.fromkeys(self.store))


class Windowed(Selected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the commands that can be limited to a time span.

    ``window`` is the span: its start, and its excluded end, in milliseconds since 1970. For the selected message keys,
    every window that overlaps this span is selected, with all its entries.
    """

    window: tuple[int, int] | None = None


class Count(Windowed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Count the selected entries and their bytes."""


class Export(Windowed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write the selected entries to a file on the worker's machine."""


class Clear(Windowed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete the selected entries in the store and in the changelog.

    If ``export`` is True, the entries are first written to a file. If ``positions`` is given, the last commit of the
    deletes also commits these input offsets. The worker then reads the inputs from these offsets. ``once`` is a name
    that makes the command idempotent. If the command is repeated with this name, finished tasks delete nothing.
    """

    once: Annotated[str, msgspec.Meta(max_length=200)] = ""
    export: bool = False
    positions: dict[str, dict[int, int]] | None = None


class Read(Selected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read at most ``limit`` of the selected entries, in their committed state.

    The HTTP answer contains the entries. Other commands store their results in a ticket (the record of the command).
    Every program that may read the status can read tickets. So ``Read`` has no ticket, because a ticket would show the
    values.
    """

    limit: int = 100


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the input positions: the worker reads on from the offsets ``positions``, by topic and partition."""

    positions: dict[str, dict[int, int]]


class Until(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read the inputs up to these offsets (excluded) and no further; only for a shadow, which rebuilds a store.

    The command ends when all records before the offsets are committed. A second ``Until`` replaces a running ``Until``.
    """

    positions: dict[str, dict[int, int]]


class Adopt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a store equal to the content of another changelog, read up to the offsets ``upto`` (by partition).

    If ``positions`` is given, the commit of the last change also commits these input offsets. The worker then reads the
    inputs from these offsets. Message keys that the changelog does not contain are deleted, or stay unchanged if
    ``keep`` is True. If ``export`` is True, the store's old entries are first written to a file: the entries of
    ``keys``, or all entries without ``keys``. ``once`` is a name for retries. If the command is repeated with this
    name, tasks whose change has already begun are not exported again.
    """

    store: str
    changelog: str
    upto: dict[int, int]
    keep: bool = False
    positions: dict[str, dict[int, int]] | None = None
    export: bool = False
    once: Annotated[str, msgspec.Meta(max_length=200)] = ""
    keys: tuple[Key, ...] | None = None


Command = Count | Export | Clear | Position | Until | Adopt

COMMANDS: Mapping[str, type[Command]] = {
    "/state/count": Count,
    "/state/export": Export,
    "/state/clear": Clear,
    "/state/adopt": Adopt,
    "/inputs/position": Position,
    "/inputs/until": Until,
}


#: The HTTP route of ``Read``, and the limits of one answer: number of entries, and bytes.
READ_PAGE, READ_ENTRIES_MAX, READ_BYTES_MAX = "/state/read", 1_000, 1 << 20
_KINDS: Mapping[str, type[Command | Read]] = {**COMMANDS, READ_PAGE: Read}


def verb_of(command: Command) -> str:
    """The command's name for logs and errors, for example ``clear``."""
    return type(command).__name__.lower()


def decode(page: str, body: bytes) -> Command | Read:
    """Decode the JSON body of a POST to a command's route; raises CommandWrong if the body is invalid."""
    kind = _KINDS[page]
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_FAILURES as failure:
        raise CommandWrong(
            f"The body of {page} can't be decoded: {failure}.",
            action=f"Send a JSON object with {', '.join(kind.__struct_fields__)}.",
        ) from failure


def key_of(raw: bytes | str) -> Key:
    """Converts a message key to the form in commands: ``str`` if the bytes are UTF-8, otherwise ``KeyBytes``."""
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return KeyBytes(raw)


def bytes_of(key: Key) -> bytes:
    """Converts a key of a command to the bytes of the message key in Kafka."""
    return key.encode() if isinstance(key, str) else key.base64


class Selection:
    """The message keys that a command selects: a sorted list, or all keys with a prefix. Optionally also a time span.

    Raises CommandWrong if the command does not have exactly one of ``keys``, ``prefix`` and ``all``, or if the time
    span is empty.
    """

    def __init__(self, asked: Selected) -> None:
        ways = [asked.keys is not None, asked.prefix is not None, asked.all]
        if sum(ways) != 1:
            raise CommandWrong(
                f"A command has {sum(ways)} of `keys`, `prefix` and `all`; expected exactly 1.",
                action="Give one of: `keys`, a list; `prefix`, the beginning of the keys; `all`, which is true.",
                seen=sum(ways),
                expected=1,
            )
        self.prefix = b"" if asked.prefix is None else bytes_of(asked.prefix)
        #: The prefixes of the changelog keys of the listed message keys, sorted. None if ``prefix`` or ``all``
        #: selects the keys.
        self.heads: list[bytes] | None = None
        if asked.keys is not None:
            self.heads = sorted({key_prefix(bytes_of(key)) for key in asked.keys})
        self._keys = None if asked.keys is None else frozenset(map(bytes_of, asked.keys))
        #: The time span whose windows are selected; None if all entries of the keys are selected.
        self.span: Span | None = None
        if isinstance(asked, Windowed) and asked.window is not None:
            self.span = Span(*asked.window)
            if not 0 <= self.span.start_ms < self.span.end_ms:
                raise CommandWrong(
                    f"The window is {self.span.start_ms} to {self.span.end_ms} ms since 1970; expected a later second "
                    "time.",
                    action="Give the first time, and one behind the last time.",
                    seen=str(asked.window),
                )
        #: Whether the whole store is selected, including Holdfast's internal records, for example the stream time.
        self.everything = asked.all and self.span is None

    def has(self, message_key: bytes) -> bool:
        """Whether a message key is selected."""
        return message_key.startswith(self.prefix) if self._keys is None else message_key in self._keys


def plain(value: Any) -> Any:
    """Returns a command as data for the log, with the number of keys instead of the keys."""
    told = msgspec.to_builtins(value)
    if told.get("keys") is not None:
        told["keys"] = len(told["keys"])
    return {name: part for name, part in told.items() if part not in (None, False)}
