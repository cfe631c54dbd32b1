"""The bytes of a changelog record and of a stored value; versioned, never pickled.

    key    0x01 | u32 BE length of the message key | message key | state key (UTF-8)
    value  0x01 | codec | int64 BE event time in ms | payload          (no value: the key is deleted)
    meta   key 0x00 "meta", value JSON: next input offsets and more    (never part of the state)

The first byte of key and value is the format version. The message key is length-prefixed, so that no two
pairs of (message key, state key) share their bytes.

Invariants:
    - What this version writes, every later version reads; an unknown version is refused by name.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError

KEY_VERSION = 1
VALUE_VERSION = 1
META_VERSION = 1
CODEC_JSON = 1
CODEC_BYTES = 2

META_KEY = b"\x00meta"
#: The input offset in the meta record of a changelog that is being written from elsewhere, and is not whole yet: no
#: group ever has it committed, so nobody takes such a changelog for state.
UNFINISHED = -1

_LENGTH = struct.Struct(">BI")
_JSON_HEAD = struct.Struct(">BBq")
HEAD_SIZE = _JSON_HEAD.size
pack_head = _JSON_HEAD.pack

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


class FormatUnknown(HoldfastError):
    """Bytes on disk or in a changelog have a version that this code can't read."""

    exit_code = EXIT_BAD_CONFIGURATION


class ValueNotStorable(HoldfastError):
    """A state value can't be written as JSON."""


def key_prefix(message_key: bytes) -> bytes:
    """What the keys of all state of one message key begin with."""
    return _LENGTH.pack(KEY_VERSION, len(message_key)) + message_key


def full_keys(message_keys: Collection[bytes], state_key: bytes, before: bytes = b"") -> list[bytes]:
    """The keys of one state key for many message keys, each with ``before`` in front."""
    heads = {length: before + _LENGTH.pack(KEY_VERSION, length) for length in set(map(len, message_keys))}
    return [heads[len(key)] + key + state_key for key in message_keys]


def split_key(key: bytes) -> tuple[bytes, str]:
    """Take a data key apart into message key and state key.

    Raises:
        FormatUnknown: The key's version is not ours.
    """
    if key[:1] != bytes([KEY_VERSION]):
        raise FormatUnknown(
            f"A changelog key begins with version {key[:1].hex() or 'nothing'}, expected {KEY_VERSION:02x}.",
            action="Run the Holdfast version that wrote it, or a newer one.",
        )
    _, length = _LENGTH.unpack_from(key)
    start = _LENGTH.size
    return key[start : start + length], key[start + length :].decode()


def encode_value(value: Any, timestamp_ms: int, *, where: str = "") -> bytes:
    """Wrap a JSON value.

    Raises:
        ValueNotStorable: The value has a part that JSON can't hold.
    """
    try:
        payload = encode_json(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError("bytes would come back as text")
        if b"null" in payload and not _is_finite(value):
            raise ValueError("NaN and infinity would come back as null")
    except (TypeError, ValueError, OverflowError, msgspec.EncodeError) as failure:
        raise ValueNotStorable(
            f"A state value of type {type(value).__name__}{where} can't be written as JSON: {failure}.",
            action="Set values made of dict, list, str, int, float, bool and None, or use set_bytes.",
            value_type=type(value).__name__,
        ) from failure
    return pack_head(VALUE_VERSION, CODEC_JSON, timestamp_ms) + payload


def _is_finite(value: Any) -> bool:
    """Whether there is no float in a value that JSON has no number for."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_finite(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_is_finite(part) for part in value)
    return True


def encode_bytes(value: bytes, timestamp_ms: int) -> bytes:
    """Wrap raw bytes."""
    return pack_head(VALUE_VERSION, CODEC_BYTES, timestamp_ms) + value


def decode_value(stored: bytes) -> Any:
    """The value inside an envelope: any JSON value, or bytes.

    Raises:
        FormatUnknown: The version or the codec is not one of ours.
    """
    if stored[0] != VALUE_VERSION:
        raise FormatUnknown(
            f"A stored value has format version {stored[0]}, expected {VALUE_VERSION}.",
            action="Run the Holdfast version that wrote it, or a newer one.",
            version=stored[0],
        )
    if stored[1] == CODEC_JSON:
        return decode_json(stored[HEAD_SIZE:])
    if stored[1] == CODEC_BYTES:
        return stored[HEAD_SIZE:]
    raise FormatUnknown(
        f"A stored value has codec {stored[1]}, expected {CODEC_JSON} (JSON) or {CODEC_BYTES} (bytes).",
        action="Run the Holdfast version that wrote it, or a newer one.",
        codec=stored[1],
    )


def event_time_ms(stored: bytes) -> int:
    """The event time of the message that wrote a value, in milliseconds."""
    return int(_JSON_HEAD.unpack_from(stored)[2])


@dataclass(frozen=True, slots=True)
class ChangelogMeta:
    """What every transaction leaves in each changelog of its task: the inputs that the state now holds.

    ``sources`` has the topic ids of the inputs, so that a source that was made anew is known; ``owner`` is the
    transactional id of the worker, so that its heir can end what it leaves open.
    """

    inputs: Mapping[str, int]
    transaction: int
    code_version: str
    sources: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""

    def encode(self) -> bytes:
        """As JSON bytes."""
        return encode_json(
            {
                "version": META_VERSION,
                "inputs": dict(self.inputs),
                "transaction": self.transaction,
                "code_version": self.code_version,
                "sources": dict(self.sources),
                "owner": self.owner,
            }
        )

    @staticmethod
    def decode(raw: bytes) -> ChangelogMeta:
        """From JSON bytes.

        Raises:
            FormatUnknown: The version is not ours.
        """
        fields = json.loads(raw)
        if fields.get("version") != META_VERSION:
            raise FormatUnknown(
                f"A changelog's meta record has version {fields.get('version')}, expected {META_VERSION}.",
                action="Run the Holdfast version that wrote it, or a newer one.",
                version=fields.get("version"),
            )
        return ChangelogMeta(
            fields["inputs"],
            fields["transaction"],
            fields["code_version"],
            fields.get("sources", {}),
            fields.get("owner", ""),
        )
