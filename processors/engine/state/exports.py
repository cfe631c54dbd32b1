"""Files of exported state, with one JSON line for each entry of a store. ``entry_of`` converts a line back to an entry.

While a file is written, its name ends with ``.part``.

    {"store": "totals", "partition": 0, "key": "alice", "state": "n", "timestamp_ms": 1700000000000, "value": 3}

A key that is not UTF-8 text is written as ``key_base64``. A value that ``set_bytes`` stored is written as
``value_base64``. If the store writes its values with another codec than JSON, a value is written twice: as JSON for
readers, and as the exact bytes::

    {"store": "totals", ..., "value": {"seen": [1, 2]}, "codec": "typed 1", "payload_base64": "gaRzZWVu..."}
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.processors.engine.changelog.codec_table import BY_NUMBER, CODED
from holdfast.processors.engine.changelog.format import (
    CODEC_BYTES,
    CODEC_JSON,
    HEAD_SIZE,
    VALUE_VERSION,
    FormatUnknown,
    decode_json,
    decode_value,
    encode_bytes,
    event_time_ms,
    key_prefix,
    pack_head,
    split_key,
)
from holdfast.processors.engine.changelog.stored_values import json_text

_encode = msgspec.json.Encoder().encode


class ExportFile:
    """Writes an export file ``<UTC time>-<name>.jsonl``. Until ``finish`` is called, its name ends with ``.part``.

    Raises (from every method):
        OSError: The disk refused a write.
    """

    def __init__(self, folder: Path, name: str, now: float) -> None:
        self._finished = False
        folder.mkdir(parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(now, UTC)
        while True:
            self.path = folder / f"{moment:%Y%m%dT%H%M%S%f}-{name}.jsonl"
            self._part = self.path.with_suffix(".part")
            with suppress(FileExistsError):
                self._file = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
                if not self.path.exists():
                    break
                self.close()
            moment += timedelta(microseconds=1)
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of all lines written up to now, as hex."""
        return self._hash.hexdigest()

    def write(self, store: str, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Appends entries, given as changelog keys with their stored values.

        Raises FormatUnknown if an entry has an unknown format.
        """
        lines = b"".join(_encode(line_of(store, partition, key, value)) + b"\n" for key, value in entries)
        self._file.write(lines)
        self._hash.update(lines)

    def finish(self) -> None:
        """Flushes the file to the disk and renames it to its final name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._finished = True

    def close(self) -> None:
        """Closes the file, and deletes it if ``finish`` was not called."""
        if not self._finished:
            self._file.close()
            self._part.unlink(missing_ok=True)


class ExportUnreadable(HoldfastError):
    """A line of a file does not have the format of an export. The error's field ``line`` is the line number."""

    exit_code = EXIT_BAD_CONFIGURATION


class Entry(msgspec.Struct, frozen=True):
    """One entry of an export file. ``key`` is its changelog key, ``stored`` the exact bytes of its value."""

    store: str
    partition: int
    message_key: bytes
    key: bytes
    stored: bytes


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str
    partition: int
    state: str
    timestamp_ms: int
    key: str | None = None
    key_base64: bytes | None = None
    value: msgspec.Raw = msgspec.Raw()
    value_base64: bytes | None = None
    codec: str | None = None
    payload_base64: bytes | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def entry_of(line: bytes, number: int) -> Entry:
    """Parses a line to an entry with the exact exported bytes. ``number`` is the line number, used in the error.

    Raises:
        ExportUnreadable: The line does not have the format of an export.
    """
    try:
        found = _decode_line(line)
        raw = bytes(found.value)
        if (found.key is None) == (found.key_base64 is None) or bool(raw) == (found.value_base64 is not None):
            raise ValueError("an entry has one of `key` and `key_base64`, and one of `value` and `value_base64`")
        if found.partition < 0:
            raise ValueError(f"its partition is {found.partition}")
        if found.codec is not None or found.payload_base64 is not None:
            stored = _coded(found)
        elif found.value_base64 is None:
            stored = pack_head(VALUE_VERSION, CODEC_JSON, found.timestamp_ms) + raw
            decode_value(stored)
        else:
            stored = encode_bytes(found.value_base64, found.timestamp_ms)
    except (*JSON_FAILURES, ValueError, struct.error, FormatUnknown) as failure:
        raise ExportUnreadable(
            f"Line {number} is no entry of an export: {str(failure).rstrip('.')}.",
            action="Name a file that an export wrote, or correct this line.",
            line=number,
        ) from failure
    message_key = found.key_base64 if found.key is None else found.key.encode()
    assert message_key is not None
    return Entry(found.store, found.partition, message_key, key_prefix(message_key) + found.state.encode(), stored)


def _coded(found: _Line) -> bytes:
    """Returns the stored value of a line that has a codec and a payload.

    Raises ValueError if the line's JSON value differs from its payload.
    """
    codec = next((each for each in CODED if each.label == found.codec), None)
    if codec is None:
        known = ", ".join(each.label for each in CODED)
        raise ValueError(f"its codec is {found.codec!r}, expected one of {known}")
    if found.payload_base64 is None:
        raise ValueError(f"it has the codec {found.codec!r}, and no `payload_base64`")
    stored = pack_head(VALUE_VERSION, codec.number, found.timestamp_ms) + found.payload_base64
    if decode_json(json_text(stored) or b"") != decode_json(found.value):
        raise ValueError(
            "its `value` is not the value of its `payload_base64`. To put an edited value back as JSON, take `codec` "
            "and `payload_base64` out of the line"
        )
    decode_value(stored)
    return stored


def answer_of(store: str, partition: int, key: bytes, stored: bytes) -> dict[str, Any]:
    """Converts an entry to JSON types for an HTTP answer: the data of its export line without the payload.

    Raises FormatUnknown if the entry has an unknown format.
    """
    line = line_of(store, partition, key, stored)
    line.pop("codec", None)
    line.pop("payload_base64", None)
    answer: dict[str, Any] = decode_json(_encode(line))
    return answer


def line_of(store: str, partition: int, key: bytes, stored: bytes) -> dict[str, Any]:
    """Converts an entry to the data of its export line, which msgspec encodes as JSON.

    Raises FormatUnknown if the entry has an unknown format.
    """
    message_key, state = split_key(key)
    line: dict[str, Any] = {"store": store, "partition": partition}
    try:
        line["key"] = message_key.decode()
    except UnicodeDecodeError:
        line["key_base64"] = message_key
    line |= {"state": state, "timestamp_ms": event_time_ms(stored)}
    value = decode_value(stored)
    if stored[1] == CODEC_BYTES:
        line["value_base64"] = value
        return line
    line["value"] = msgspec.Raw(json_text(stored) or b"")
    if stored[1] != CODEC_JSON:
        line |= {"codec": BY_NUMBER[stored[1]].label, "payload_base64": stored[HEAD_SIZE:]}
    return line


def entries_in(path: str, store: str) -> Iterator[Entry]:
    """Yields the entries of one store in an export file.

    Raises:
        ExportUnreadable: A line does not have the format of an export.
        OSError: The file can't be read.
    """
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                entry = entry_of(line, number)
                if entry.store == store:
                    yield entry


def sha256_of(path: str) -> str:
    """Returns the SHA-256 of a file's bytes, as hex. Raises OSError."""
    with Path(path).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
