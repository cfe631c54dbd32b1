"""The bytes of changelog records and stored values.

    key    0x01 | u32 BE length of the message key | message key | state key (UTF-8)
    value  0x01 | codec | int64 BE event time in ms | payload          (no value: the key is deleted)
    meta   key 0x00 "meta", value JSON: next input offsets and more    (not part of the state)

The first byte of a key and of a value is the format version. The length before the message key makes changelog keys
unambiguous: message key ``ab`` with state key ``c`` differs from ``a`` with ``bc``.

Invariants:
    - Every later version of Holdfast can read the records that this version writes. A record with an unknown format
      version is refused.
    - Python's pickle is not used.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import msgspec

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.changelog.codec_table import BY_NUMBER, LABELS
from holdfast.processors.engine.changelog.codecs import Codec
from holdfast.processors.engine.changelog.json_values import ALWAYS_BACK, comes_back, state_fault

KEY_VERSION = 1
VALUE_VERSION = 1
META_VERSION = 1
CODEC_JSON = 1
CODEC_BYTES = 2

META_KEY = b"\x00meta"
#: Number of ``once`` names that a task remembers. A ``once`` name is the name that a client gives to an owner command
#: (``clear``, ``adopt``), so that the command takes effect once, even if the client sends it again. Few names are
#: enough, because a client repeats a command before the task gets many others.
COMMANDS_KEPT = 8
#: The ``once`` names of a task's last owner commands. The task recognises a repeated command by its name. UNSET (absent
#: from the JSON) before the first command.
Commands = tuple[str, ...] | msgspec.UnsetType
#: Text lines that describe how the keys of a store are made, for example by which ``group_by``. UNSET (absent from the
#: JSON) in records that old Holdfast versions wrote. Also UNSET for stores whose keys are the unchanged message keys of
#: the input topics.
KeyLines = tuple[str, ...] | msgspec.UnsetType
#: Stands for the input offset in the meta record of a changelog that is still being loaded from the warehouse. No
#: consumer group ever commits this offset, so no worker can restore from an incomplete changelog.
UNFINISHED = -1

#: A JSON text with more brackets than this may be nested too deeply to be read, so it is read once before it is stored.
LEVELS_UNCHECKED = 1_000

_LENGTH = struct.Struct(">BI")
#: Number of bytes before the message key in a changelog key: 1 for the format version, 4 for the length of the message
#: key.
PREFIX_BYTES = _LENGTH_BYTES = _LENGTH.size
_JSON_HEAD = struct.Struct(">BBq")
HEAD_SIZE = _JSON_HEAD.size
pack_head = _JSON_HEAD.pack

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode

#: Values with at most this nesting can be decoded within Python's recursion limit, even from a deep call stack.
_NESTING_READ = 300
_key_head, _value_head = itemgetter(slice(0, _LENGTH_BYTES)), itemgetter(slice(0, 2))
#: The suggested action in errors about an unknown format version.
RUN_ITS_WRITER = "Run the Holdfast version that wrote it, or a newer version."
_VALUE_HEADS = frozenset(bytes([VALUE_VERSION, number]) for number in BY_NUMBER)


class FormatUnknown(BadConfiguration):
    """Bytes on disk or in a changelog have an unknown format.

    Another version of Holdfast wrote them, or they are damaged.
    """


def unknown_version(what: str, seen: object, expected: int, *, action: str = RUN_ITS_WRITER) -> FormatUnknown:
    """The error for an unknown format version. ``what`` names the kind of bytes, for example a changelog key."""
    return FormatUnknown(f"{what} has format version {seen}, expected {expected}.", action=action, version=seen)


class ValueNotStorable(HoldfastError):
    """A state value can't be written as JSON, or the codec of its store would change it."""


def key_prefix(message_key: bytes) -> bytes:
    """Returns the bytes with which all changelog keys of this message key begin."""
    return _LENGTH.pack(KEY_VERSION, len(message_key)) + message_key


def prefix_of(key: bytes) -> bytes:
    """Returns the first part of a changelog key: format version, key length, and message key, without the state key."""
    return key[: _bytes_needed(key)]


def full_keys(message_keys: Collection[bytes], state_key: bytes, before: bytes = b"") -> list[bytes]:
    """Returns one changelog key for each message key, made with this state key.

    Each result begins with the bytes ``before``, for example the prefix of a store in RocksDB.
    """
    heads = {length: before + _LENGTH.pack(KEY_VERSION, length) for length in set(map(len, message_keys))}
    return [heads[len(key)] + key + state_key for key in message_keys]


