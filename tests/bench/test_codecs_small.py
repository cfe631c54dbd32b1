"""The bench of state codecs runs, and the counts are the same with all codecs. Times are not judged here."""

from __future__ import annotations

import pytest

from tests.bench import codecs


def test_each_codec_has_a_row_and_the_same_result() -> None:
    rows = codecs.measured(keys=20, turns=2)
    assert [row["codec"] for row in rows][:4] == ["json", "msgpack", "typed", "bytes"]
    assert len({row["hash"] for row in rows}) == 1
    assert all(row["us"] > 0 and row["ratio"] > 0 for row in rows)


def test_a_codec_that_loses_a_turn_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = codecs.Case({"codec": "bytes"}, lambda: bytes(8), lambda value: value, int.from_bytes)
    monkeypatch.setitem(codecs.CASES, "bytes", lost)
    with pytest.raises(AssertionError, match="'bytes'"):
        codecs.measured(keys=2, turns=2)
