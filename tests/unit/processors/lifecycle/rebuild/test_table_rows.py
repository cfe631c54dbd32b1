"""Rows of a table are restored into changelogs. Tests the accepted rows, their encoding, and their transfer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from holdfast.processors.engine.changelog.format import UNFINISHED, ChangelogMeta, encode_value, key_prefix
from holdfast.processors.engine.state.coherence import check_inputs
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.lifecycle.plans.facts.warehouse import Rows
from holdfast.processors.lifecycle.rebuild import table_rows
from holdfast.processors.lifecycle.rebuild.table_rows import (
    Loader,
    TableDamaged,
    TableUnfit,
    checked_rows,
    message_key,
    row_value,
)

ROWS = {key_prefix(b"a") + b"n": encode_value(1, 0), key_prefix(b"b") + b"n": encode_value(2, 0)}


class Rewritten:
    """The Iceberg table of a store. It returns these rows."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        for key, value in self._rows.items():
            yield [key], [value]


def read(rows: dict[bytes, bytes]) -> list[Rows]:
    expected = fingerprint_of(ROWS.items()).hex
    return list(checked_rows(Rewritten(rows), ("s", "t", 1), 0, expected))


def test_rows_that_are_what_the_manifest_says_go_through() -> None:
    assert [keys[0] for keys, _ in read(ROWS)] == list(ROWS)


@pytest.mark.parametrize(
    "rows",
    [
        {},
        dict(list(ROWS.items())[:1]),
        {**ROWS, key_prefix(b"c") + b"n": encode_value(3, 0)},
        {**ROWS, key_prefix(b"b") + b"n": encode_value(9, 0)},
        {**ROWS, b"\x09odd": encode_value(1, 0)},
        {**ROWS, key_prefix(b"b") + b"n": b"\x07\x01"},
    ],
)
def test_rows_that_are_not_are_damage(rows: dict[bytes, bytes]) -> None:
    with pytest.raises(TableDamaged):
        read(rows)


class Sent:
    """A producer that records the calls of its methods."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, *given))


def test_records_go_in_transactions_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "RECORDS_MAX", 2)
    monkeypatch.setattr(table_rows, "BYTES_MAX", 10)
    sent = Sent()
    values = [b"1", b"2", b"3" * 50, b"4", b"5"]
    Loader(sent).send("t", 0, ([b"k"] * 5, values))  # type: ignore[arg-type]
    assert [call[2] for call in sent.calls if call[0] == "produce_all"] == [values[:2], values[2:3], values[3:]]
    assert [call[0] for call in sent.calls[:4]] == ["begin", "produce_all", "flush", "commit"]
    Loader(sent).send("t", 0, ([], []))  # type: ignore[arg-type]
    assert len(sent.calls) == 12


def test_a_changelog_that_is_not_whole_is_nobody_s_state_whatever_the_group_has_committed() -> None:
    meta = ChangelogMeta.decode(ChangelogMeta({"in": UNFINISHED}, 0, "v").encode())
    for committed in (None, 0, 12):
        with pytest.raises(StateIncoherent, match="is being written from the warehouse"):
            check_inputs("in-0", {"s": meta.inputs}, {"in": committed})


def test_message_keys_are_text_whole_numbers_or_bytes() -> None:
    assert [message_key(each) for each in ("é", 12, b"\xff", None)] == ["é".encode(), b"12", b"\xff", None]
    for odd in (1.5, True, date(2026, 1, 1)):
        with pytest.raises(TableUnfit):
            message_key(odd)


def test_rows_become_json_that_says_the_same() -> None:
    row = {
        "at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "nan": float("nan"),
        "raw": b"\x00\x01",
        "parts": [{"x": Decimal("2")}],
        "none": None,
    }
    assert row_value(row) == {
        "at": "2026-01-02T03:04:00+00:00",
        "day": "2026-01-02",
        "price": "1.50",
        "nan": None,
        "raw": "AAE=",
        "parts": [{"x": "2"}],
        "none": None,
    }
