"""The formats bench runs, and the decoders of all formats return the same order. Times are not judged here."""

from __future__ import annotations

import pytest

from tests.bench import formats
from tests.bench.asked import Asked
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
    assert not any("quix_us" in row for row in rows)


@pytest.mark.thorough
def test_quix_streams_has_the_same_order_from_each_format_that_it_has(
    quix: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {row["format"]: row for row in measured(0.02, quix)}
    assert {name for name, row in rows.items() if "quix" not in row} == {
        "json",
        "avro without a registry",
        "avro",
        "json schema",
        "protobuf messages",
        "protobuf dicts",
    }
    assert all(row["quix_ratio"] > 0 for row in rows.values() if "quix" not in row)
    monkeypatch.setattr(formats, "hash_of", lambda order: "other")
    with pytest.raises(AssertionError, match="json: another order of Quix Streams"):
        measured(0.02, quix)
