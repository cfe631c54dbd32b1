"""Makes Kafka records from lines of JSON. A record's value is the whole line; fields of the line give key and time.

Invariants:
    - All lines are checked before the first record is sent. So if one line is invalid, no record is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION

#: Maximum number of invalid lines that an error names.
SHOWN = 5
_FIELD = re.compile(r"\{([^{}]*)\}")
_decode = msgspec.json.Decoder().decode


class BadLines(HoldfastError):
    """Some lines are invalid, so no record was sent. Fields: bad (number of such lines), line (the first one)."""

    exit_code = EXIT_BAD_CONFIGURATION


class _Unfit(Exception):
    """A line that can't become a record; the text of the error is the reason."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Describes how a line becomes a record.

    Args:
        key: Field with the record's key, for example ``id`` or ``plane.id``, or a template such as ``{from}-{to}``.
            Empty: records without a key.
        time: Field with the record's time, in ms since 1970 or in ISO 8601. Empty: the present time.
        bytes_max: Maximum bytes of key and value together.
    """

    key: str = ""
    time: str = ""
    bytes_max: int = 1_000_000


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """A record to send; ``timestamp_ms`` is milliseconds since 1970, or None for the present time."""

    key: bytes | None
    value: bytes
    timestamp_ms: int | None


def judge(lines: Iterable[bytes], shape: Shape) -> int:
    """Check all lines; returns the number of records in them. Empty lines are ignored.

    Raises:
        BadLines: Some lines are invalid.
    """
    told: list[str] = []
    count = bad = 0
    first = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record_of(line, shape)
            count += 1
        except _Unfit as unfit:
            bad, first = bad + 1, first or number
            if len(told) < SHOWN:
                told.append(f"line {number}: {unfit}")
    if bad:
        more = f"; and {bad - len(told)} more" if bad > len(told) else ""
        raise BadLines(
            f"{bad} of {count + bad} lines can't be sent: {'; '.join(told)}{more}.",
            action="Correct these lines, then repeat the command; nothing was sent.",
            bad=bad,
            line=first,
        )
    return count


def records(lines: Iterable[bytes], shape: Shape) -> Iterator[JsonRecord]:
    """The records of lines that ``judge`` accepted; empty lines are skipped."""
    return (record_of(line, shape) for line in lines if line.strip())


def record_of(line: bytes, shape: Shape) -> JsonRecord:
    """The record that one line describes; raises ``_Unfit`` if the line is invalid."""
    value = line.strip()
    try:
        document = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as failure:
        raise _Unfit(f"it is no JSON ({failure})") from failure
    key = _key(document, shape.key) if shape.key else None
    size = len(value) + len(key or b"")
    if size > shape.bytes_max:
        raise _Unfit(f"it has {size:,} bytes, expected at most {shape.bytes_max:,}")
    return JsonRecord(key, value, _time_ms(document, shape.time) if shape.time else None)


def _key(document: Any, spec: str) -> bytes:
    if "{" not in spec:
        return _text(_field(document, spec), spec).encode()
    return _FIELD.sub(lambda found: _text(_field(document, found[1]), found[1]), spec).encode()


def _field(document: Any, path: str) -> Any:
    found = document
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            raise _Unfit(f"it has no field `{path}`")
        found = found[name]
    return found


def _text(value: Any, path: str) -> str:
    if value is None or isinstance(value, dict | list):
        raise _Unfit(f"its field `{path}` is {'null' if value is None else 'no single value'}, expected a key")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _time_ms(document: Any, path: str) -> int:
    value = _field(document, path)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        seen = msgspec.json.encode(value).decode()[:60]
        raise _Unfit(f"its field `{path}` is {seen}, expected ms since 1970 or a time in ISO 8601") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
