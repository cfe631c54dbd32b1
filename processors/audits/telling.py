"""An audit as it is shown: a row for each key that differs, and one JSON document; pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.processors.audits.comparison import SHOWN, Entry, KeyDifference, Moment, Side
from holdfast.processors.engine.changelog.format import decode_value, split_key

if TYPE_CHECKING:
    from holdfast.processors.audits.copies import Stray
    from holdfast.processors.audits.repair import Subject
    from holdfast.processors.audits.stores import StoreAudit

#: The most characters of a shown value.
VALUE_CHARACTERS = 120

UNJUDGED = (
    "{:,} keys of the table can't be judged: compaction removed the changelog's records of them at the table's "
    "offsets, because there are newer ones. Audit soon after a snapshot."
)


def told_key(difference: KeyDifference) -> dict[str, Any]:
    """One differing key as a row: the key, the copy that is wrong, and the value of each copy."""
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
    """The warning about records that another program wrote after the worker's last commit, with the action."""
    return (
        f"partition {stray.partition}: {stray.records:,} records of {subject.changelog} after the worker's offset "
        f"{stray.end} are not the worker's (the first at offset {stray.offset}, {_time(stray.timestamp_ms)}). The "
        "store lacks them, but a restore would read them as state. Allow only the processor to write to "
        f"{subject.changelog}; don't restore and don't move partitions. After the worker's next commit in this "
        "partition, audit again: the audit then names the keys and the repair."
    )


def document(audit: StoreAudit) -> dict[str, Any]:
    """An audit as JSON-ready data."""
    manifest = None if audit.tabled is None else audit.tabled.manifest
    return {
        "store": audit.store,
        "equal": not audit.differences,
        "differences": list(audit.differences),
        "warnings": list(audit.warnings),
        "partitions": [_moment(moment) for moment in audit.moments],
        "keys_differing": sum(moment.differing for moment in audit.moments),
        "keys_unjudged": audit.unjudged,
        "keys": [told_key(one) for moment in audit.moments for one in moment.first][:SHOWN],
        "repair": list(audit.repair),
        "snapshot": None
        if manifest is None or audit.tabled is None
        else {
            "id": manifest.snapshot_id,
            "table": manifest.table,
            "source": manifest.source,
            "taken_at": manifest.taken_at,
            "untouched": audit.tabled.untouched,
        },
    }


def _moment(moment: Moment) -> dict[str, Any]:
    wholes = moment.wholes
    told = {Side.STORE: "stored", Side.CHANGELOG: "folded", Side.WAREHOUSE: "tabled"}
    return {
        "partition": moment.partition,
        "offset": moment.place.offset,
        "keys": next(iter(wholes.values())).count,
        **{name: wholes[side].hex if side in wholes else None for side, name in told.items()},
        "keys_differing": {odd.value: count for odd, count in moment.odd.items()},
        "keys_unjudged": moment.unjudged,
        "buckets_differing": list(moment.by_bucket),
    }


def _key(key: bytes) -> tuple[str, str]:
    try:
        message_key, state_key = split_key(key)
        return message_key.decode(), state_key
    except Exception:  # a key of an unknown format is shown as bytes
        return f"0x{key.hex()}", ""


def _shown(entry: Entry | None) -> str:
    """The values of a copy as text; empty where there is no such copy."""
    if entry is None:
        return ""
    if not entry.values:
        return "absent"
    return " and ".join(_value(value) for value in entry.values)


def _value(value: bytes) -> str:
    try:
        decoded = decode_value(value)
        text = f"0x{decoded.hex()}" if isinstance(decoded, bytes) else json.dumps(decoded, ensure_ascii=False)
    except Exception:  # a value of an unknown format is shown as bytes
        text = f"0x{value.hex()}"
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
