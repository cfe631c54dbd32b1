"""The formats bench runs, and the decoders of all formats return the same order. Times are not judged here."""

from __future__ import annotations

from tests.bench.formats import measured


def test_each_format_has_a_row() -> None:
    rows = measured(0.02)
    assert rows[0]["format"] == "json"
    assert {row["format"] for row in rows} > {
        "msgpack",
        "avro",
        "json schema",
        "protobuf messages",
        "typed json (dataclass)",
        "typed json (pydantic)",
    }
    assert all(row["us"] > 0 and row["ratio"] > 0 for row in rows)
