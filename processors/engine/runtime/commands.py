"""What a worker can be asked to do with the state and the positions that it owns: the commands as frozen data.

They come as JSON over HTTP, and as they are from Python. What depends on the worker (who owns what now, whether it is
paused) is checked when a command begins; see ``processors.engine.runtime.maintenance``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import key_prefix

#: A command's body has at most so many bytes; a longer list of keys is sent in several commands.
COMMAND_BYTES_MAX = 1 << 20


class CommandWrong(HoldfastError):
    """A command can't be understood, or names what the processor does not have: asked again, it is wrong again."""


class CommandRefused(HoldfastError):
    """A command does not fit what the worker does now; later, or on another worker, it may."""


class CommandFailed(HoldfastError):
    """A command ended before its end; fields: ``done``, what had been done by then."""


class KeyBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message key that is no UTF-8 text; base64 in JSON."""

    base64: bytes


#: A message key, or the beginning of some.
Key = str | KeyBytes
#: Topic to partition to offset.
Offsets = Mapping[str, Mapping[int, int]]


class Selected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some of the state: of these stores, in these partitions (None for all that the worker owns), the keys named by
    exactly one of ``keys``, ``prefix`` and ``all``. All that a store has for a message key belongs to it."""

    store: str | tuple[str, ...]
    partitions: tuple[int, ...] | None = None
    keys: tuple[Key, ...] | None = None
    prefix: Key | None = None
    all: bool = False

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores, each once."""
        return (self.store,) if isinstance(self.store, str) else tuple(dict.fromkeys(self.store))


class Count(Selected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say how many keys and bytes are selected."""


class Export(Selected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write the selected keys to a file."""


class Clear(Selected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delete the selected keys here and in the changelog; with ``export``, they are in a file before. With
    ``positions``, the inputs are read from there on, as of the same commit as the last deletes."""

    export: bool = False
    positions: dict[str, dict[int, int]] | None = None


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read inputs from other offsets on."""

    positions: dict[str, dict[int, int]]


class Until(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read inputs up to these offsets and no further; of a worker that builds a store anew. It is done when nothing
    before them is left and all is committed. Asked while another one is under way, it takes its place."""

    positions: dict[str, dict[int, int]]


class Adopt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a store's content equal to what another changelog has, whose partitions end at ``upto``; with
    ``positions``, the inputs are read from there on, as of the same commit as the last change."""

    store: str
    changelog: str
    upto: dict[int, int]
    positions: dict[str, dict[int, int]] | None = None


Command = Count | Export | Clear | Position | Until | Adopt

COMMANDS: Mapping[str, type[Command]] = {
    "/state/count": Count,
    "/state/export": Export,
    "/state/clear": Clear,
    "/state/adopt": Adopt,
    "/inputs/position": Position,
    "/inputs/until": Until,
}


def verb_of(command: Command) -> str:
    """What the command is called."""
    return type(command).__name__.lower()


def decode(page: str, body: bytes) -> Command:
    """The command that a page's body asks for.

    Raises:
        CommandWrong: It is no JSON, or not of the command's form.
    """
    kind = COMMANDS[page]
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as failure:
        raise CommandWrong(
            f"The body of {page} can't be used: {failure}.",
            action=f"Send a JSON object with {', '.join(kind.__struct_fields__)}.",
        ) from failure


def key_of(raw: bytes | str) -> Key:
    """A message key as commands have it."""
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return KeyBytes(raw)


def bytes_of(key: Key) -> bytes:
    """A message key's bytes."""
    return key.encode() if isinstance(key, str) else key.base64


class Selection:
    """Which message keys a command is about: a list in the order of the changelog's keys, or those with a prefix.

    Args:
        asked: What was asked for.

    Raises:
        CommandWrong: It names its keys in no way, or in two ways.
    """

    def __init__(self, asked: Selected) -> None:
        ways = [asked.keys is not None, asked.prefix is not None, asked.all]
        if sum(ways) != 1:
            raise CommandWrong(
                f"A command was to name its keys in one way; it names them in {sum(ways)}.",
                action="Give one of: keys, a list; prefix, what they begin with; all, which is true.",
                seen=sum(ways),
                expected=1,
            )
        self.prefix = b"" if asked.prefix is None else bytes_of(asked.prefix)
        #: In the order of the database; None for a prefix.
        self.heads: list[bytes] | None = None
        if asked.keys is not None:
            self.heads = sorted({key_prefix(bytes_of(key)) for key in asked.keys})


def plain(value: Any) -> Any:
    """A command as JSON-ready data, for the log; keys are counted, not told."""
    told = msgspec.to_builtins(value)
    if told.get("keys") is not None:
        told["keys"] = len(told["keys"])
    return {name: part for name, part in told.items() if part not in (None, False)}
