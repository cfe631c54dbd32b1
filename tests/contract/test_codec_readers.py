"""What each reader of stored values shows for values of each codec. A test checks that the lists here are complete.

`READERS` lists the readers by module. `ALWAYS_JSON` lists modules that read only Holdfast's own records and the values
of built-in steps, which are always JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from holdfast.assets.spark.history import decoded_text
from holdfast.processors.audits.comparison import Entry, KeyDifference, Odd, Side
from holdfast.processors.audits.rows import key_row
from holdfast.processors.engine.changelog.codec_table import BY_NUMBER, CODECS
from holdfast.processors.engine.changelog.format import are_records, decode_value, event_time_ms, key_prefix
from holdfast.processors.engine.changelog.stored_values import encode_coded, json_text
from holdfast.processors.engine.queries.entries import raw_value
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.state.exports import ExportUnreadable, answer_of, entry_of, line_of
from holdfast.processors.snapshots.column_reader import ColumnReader

ROOT = Path(__file__).parents[2]
KEY, T = key_prefix(b"alice") + b"cart", 1_700_000_000_000


class Cart(BaseModel):
    n: int
    parts: list[Any]


def _columns(stored: bytes) -> Any:
    text = json_text(stored)
    return None if text is None else (ColumnReader(schema_of(Cart)).content("cart", text) or {}).get("parts")


def _answer(stored: bytes) -> Any:
    return (answer_of("s", 0, KEY, stored).get("value") or {}).get("parts")


def _queried(stored: bytes) -> Any:
    payload, kind = raw_value(stored)
    return msgspec.json.decode(payload)["parts"] if kind == "application/json" else None


def _export(stored: bytes) -> Any:
    line = msgspec.json.encode(line_of("s", 0, KEY, stored))
    assert entry_of(line, 1).stored == stored, "an export restores the exact bytes"
    return (msgspec.json.decode(line).get("value") or {}).get("parts")


def _audit(stored: bytes) -> Any:
    found = KeyDifference(0, 0, KEY, next(iter(Odd)), {Side.STORE: Entry((stored,))})
    shown = key_row(found)[Side.STORE.value]
    return None if shown.startswith("0x") else msgspec.json.decode(shown)["parts"]


def _spark(stored: bytes) -> Any:
    """Spark SQL parses JSON itself, and calls ``decoded_text`` for other codecs."""
    text = decoded_text(stored)
    assert (text is None) == (stored[1] in (1, 2))
    return msgspec.json.decode(text or json_text(stored) or b"{}").get("parts")


def _restore(stored: bytes) -> Any:
    assert are_records([KEY], [stored])
    assert event_time_ms(stored) == T
    return msgspec.json.decode(json_text(stored) or b"{}").get("parts")


#: By module: a function that returns what the module shows for the field ``parts`` of a value. It returns None for raw
#: bytes.
READERS: Mapping[str, Callable[[bytes], Any]] = {
    "assets/spark/history.py": _spark,
    "assets/spark/writing/typed_sample.py": _columns,
    "processors/audits/rows.py": _audit,
    "processors/engine/changelog/format.py": _restore,
    "processors/engine/changelog/stored_values.py": _restore,
    "processors/engine/commands/read.py": _answer,
    "processors/engine/queries/entries.py": _queried,
    "processors/engine/state/exports.py": _export,
    "processors/lifecycle/world/local_state.py": _answer,
}
#: Modules that return decoded values to user functions: tests/unit/processors/engine/state/test_coded_stores.py checks
#: them.
FOR_FUNCTIONS = {
    "processors/engine/state/methods.py",
    "processors/engine/state/store.py",
    "processors/engine/state/time/declared_store.py",
    "processors/engine/state/typed.py",
    "processors/testing/cluster.py",
}
#: Modules that read only Holdfast's own records or the values of built-in steps, which are JSON in every store. Modules
#: that only use `HEAD_SIZE` belong here, too.
ALWAYS_JSON = {
    "processors/engine/aggregates/reduce_column.py",
    "processors/engine/aggregates/row_table.py",
    "processors/engine/commands/adopt.py",
    "processors/engine/commands/put_back.py",
    "processors/engine/commands/sweep.py",
    "processors/engine/joins/as_of.py",
    "processors/engine/joins/interval.py",
    "processors/engine/sources/source_state.py",
    "processors/engine/state/databases/task_meta.py",
    "processors/engine/state/time/expiries.py",
    "processors/engine/state/time/time_records.py",
    "processors/engine/state/time/timers.py",
    "processors/engine/windows/by_columns.py",
}
_READS = re.compile(r"\b(decode_value|HEAD_SIZE|CODEC_JSON|CODEC_BYTES|decode_json|json_text|line_of|answer_of)\b")
_FROM = re.compile(r"from holdfast\.processors\.engine\.(changelog|state\.exports)\b")
_FOLDERS = ("assets", "infra", "orchestration", "processors")
#: Modules that define another function with the name ``line_of``, and read no stored values.
_OTHERS = {"processors/engine/state/time/dated_values.py"}

#: By codec: a value, and what readers show for its field ``parts``.
VALUES: Mapping[str, tuple[Any, Any]] = {
    "json": ({"n": 1, "parts": [1, "é", None]}, [1, "é", None]),
    "msgpack": (
        {"n": 1, "parts": [b"\xff", 2.5, datetime(2024, 1, 1, tzinfo=UTC)]},
        ["/w==", 2.5, "2024-01-01T00:00:00Z"],
    ),
    "typed": (
        {"n": 1, "parts": [(1, 2), {3}, Decimal("1.10"), date(2024, 1, 1), b"\xff"]},
        [[1, 2], [3], "1.10", "2024-01-01", "/w=="],
    ),
    "bytes": (b"\xff\x00", None),
}


def test_each_codec_has_a_value_here() -> None:
    assert set(VALUES) == set(CODECS) == {each.name for each in BY_NUMBER.values()}


@pytest.mark.parametrize("codec", VALUES)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_shows_the_values_of_each_codec(reader: str, codec: str) -> None:
    value, parts = VALUES[codec]
    stored = encode_coded(CODECS[codec], value, T)
    assert decode_value(stored) == value
    shown = READERS[reader](stored)
    assert _without_nulls(shown) == _without_nulls(parts)


def test_no_reader_is_left_out() -> None:
    found = {
        str(file.relative_to(ROOT))
        for folder in _FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if _READS.search(text := file.read_text()) and (_FROM.search(text) or file.name == "format.py")
    }
    assert found - _OTHERS == set(READERS) | FOR_FUNCTIONS | ALWAYS_JSON


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"value": {"n": 2, "parts": []}}, "its `value` is not the value of its `payload_base64`"),
        ({"codec": "typed 9"}, "its codec is 'typed 9', expected one of msgpack 1, typed 1"),
        ({"payload_base64": None}, "it has the codec 'typed 1', and no `payload_base64`"),
        ({"payload_base64": "wQ=="}, "A stored value of the codec typed can't be read"),
    ],
)
def test_a_changed_line_of_an_export_is_refused(changed: dict[str, Any], said: str) -> None:
    line = _read(line_of("s", 0, KEY, encode_coded(CODECS["typed"], VALUES["typed"][0], T)))
    with pytest.raises(ExportUnreadable, match=re.escape(said)):
        entry_of(msgspec.json.encode({**line, **changed}), 1)


def test_an_edited_value_is_put_back_as_json() -> None:
    line = _read(line_of("s", 0, KEY, encode_coded(CODECS["typed"], VALUES["typed"][0], T)))
    edited = {name: each for name, each in line.items() if name not in ("codec", "payload_base64")}
    assert decode_value(entry_of(msgspec.json.encode({**edited, "value": [1]}), 1).stored) == [1]


def _read(line: Any) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(line))
    return made


def _without_nulls(parts: Any) -> Any:
    """Leave nulls out of the comparison, because the reader for columns omits them."""
    return None if parts is None else [each for each in parts if each is not None]
