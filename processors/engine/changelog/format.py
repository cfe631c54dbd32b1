"""The bytes of changelog records and stored values.

    key    0x01 | u32 BE length of the message key | message key | state key (UTF-8)
    value  0x01 | codec | int64 BE event time in ms | payload          (no value: the key is deleted)
    meta   key 0x00 "meta", value JSON: next input offsets and more    (never part of the state)

The first byte of a key and of a value is the format version. The message key is length-prefixed, so that different
pairs of message key and state key have different bytes.

Invariants:
    - Every later version reads what this version writes; an unknown version is refused.
    - Nothing is pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import msgspec

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.changelog.json_values import ALWAYS_BACK, comes_back, state_fault

KEY_VERSION = 1
VALUE_VERSION = 1
META_VERSION = 1
CODEC_JSON = 1
CODEC_BYTES = 2

META_KEY = b"\x00meta"
#: Number of owner commands that a task remembers by name; a repetition comes soon, or after few other commands.
COMMANDS_KEPT = 8
#: Names of the owner commands that a task carried out last; UNSET, and absent from the JSON, before the first.
Commands = tuple[str, ...] | msgspec.UnsetType
#: The rules that compute the keys of a store, one line for each. UNSET in records of versions without this field, and
#: for stores whose keys are the keys of their topics.
KeyLines = tuple[str, ...] | msgspec.UnsetType
#: The input offset in the meta record of a changelog while it is loaded from the warehouse. No group ever commits this
#: offset, so no worker restores from such a changelog.
UNFINISHED = -1

_LENGTH = struct.Struct(">BI")
#: The bytes of a changelog key before its message key: a version (one byte) and the length of the message key.
PREFIX_BYTES = _LENGTH_BYTES = _LENGTH.size
_JSON_HEAD = struct.Struct(">BBq")
HEAD_SIZE = _JSON_HEAD.size
pack_head = _JSON_HEAD.pack

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode

#: Values nested up to this depth can be read even if the reader itself is deep in calls.
_NESTING_READ = 300
_key_head, _value_head = itemgetter(slice(0, _LENGTH_BYTES)), itemgetter(slice(0, 2))
#: The action for bytes of a newer version.
RUN_ITS_WRITER = "Run the Holdfast version that wrote it, or a newer version."
_VALUE_HEADS = frozenset({bytes([VALUE_VERSION, CODEC_JSON]), bytes([VALUE_VERSION, CODEC_BYTES])})


class FormatUnknown(BadConfiguration):
    """Bytes on disk or in a changelog have no format that this code reads.

    Another version wrote them, or they are damaged.
    """


def unknown_version(what: str, seen: object, expected: int, *, action: str = RUN_ITS_WRITER) -> FormatUnknown:
    """The error for ``what``, whose format has a version that this code does not read."""
    return FormatUnknown(f"{what} has format version {seen}, expected {expected}.", action=action, version=seen)


class ValueNotStorable(HoldfastError):
    """A state value can't be written as JSON."""


def key_prefix(message_key: bytes) -> bytes:
    """The prefix of all changelog keys of one message key."""
    return _LENGTH.pack(KEY_VERSION, len(message_key)) + message_key


def prefix_of(key: bytes) -> bytes:
    """The ``key_prefix`` of the message key of a changelog key."""
    return key[: _bytes_needed(key)]


def full_keys(message_keys: Collection[bytes], state_key: bytes, before: bytes = b"") -> list[bytes]:
    """The changelog keys of one state key for many message keys, each with ``before`` in front."""
    heads = {length: before + _LENGTH.pack(KEY_VERSION, length) for length in set(map(len, message_keys))}
    return [heads[len(key)] + key + state_key for key in message_keys]


def split_key(key: bytes) -> tuple[bytes, str]:
    """The message key and the state key of a changelog key; raises FormatUnknown for any other bytes."""
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
    """The stored form of a JSON value; raises ValueNotStorable, whose text ends with ``where``.

    A value that JSON would not return unchanged can't be stored.
    """
    try:
        payload = encode_json(value)
        if type(value) not in ALWAYS_BACK and not comes_back(value, payload):
            fault = state_fault(value, payload)
            if fault is not None:
                raise TypeError(fault)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as failure:
        raise ValueNotStorable(
            f"A state value of type {type(value).__name__}{where} can't be written as JSON: {failure}.",
            action="Set values made of dict with text keys, list, str, int, float, bool and None, or use "
            "`state.set_bytes`.",
            value_type=type(value).__name__,
        ) from failure
    return pack_head(VALUE_VERSION, CODEC_JSON, timestamp_ms) + payload


