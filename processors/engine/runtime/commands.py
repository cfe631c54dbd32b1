"""The owner commands as frozen data: count, export, clear and adopt state, set positions, read up to a bound.

They arrive as JSON over HTTP (``COMMANDS`` has their routes), or as objects from Python. At the start of a command,
``runtime.maintenance`` checks the conditions that depend on the worker: its partitions, and whether it is paused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.state.time.time_records import Span

#: Maximum bytes of a command's body; the client splits a longer list of keys into several commands.
COMMAND_BYTES_MAX = 1 << 20


class CommandWrong(HoldfastError):
    """A command is malformed, or names something that the processor does not have; a retry fails, too."""


class CommandRefused(HoldfastError):
    """The worker can't do the command now; a retry later, or on another worker, may succeed."""


class CommandFailed(HoldfastError):
    """A command failed before it was complete; its field ``done`` counts the completed part."""


class KeyBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message key that is not UTF-8 text; base64 in JSON."""

    base64: bytes


#: A message key, or a prefix of message keys.
Key = str | KeyBytes
#: Topic to partition to offset.
Offsets = Mapping[str, Mapping[int, int]]


class Selected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A selection of keys in these stores and partitions (None: all partitions of the worker).

    Exactly one of ``keys``, ``prefix`` and ``all`` names the message keys. All entries of a message key are selected.
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
    """A selection that a ``window`` narrows: event times from the first bound up to, but not including, the second, ms.

    For the selected message keys, the windows that contain one of the times are selected, with all records about them.
    """

    window: tuple[int, int] | None = None


class Count(Windowed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Count the selected keys and bytes."""


class Export(Windowed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write the selected keys to a file on the worker's machine."""


class Clear(Windowed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete the selected keys in the store and in the changelog.

    With ``export``, the entries are written to a file first. With ``positions``, the inputs are read from these
    offsets, which are committed together with the last deletes. A command with the name ``once`` deletes nothing in a
    task that has already carried out a command with this name.
    """

    once: Annotated[str, msgspec.Meta(max_length=200)] = ""
    export: bool = False
    positions: dict[str, dict[int, int]] | None = None


class Read(Selected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read at most ``limit`` of the selected entries, as committed. It is answered at once and has no ticket.

    A ticket would show values to every program that may read the status.
    """

    limit: int = 100


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read the inputs from other offsets."""

    positions: dict[str, dict[int, int]]


class Until(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read the inputs up to these offsets and no further; only for a worker that rebuilds a store.

    The command ends when all records before the offsets are committed. A new one replaces a running one.
    """

    positions: dict[str, dict[int, int]]


class Adopt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a store equal to another changelog, whose partitions end at ``upto``.

    With ``positions``, the inputs are read from these offsets, which are committed together with the last change. With
    ``keep``, only the message keys of the changelog become equal to it; other keys stay unchanged. With ``export``, the
    present entries (of ``keys``, otherwise of all) are written to a file before the first change. If an earlier command
    with the name ``once`` has begun to change a task, the task is in that command's file and in no later file.
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


#: The route of ``Read``, and the maximum entries and bytes of its answer.
READ_PAGE, READ_ENTRIES_MAX, READ_BYTES_MAX = "/state/read", 1_000, 1 << 20
_KINDS: Mapping[str, type[Command | Read]] = {**COMMANDS, READ_PAGE: Read}


def verb_of(command: Command) -> str:
    """The command's name in logs and errors, for example ``clear``."""
    return type(command).__name__.lower()


def decode(page: str, body: bytes) -> Command | Read:
    """Decode the body of a POST to a command's route; raises CommandWrong."""
    kind = _KINDS[page]
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_FAILURES as failure:
        raise CommandWrong(
            f"The body of {page} can't be decoded: {failure}.",
            action=f"Send a JSON object with {', '.join(kind.__struct_fields__)}.",
        ) from failure


def key_of(raw: bytes | str) -> Key:
    """A message key in the form that commands use: text if it is UTF-8."""
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return KeyBytes(raw)


def bytes_of(key: Key) -> bytes:
    """The bytes of a message key, as Kafka has them."""
    return key.encode() if isinstance(key, str) else key.base64


class Selection:
    """The message keys that a command selects: a sorted list, or all with a prefix; and the times of their windows.

    Raises CommandWrong unless the command has exactly one of ``keys``, ``prefix`` and ``all``, or for an empty window.
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
        #: Sorted as in the database; None when a prefix selects the keys.
        self.heads: list[bytes] | None = None
        if asked.keys is not None:
            self.heads = sorted({key_prefix(bytes_of(key)) for key in asked.keys})
        self._keys = None if asked.keys is None else frozenset(map(bytes_of, asked.keys))
        #: The times whose windows are selected; None for all records of the keys.
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
        #: Whether the whole store is selected, including its internal records.
        self.everything = asked.all and self.span is None

    def has(self, message_key: bytes) -> bool:
        """Whether a message key is selected."""
        return message_key.startswith(self.prefix) if self._keys is None else message_key in self._keys


def plain(value: Any) -> Any:
    """A command as JSON-ready data for the log, with the number of its keys instead of the keys."""
    told = msgspec.to_builtins(value)
    if told.get("keys") is not None:
        told["keys"] = len(told["keys"])
    return {name: part for name, part in told.items() if part not in (None, False)}