def split_key(key: bytes) -> tuple[bytes, str]:
    """Splits a changelog key into message key and state key; raises FormatUnknown for any other bytes."""
    if key[:1] != bytes([KEY_VERSION]):
        raise _unknown(f"A changelog key begins with version {key[:1].hex() or 'nothing'}", f"{KEY_VERSION:02x}")
    end = _bytes_needed(key)
    if len(key) < end:
        raise _unknown(f"A changelog key has {len(key)} bytes", f"{end} or more")
    try:
        return key[_LENGTH_BYTES:end], key[end:].decode()
    except UnicodeDecodeError as failure:
        raise _unknown(f"A changelog key has a state key of other bytes than UTF-8 ({failure})", "text") from failure


def encode_value(value: Any, timestamp_ms: int, *, where: str = "") -> bytes:
    """Encodes a value as JSON for a store; ``where`` is a text for the error, for example the store's name.

    Raises ValueNotStorable if JSON can't express the value, or would change it, for example NaN or a set.
    """
    try:
        payload = encode_json(value)
        if type(value) not in ALWAYS_BACK and not comes_back(value, payload):
            fault = state_fault(value, payload)
            if fault is not None:
                raise TypeError(fault)
            # Python 3.14 can encode values that it can't decode, because it limits the C stack instead of the nesting.
            # A value with many brackets is therefore decoded as a test.
            if payload.count(b"[") + payload.count(b"{") > LEVELS_UNCHECKED:
                decode_json(payload)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as failure:
        raise ValueNotStorable(
            f"A state value of type {type(value).__name__}{where} can't be written as JSON: {failure}.",
            action="Declare the store with a codec that keeps sets, tuples, bytes, times and decimals: "
            "`app.store('name', codec='typed')`. Or set values made of dict with text keys, list, str, int, float, "
            "bool and None, or use `state.set_bytes`.",
            value_type=type(value).__name__,
        ) from failure
    return pack_head(VALUE_VERSION, CODEC_JSON, timestamp_ms) + payload


def encode_bytes(value: bytes, timestamp_ms: int) -> bytes:
    """Encodes raw bytes for a store; raises TypeError for a value that is not of type bytes."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"the value is {repr(value)[:80]} of type {type(value).__name__}, expected bytes: use state.set()"
        )
    return pack_head(VALUE_VERSION, CODEC_BYTES, timestamp_ms) + value


def decode_value(stored: bytes) -> Any:
    """Decodes a stored value of any codec; raises FormatUnknown for an unknown format."""
    if stored[:2] not in _VALUE_HEADS or len(stored) < HEAD_SIZE:
        check_head(stored)
    if stored[1] != CODEC_JSON:
        return _decode_other(stored)
    try:
        return decode_json(stored[HEAD_SIZE:])
    except JSON_FAILURES as failure:
        raise _unknown(f"A stored value is no JSON that can be read ({failure})", "JSON") from failure


def _decode_other(stored: bytes) -> Any:
    codec = BY_NUMBER[stored[1]]
    try:
        return codec.decode(stored[HEAD_SIZE:])
    except (TypeError, ValueError, ArithmeticError) as failure:
        raise damaged(codec, failure) from failure


def damaged(codec: Codec, failure: Exception) -> FormatUnknown:
    """The error for a stored value whose payload its codec can't read."""
    seen = f"A stored value of the codec {codec.name} can't be read ({failure})"
    return _unknown(seen, f"a value of {codec.label}", codec=codec.number)


def is_too_deep(stored: bytes) -> bool:
    """Whether a stored value may be nested so deeply that reading it could exceed Python's recursion limit."""
    return stored.count(b"[") + stored.count(b"{") > _NESTING_READ


def check_head(stored: bytes) -> None:
    """Raises FormatUnknown unless the bytes begin with the head of a stored value (format version, codec, time)."""
    if len(stored) < HEAD_SIZE:
        raise _unknown(f"A stored value has {len(stored)} bytes", f"{HEAD_SIZE} or more")
    if stored[0] != VALUE_VERSION:
        raise _unknown(f"A stored value has format version {stored[0]}", VALUE_VERSION, version=stored[0])
    if stored[1] not in BY_NUMBER:
        known = ", ".join(f"{number} ({each.name})" for number, each in sorted(BY_NUMBER.items()))
        raise _unknown(f"A stored value has codec {stored[1]}", known, codec=stored[1])


def are_records(keys: Sequence[bytes], values: Sequence[bytes | None]) -> bool:
    """Whether all keys and values are bytes in the format of this module.

    The JSON text inside the values is not checked.

    A restore calls this function for each batch. To be fast, it checks whole lists without a Python loop over the
    records.
    """
    present = cast(Sequence[bytes], values if None not in values else [each for each in values if each is not None])
    if not set(map(_value_head, present)) <= _VALUE_HEADS or min(map(len, present), default=HEAD_SIZE) < HEAD_SIZE:
        return False
    heads = set(map(_key_head, keys))
    if any(len(head) < _LENGTH_BYTES or head[0] != KEY_VERSION for head in heads):
        return False
    needed = max((_bytes_needed(head) for head in heads), default=0)
    return min(map(len, keys), default=0) >= needed or all(len(key) >= _bytes_needed(key) for key in keys)


