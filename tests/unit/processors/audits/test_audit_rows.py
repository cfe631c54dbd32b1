"""How an audit shows keys and values: readable where their format is known, as bytes otherwise."""

from __future__ import annotations

from holdfast.processors.audits.comparison import Entry, KeyDifference, Odd, Side
from holdfast.processors.audits.rows import VALUE_CHARACTERS, key_row
from holdfast.processors.engine.changelog.format import encode_bytes, encode_value, key_prefix


def difference(key: bytes, **entries: Entry) -> KeyDifference:
    sides = {Side(name): entry for name, entry in entries.items()}
    return KeyDifference(2, 9, key, Odd.STORE, sides)


def test_keys_and_values_are_shown_as_people_read_them() -> None:
    stored = encode_value({"n": 1, "é": [None]}, 5)
    told = key_row(
        difference(
            key_prefix(b"N14228") + b"n",
            store=Entry((stored,)),
            changelog=Entry((encode_bytes(b"\x01\xff", 5),), 7, 1_357_034_400_000),
            warehouse=Entry((stored, stored)),
        )
    )
    assert told == {
        "partition": 2,
        "key": "N14228",
        "state_key": "n",
        "wrong": "store",
        "store": '{"n": 1, "é": [null]}',
        "changelog": "0x01ff",
        "warehouse": '{"n": 1, "é": [null]} and {"n": 1, "é": [null]}',
        "record_offset": 7,
        "record_time": "2013-01-01T10:00:00.000+00:00",
    }


def test_what_is_of_no_known_format_is_shown_as_bytes() -> None:
    told = key_row(difference(b"\x09odd", store=Entry((b"\xee",)), changelog=Entry()))
    assert (told["key"], told["store"], told["changelog"], told["warehouse"]) == ("0x096f6464", "0xee", "absent", "")
    assert key_row(difference(key_prefix(b"\xff") + b"n"))["key"] == "0x01" + "00000001" + "ff" + "6e"
    assert key_row(difference(b""))["key"] == "0x"


def test_long_values_are_cut() -> None:
    told = key_row(difference(key_prefix(b"k") + b"n", store=Entry((encode_value("x" * 5_000, 1),))))
    assert len(told["store"]) == VALUE_CHARACTERS
    assert told["store"].endswith("…")
