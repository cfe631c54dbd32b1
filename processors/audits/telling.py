"""The rows and sentences that show an audit: one row for each key that differs; pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from holdfast.processors.audits.comparison import Entry, KeyDifference, Side
from holdfast.processors.audits.copies import Stray
from holdfast.processors.audits.repair import Subject
from holdfast.processors.engine.changelog.format import decode_value, split_key

#: So many characters of a value are shown.
VALUE_CHARACTERS = 120

UNJUDGED = (
    "{:,} keys of the table can't be judged: the changelog has newer records of them, and what it said at the table's "
    "offsets is compacted away. Audit soon after a snapshot."
)


def told_key(difference: KeyDifference) -> dict[str, Any]:
    """One key that differs, as a row: which, and what each copy has of it."""
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


def told_stray(subject: Subject, stray: Stray) -> str:
    """Records that somebody else wrote behind the owner's offset, and what to do about them."""
    return (
        f"partition {stray.partition}: {stray.records:,} records of {subject.changelog} lie behind offset {stray.end}, "
        f"which its owner is at, and are not the owner's (the first at offset {stray.offset}, "
        f"{_time(stray.timestamp_ms)}). The store does not have them; whoever restores takes them for state. Take the "
        f"right to write to {subject.changelog} from everybody but the processor, and don't restore and don't move "
        "partitions. Once the owner has committed again in that partition, an audit names the keys and what mends them."
    )


def _key(key: bytes) -> tuple[str, str]:
    try:
        message_key, state_key = split_key(key)
        return message_key.decode(), state_key
    except Exception:  # a foreign key is shown as it is
        return f"0x{key.hex()}", ""


def _shown(entry: Entry | None) -> str:
    """Values as people read them; nothing where there is no such copy."""
    if entry is None:
        return ""
    if not entry.values:
        return "absent"
    return " and ".join(_value(value) for value in entry.values)


def _value(value: bytes) -> str:
    try:
        decoded = decode_value(value)
        text = f"0x{decoded.hex()}" if isinstance(decoded, bytes) else json.dumps(decoded, ensure_ascii=False)
    except Exception:  # whatever it is, it is shown
        text = f"0x{value.hex()}"
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