def _bytes_needed(key: bytes) -> int:
    """Returns the length of the first part of a changelog key: format version, key length, and message key."""
    return _LENGTH_BYTES + int.from_bytes(key[1:_LENGTH_BYTES], "big")


def check_records(
    topic: str, partition: int, keys: Sequence[bytes], values: Sequence[bytes | None], offsets: Sequence[int]
) -> None:
    """Checks the format of a changelog's data records.

    Raises:
        FormatUnknown: A record has another format; the error names its topic, partition and offset.
    """
    if are_records(keys, values):
        return
    for key, value, offset in zip(keys, values, offsets, strict=True):
        if not are_records([key], [value]):
            seen = f"its key begins with {key[:_LENGTH_BYTES]!r}, its value with {(value or b'')[:2]!r}"
            raise _foreign(topic, partition, offset, seen)


def decode_meta(topic: str, partition: int, offset: int, raw: bytes) -> ChangelogMeta:
    """Decodes a meta record; topic, partition and offset are used only in the error text.

    Raises:
        FormatUnknown: The bytes have an unknown format version, or are damaged.
    """
    try:
        return ChangelogMeta.decode(raw)
    except FormatUnknown as failure:
        raise _foreign(topic, partition, offset, failure.message.rstrip("."), **failure.fields) from failure


def _foreign(topic: str, partition: int, offset: int, seen: str, **fields: Any) -> FormatUnknown:
    return FormatUnknown(
        f"Changelog {topic}[{partition}] has a record at offset {offset} in a format that this version does not know: "
        f"{seen}.",
        action="Run the Holdfast version that wrote it, or a newer one; nothing was changed.",
        **{**fields, "topic": topic, "partition": partition, "offset": offset},
    )


def _unknown(seen: str, expected: object, **fields: Any) -> FormatUnknown:
    return FormatUnknown(f"{seen}, expected {expected}.", action=RUN_ITS_WRITER, **fields)


def event_time_ms(stored: bytes) -> int:
    """The event time of the message that wrote a stored value, in ms; raises FormatUnknown for an unknown format."""
    check_head(stored)
    return int(_JSON_HEAD.unpack_from(stored)[2])


class ChangelogMeta(msgspec.Struct, frozen=True):
    """The meta record, which every transaction writes to each changelog of its task, as JSON.

    Attributes:
        inputs: By input topic, the next input offset; the state includes all messages before this offset.
        sources: By input topic, its topic id. A topic that is deleted and created again gets a different id.
        owner: The worker's transactional id. The next owner uses it to end a transaction that was left open.
        processor: The processor that owns the changelog; empty in records that old Holdfast versions wrote.
        generation: The number of the deployment that started the worker; 0 for a worker without a deployment.
        commands: The ``once`` names of the last owner commands that changed the state, oldest first.
        keys: Text lines, made by the module ``steps.meaning``, that describe how the keys of the store are made.
        codec: Name and version of the codec that wrote the store's values; UNSET for JSON.
    """

    inputs: Mapping[str, int]
    transaction: int
    code_version: str
    sources: Mapping[str, str] = {}
    owner: str = ""
    processor: str = ""
    generation: int = 0
    version: int = META_VERSION
    commands: Commands = msgspec.UNSET
    keys: KeyLines = msgspec.UNSET
    codec: str | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> bytes:
        """Encodes the record as JSON."""
        return encode_json(self)

    @staticmethod
    def decode(raw: bytes) -> ChangelogMeta:
        """Decodes a record from JSON; raises FormatUnknown for an unknown format version or damaged bytes."""
        try:
            version = _VERSIONED.decode(raw).version
            if version == META_VERSION:
                return _with_known_codec(_META.decode(raw))
        except JSON_FAILURES as failure:
            raise _unknown(f"A changelog's meta record can't be read ({failure})", "its JSON") from failure
        raise _unknown(f"A changelog's meta record has version {version}", META_VERSION, version=version)


def _with_known_codec(meta: ChangelogMeta) -> ChangelogMeta:
    if meta.codec and meta.codec not in LABELS:
        raise _unknown(f"A changelog has values of the codec {meta.codec!r}", f"one of {', '.join(sorted(LABELS))}")
    return meta


def with_command(before: Commands, name: str) -> Commands:
    """Returns ``before`` (the ``once`` names of a task's last owner commands) with ``name`` added.

    At most ``COMMANDS_KEPT`` names remain. An empty ``name`` adds nothing.
    """
    return (*(before or ()), name)[-COMMANDS_KEPT:] if name else before


class _Versioned(msgspec.Struct):
    version: Any = None


_VERSIONED, _META = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(ChangelogMeta)
