"""The keys that the selection of a command finds in a store, their order, and the content of an export."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from holdfast.processors.engine.changelog.format import encode_bytes, encode_value, key_prefix
from holdfast.processors.engine.commands.sweep import matching
from holdfast.processors.engine.runtime.owner_commands.commands import (
    Clear,
    CommandWrong,
    KeyBytes,
    Selection,
    bytes_of,
    decode,
    key_of,
)
from holdfast.processors.engine.state.databases.message_keys import message_key_of
from holdfast.processors.engine.state.exports import ExportFile

MESSAGE_KEYS = [b"", b"a", b"ab", b"abc", b"b", b"ba", b"aab", b"\xff", b"\xff\xff", b"a" * 300]


def entries() -> dict[bytes, bytes]:
    return {key_prefix(key) + state: encode_value(1, 0) for key in MESSAGE_KEYS for state in (b"", b"last", b"total")}


def read(first: bytes) -> Iterator[tuple[bytes, bytes]]:
    return iter(sorted((key, value) for key, value in entries().items() if key >= first))


def found(selection: Selection) -> list[bytes]:
    """All keys of a selection. Checks that a sweep (a scan in pieces) of any piece size finds the same keys."""
    whole = [key for key, _ in matching(read, selection)]
    for size in (1, 2, 5):
        pieces: list[bytes] = []
        while True:
            more = [key for key, _ in islice(matching(read, selection, pieces[-1] if pieces else b""), size)]
            if not more:
                break
            pieces += more
        assert pieces == whole
    return whole


@pytest.mark.parametrize("prefix", [b"", b"a", b"ab", b"abc", b"abcd", b"b", b"\xff", b"z", b"a" * 300, b"a" * 301])
def test_a_prefix_finds_the_keys_that_begin_so(prefix: bytes) -> None:
    selected = found(Selection(Clear(store="s", prefix=key_of(prefix))))
    assert selected == sorted(key for key in entries() if message_key_of(key).startswith(prefix))


def test_a_list_finds_all_that_there_is_of_its_keys_and_nothing_else() -> None:
    keys = [b"ab", b"", b"absent", b"\xff", b"a" * 300, b"ab"]
    selected = found(Selection(Clear(store="s", keys=tuple(map(key_of, keys)))))
    assert selected == sorted(key for key in entries() if message_key_of(key) in keys)


def test_all_is_all() -> None:
    assert found(Selection(Clear(store="s", all=True))) == sorted(entries())


@pytest.mark.parametrize("key", [b"", b"text", "ä".encode(), b"\xff\x00"])
def test_keys_survive_their_way_as_json(key: bytes) -> None:
    told = key_of(key)
    plain = {"base64": base64.b64encode(told.base64).decode()} if isinstance(told, KeyBytes) else told
    command = decode("/state/clear", json.dumps({"store": "s", "keys": [plain]}).encode())
    assert isinstance(command, Clear)
    assert command.keys is not None
    assert [bytes_of(each) for each in command.keys] == [key]


@pytest.mark.parametrize(
    "body",
    ["", "null", "{}", '{"store": 1}', '{"store": "s", "keys": "k"}', '{"store": "s", "positions": {"t": {"a": 1}}}'],
)
def test_what_is_no_command_is_refused_with_its_form(body: str) -> None:
    with pytest.raises(CommandWrong, match="can't be decoded") as refused:
        decode("/state/clear", body.encode())
    assert "positions" in refused.value.action


def test_an_export_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    folder, now = tmp_path / "exports", 1_700_000_000.25
    file = ExportFile(folder, "totals", now)
    file.write(
        "totals",
        3,
        [
            (key_prefix(b"alice") + b"n", encode_value({"a": [1.0, None]}, 1234)),
            (key_prefix(b"\xff") + b"raw", encode_bytes(b"\x00\xff", -1)),
        ],
    )
    assert [path.suffix for path in folder.iterdir()] == [".part"]
    file.finish()
    file.close()
    [path] = folder.iterdir()
    assert path == file.path
    assert path.name == "20231114T221320250000-totals.jsonl"
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == file.sha256
    assert [json.loads(line) for line in content.splitlines()] == [
        {
            "store": "totals",
            "partition": 3,
            "key": "alice",
            "state": "n",
            "timestamp_ms": 1234,
            "value": {"a": [1.0, None]},
        },
        {
            "store": "totals",
            "partition": 3,
            "key_base64": "/w==",
            "state": "raw",
            "timestamp_ms": -1,
            "value_base64": "AP8=",
        },
    ]

    given_up, other = ExportFile(folder, "totals", now), ExportFile(folder, "totals", now)
    assert len({path, given_up.path, other.path}) == 3, "none replaces another"
    given_up.close()
    other.finish()
    assert sorted(folder.iterdir()) == [path, other.path]