def encode_bytes(value: bytes, timestamp_ms: int) -> bytes:
    """The stored form of raw bytes; raises TypeError for something else."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"the value is {repr(value)[:80]} of type {type(value).__name__}, expected bytes: use state.set()"
        )
    return pack_head(VALUE_VERSION, CODEC_BYTES, timestamp_ms) + value


def decode_value(stored: bytes) -> Any:
    """The JSON value or the bytes of a stored value; raises FormatUnknown for any other bytes."""
    if stored[:2] not in _VALUE_HEADS or len(stored) < HEAD_SIZE:
        _check_head(stored)
    if stored[1] == CODEC_BYTES:
        return stored[HEAD_SIZE:]
    try:
        return decode_json(stored[HEAD_SIZE:])
    except JSON_FAILURES as failure:
        raise _unknown(f"A stored value is no JSON that can be read ({failure})", "JSON") from failure


def is_too_deep(stored: bytes) -> bool:
    """Whether a stored value may be nested too deeply for every reader."""
    return stored.count(b"[") + stored.count(b"{") > _NESTING_READ


def _check_head(stored: bytes) -> None:
    """Raises FormatUnknown unless the bytes begin like a stored value."""
    if len(stored) < HEAD_SIZE:
        raise _unknown(f"A stored value has {len(stored)} bytes", f"{HEAD_SIZE} or more")
    if stored[0] != VALUE_VERSION:
        raise _unknown(f"A stored value has format version {stored[0]}", VALUE_VERSION, version=stored[0])
    if stored[1] not in (CODEC_JSON, CODEC_BYTES):
        known = f"{CODEC_JSON} (JSON) or {CODEC_BYTES} (bytes)"
        raise _unknown(f"A stored value has codec {stored[1]}", known, codec=stored[1])


def are_records(keys: Sequence[bytes], values: Sequence[bytes | None]) -> bool:
    """Whether all records have keys and values of these formats; a value's JSON is not read.

    It is called for each batch of a restore, so the checks run over whole lists, without a Python step for each record.
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
    """The minimum length of a changelog key in bytes, by the length of its message key."""
    return _LENGTH_BYTES + int.from_bytes(key[1:_LENGTH_BYTES], "big")


def check_records(
    topic: str, partition: int, keys: Sequence[bytes], values: Sequence[bytes | None], offsets: Sequence[int]
) -> None:
    """Check the format of a changelog's data records.

    Raises:
        FormatUnknown: A record has another format; the error names its place.
    """
    if are_records(keys, values):
        return
    for key, value, offset in zip(keys, values, offsets, strict=True):
        if not are_records([key], [value]):
            seen = f"its key begins with {key[:_LENGTH_BYTES]!r}, its value with {(value or b'')[:2]!r}"
            raise _foreign(topic, partition, offset, seen)


def decode_meta(topic: str, partition: int, offset: int, raw: bytes) -> ChangelogMeta:
    """The meta record at a place of a changelog.

    Raises:
        FormatUnknown: The bytes are of another version, or damaged; the error names their place.
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
    """The event time of the message that wrote a value, in milliseconds; raises FormatUnknown for any other bytes."""
    _check_head(stored)
    return int(_JSON_HEAD.unpack_from(stored)[2])


class ChangelogMeta(msgspec.Struct, frozen=True):
    """The meta record that every transaction writes to each changelog of its task, as JSON.

    Attributes:
        inputs: The next input offset of each topic; the state includes all messages before it.
        sources: The topic ids of the inputs; a recreated source has another id.
        owner: The worker's transactional id. The next owner uses it to end a transaction that was left open.
        processor: The processor that owns the changelog; empty in records of versions without this field.
        generation: The generation of the deployment that started the worker; 0 for other workers.
        commands: Names of the owner commands whose effects the state holds, oldest first.
        keys: What the keys of the store's state are made of, in the lines of ``steps.meaning``.
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

    def encode(self) -> bytes:
        """The record as JSON."""
        return encode_json(self)

    @staticmethod
    def decode(raw: bytes) -> ChangelogMeta:
        """The record of these JSON bytes; raises FormatUnknown for any other bytes."""
        try:
            version = _VERSIONED.decode(raw).version
            if version == META_VERSION:
                return _META.decode(raw)
        except JSON_FAILURES as failure:
            raise _unknown(f"A changelog's meta record can't be read ({failure})", "its JSON") from failure
        raise _unknown(f"A changelog's meta record has version {version}", META_VERSION, version=version)


def with_command(before: Commands, name: str) -> Commands:
    """The names of a task's last commands plus one more; an empty name changes nothing."""
    return (*(before or ()), name)[-COMMANDS_KEPT:] if name else before


class _Versioned(msgspec.Struct):
    version: Any = None


_VERSIONED, _META = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(ChangelogMeta)
