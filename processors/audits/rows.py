"""Formats the result of an audit as rows and sentences, with one row for each differing key; pure functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.processors.audits.comparison import Entry, KeyDifference, Side
from holdfast.processors.audits.copies import Stray
from holdfast.processors.audits.repair import Subject
from holdfast.processors.engine.changelog.format import HEAD_SIZE, split_key
from holdfast.processors.engine.changelog.stored_values import json_text

#: Maximum number of characters of a value that are shown.
VALUE_CHARACTERS = 120

UNJUDGED = (
    "{:,} keys of the table can't be judged: compaction removed the changelog's records of them at the table's "
    "offsets, because there are newer ones. Audit soon after a snapshot."
)


def key_row(difference: KeyDifference) -> dict[str, Any]:
    """One differing key as a row: the key, the copies that differ, and the value in each copy."""
    message_key, state_key = _key(difference.key)
    record = difference.entries.get(Side.CHANGELOG, Entry())
    return {
        "partition": difference.partition,
        "key": message_key,
        "state_key": state_key,
        "wrong": difference.odd.value,
        **{side.value: _shown(difference.entries.get(side)) for side in Side},
        "record_offset": "" if record.offset is None else record.offset,
        "record_time": "" if record.timestamp_ms is None else _time(record.timestamp_ms),
    }


def stray_warning(subject: Subject, stray: Stray) -> str:
    """The warning that another program wrote records after the worker's last commit, with the action to take."""
    return (
        f"partition {stray.partition}: {stray.records:,} records of {subject.changelog} after the worker's offset "
        f"{stray.end} are not the worker's (the first at offset {stray.offset}, {_time(stray.timestamp_ms)}). The "
        "store lacks them, but a restore would read them as state. Allow only the processor to write to "
        f"{subject.changelog}; don't restore and don't move partitions. After the worker's next commit in this "
        "partition, audit again: the audit then names the keys and the repair."
    )


def _key(key: bytes) -> tuple[str, str]:
    try:
        message_key, state_key = split_key(key)
        return message_key.decode(), state_key
    except Exception:  # If the key has an unknown format, its bytes are shown as hexadecimal digits.
        return f"0x{key.hex()}", ""


def _shown(entry: Entry | None) -> str:
    """The values of one copy as text; empty if this copy was not part of the comparison."""
    if entry is None:
        return ""
    if not entry.values:
        return "absent"
    return " and ".join(_value(value) for value in entry.values)


def _value(value: bytes) -> str:
    try:
        shown = json_text(value)
        text = f"0x{value[HEAD_SIZE:].hex()}" if shown is None else json.dumps(json.loads(shown), ensure_ascii=False)
    except Exception:  # If the value has an unknown format, its bytes are shown as hexadecimal digits.
        text = f"0x{value.hex()}"
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
