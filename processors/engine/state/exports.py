"""Files of exported state: one JSON line for each entry. A file gets its name only when it is complete.

    {"store": "totals", "partition": 0, "key": "alice", "state": "n", "timestamp_ms": 1700000000000, "value": 3}

A key that is no UTF-8 text is written as ``key_base64``, a value of ``set_bytes`` as ``value_base64``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.processors.engine.changelog.format import CODEC_JSON, HEAD_SIZE, decode_value, event_time_ms, split_key

_encode = msgspec.json.Encoder().encode


class ExportFile:
    """A file ``<moment>-<name>.jsonl`` that is being written; its suffix is ``.part`` until it is complete.

    Raises (as all methods do):
        OSError: The disk refused.
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
        """The SHA-256 of all lines so far, as hex."""
        return self._hash.hexdigest()

    def write(self, store: str, partition: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Appends entries, given as changelog keys and stored values; raises FormatUnknown."""
        lines = b"".join(_encode(line_of(store, partition, key, value)) + b"\n" for key, value in entries)
        self._file.write(lines)
        self._hash.update(lines)

    def finish(self) -> None:
        """Syncs the file to the disk and gives it its name."""
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
        """Deletes the file if it was not finished."""
        if not self._finished:
            self._file.close()
            self._part.unlink(missing_ok=True)


def line_of(store: str, partition: int, key: bytes, stored: bytes) -> dict[str, Any]:
    """The line of an entry, as data that msgspec encodes; raises FormatUnknown."""
    message_key, state = split_key(key)
    line: dict[str, Any] = {"store": store, "partition": partition}
    try:
        line["key"] = message_key.decode()
    except UnicodeDecodeError:
        line["key_base64"] = message_key
    line |= {"state": state, "timestamp_ms": event_time_ms(stored)}
    value = decode_value(stored)
    if stored[1] == CODEC_JSON:
        line["value"] = msgspec.Raw(stored[HEAD_SIZE:])
    else:
        line["value_base64"] = value
    return line
