"""Any bytes in a changelog, on disk or from the network are read as their value, or raise the documented error."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.infra.deploy.marks import read_mark
from holdfast.infra.deploy.program_files import asked_for
from holdfast.infra.paths import Paths
from holdfast.processors.audits.rows import _key, _value
from holdfast.processors.audits.stores import checkpoint_manifests
from holdfast.processors.engine.aggregates.aggregation import stored_columns
from holdfast.processors.engine.changelog.format import (
    ChangelogMeta,
    FormatUnknown,
    ValueNotStorable,
    check_records,
    decode_meta,
    decode_value,
    encode_bytes,
    encode_value,
    event_time_ms,
    key_prefix,
    split_key,
)
from holdfast.processors.engine.checkpoints.manifest import CheckpointFile, Manifest, ManifestDamaged
from holdfast.processors.engine.runtime.owner_commands.commands import COMMANDS, CommandWrong, decode
from holdfast.processors.engine.serving.endpoint_file import read_endpoint
from holdfast.processors.engine.serving.failure_file import failure_file
from holdfast.processors.engine.serving.local_checkpoints import superseded
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.databases.database import DatabaseCorrupt
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.exports import line_of
from holdfast.processors.snapshots.manifest import ManifestDamaged as SnapshotDamaged
from holdfast.processors.snapshots.manifest import SnapshotManifest

LEVELS = 100_000
DEEP = b"[" * LEVELS + b"]" * LEVELS
DEEP_OBJECT = b'{"version":' * LEVELS + b"1" + b"}" * LEVELS

META = ChangelogMeta({"in": 5}, 3, "v1", {"in": "id"}, "owner", "fleet", 2).encode()
TASK = TaskMeta({"in": 5}, {"counts": StoreOffset("log", "id", 7, {"in": 5})}, 3, False, 1.0, {"in": "id"})
MANIFEST = Manifest(
    "1-a", "fleet", "in-0", 0, "v1", "rocksdb", "1.1.1", 1.0, TASK, (CheckpointFile("CURRENT", "a/b", 1, "ff"),)
).encode()
SNAPSHOT = b'{"version":1,"partitions":[{"fingerprint":"1-a-b","typed":"1-a-b"}],"source":"full"}'
ENDPOINT = b'{"pid":7,"url":"http://127.0.0.1:1","token":"t","mark":"m","reads_need_token":false}'
VALUES = (encode_value({"a": [1, None, "x"]}, 1), encode_bytes(b"raw", 2))
KEY = key_prefix(b"key") + b"total"

#: Any JSON value. Some values have known field names and wrong types.
_names = st.sampled_from(["version", "inputs", "tasks", "pid", "partitions", "fingerprint", "stores", "files", "a"])
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names | st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
).map(lambda found: json.dumps(found).encode())


def bytes_like(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Random bytes, any JSON, and valid bytes that are truncated, changed at one place, or changed in one field."""
    some = st.sampled_from(valid)
    cut = st.tuples(some, st.integers(0, 400)).map(lambda pair: pair[0][: pair[1]])
    changed = st.tuples(some, st.integers(0, 2000), st.binary(max_size=3)).map(
        lambda row: row[0][: row[1] % len(row[0])] + row[2] + row[0][row[1] % len(row[0]) + 1 :]
    )
    return st.binary(max_size=60) | _json | cut | changed | st.tuples(some, _names, _json).map(_retyped) | some


def _retyped(row: tuple[bytes, str, bytes]) -> bytes:
    """Return the JSON document with another value in one field. Bytes that are not JSON stay unchanged."""
    try:
        document = json.loads(row[0])
    except ValueError:
        return row[0]
    return json.dumps({**document, row[1]: json.loads(row[2])}).encode() if isinstance(document, dict) else row[0]


def refusal(read: Callable[[], Any], *documented: type[Exception]) -> Exception | None:
    """The documented error that a read raises, or None if it returns a value. Any other error fails the test."""
    try:
        read()
    except documented as failure:
        return failure
    return None


@given(bytes_like(META))
@example(DEEP)
@example(DEEP_OBJECT)
@example(b"[]")
@example(b'{"version":1}')
def test_a_meta_record_is_read_or_refused_with_its_place(raw: bytes) -> None:
    refusal(lambda: ChangelogMeta.decode(raw), FormatUnknown)
    failure = refusal(lambda: decode_meta("log", 3, 17, raw), FormatUnknown)
    if isinstance(failure, FormatUnknown):
        assert "log[3]" in failure.message
        assert "offset 17" in failure.message
        place = [failure.fields[name] for name in ("topic", "partition", "offset")]
        assert place == ["log", 3, 17]


@given(bytes_like(*VALUES))
@example(VALUES[0][:10] + DEEP)
@example(b"")
@example(b"\x01\x01")
@example(b"\x01\x01" + bytes(8) + b"\xff")
def test_a_stored_value_is_read_or_refused(raw: bytes) -> None:
    refusal(lambda: decode_value(raw), FormatUnknown)
    refusal(lambda: event_time_ms(raw), FormatUnknown)
    refusal(lambda: line_of("counts", 0, KEY, raw), FormatUnknown)
    assert _value(raw)


@given(bytes_like(KEY))
@example(b"\x01")
@example(b"\x01\xff\xff\xff\xffkey")
@example(key_prefix(b"key") + b"\xff")
def test_a_changelog_key_is_read_or_refused(raw: bytes) -> None:
    refusal(lambda: split_key(raw), FormatUnknown)
    refusal(lambda: line_of("counts", 0, raw, VALUES[0]), FormatUnknown)
    assert _key(raw)


@given(st.lists(st.tuples(bytes_like(KEY), st.none() | bytes_like(*VALUES)), max_size=6))
@example([(KEY, VALUES[0]), (b"", None)])
@example([(KEY, VALUES[1]), (KEY, b"\x01\x02")])
def test_the_first_foreign_record_of_a_batch_is_named(rows: list[tuple[bytes, bytes | None]]) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    offsets = list(range(10, 10 + len(rows)))
    failure = refusal(lambda: check_records("log", 1, keys, values, offsets), FormatUnknown)
    if isinstance(failure, FormatUnknown):
        first = int(failure.fields["offset"]) - 10
        check_records("log", 1, keys[:first], values[:first], offsets[:first])
        return
    for key, value in rows:
        unread = refusal(partial(split_key, key), FormatUnknown)
        assert unread is None or "UTF-8" in str(unread), "a batch's check does not read state keys"
        if value is not None:
            event_time_ms(value)


@given(bytes_like(TASK.encode()))
@example(DEEP)
@example(DEEP_OBJECT)
def test_offsets_beside_the_state_are_read_or_refused(raw: bytes) -> None:
    refusal(lambda: TaskMeta.decode(raw), FormatUnknown, DatabaseCorrupt)


@given(bytes_like(MANIFEST))
@example(DEEP)
@example(DEEP_OBJECT)
@example(b'{"version":1,"files":' + DEEP + b"}")
def test_a_manifest_of_a_checkpoint_is_read_or_refused(raw: bytes) -> None:
    refusal(lambda: Manifest.decode(raw), FormatUnknown, ManifestDamaged)


@given(bytes_like(SNAPSHOT).map(lambda raw: raw.decode(errors="replace")))
@example(DEEP.decode())
@example('{"version":1e999}')
def test_a_manifest_of_a_snapshot_is_read_or_refused(text: str) -> None:
    refusal(lambda: SnapshotManifest.decode(text), FormatUnknown, SnapshotDamaged)


@given(st.sampled_from(sorted(COMMANDS)), bytes_like(b'{"store":"counts","all":true}'))
@example("/state/count", DEEP)
@example("/inputs/until", b'{"positions":' + DEEP_OBJECT + b"}")
def test_a_command_is_read_or_refused(page: str, body: bytes) -> None:
    refusal(lambda: decode(page, body), CommandWrong)


@given(_json)
@example(b'{"format":1,"count":[]}')
def test_stored_aggregates_are_read_or_refused(raw: bytes) -> None:
    refusal(lambda: stored_columns(json.loads(raw)), FormatUnknown)


@settings(max_examples=40)
@given(bytes_like(ENDPOINT, b'{"tasks":[{"task":"in-0","partition":0,"path":"p","stores":{}}]}'))
@example(DEEP)
@example(DEEP_OBJECT)
@example(b'{"pid":-1,"url":"","token":""}')
@example(b'{"pid":123456789012345678901234567890,"url":"http://[","token":""}')
@example(b'{"pid":1,"url":"http://127.0.0.1:99999","token":"t"}')
def test_a_file_of_a_worker_is_read_or_ignored(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    paths = Paths(tmp_path_factory.mktemp("home"))
    file = paths.endpoint("fleet", "0")
    mark, kept = paths.deployment_mark("fleet"), paths.checkpoints("fleet") / "000000000000001" / "manifest.json"
    program = paths.supervisor / "fleet-0.json"
    for each in (file, failure_file(file), mark, kept, program):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.write_bytes(raw)
    client = ProcessorClient("fleet", "0", paths)
    endpoint = read_endpoint(file)
    assert endpoint is None or endpoint.is_owner is False
    client.alive()
    client.last_failure()
    client.last_heartbeat(1)
    read_mark(paths, "fleet")
    for task in (task for manifest in checkpoint_manifests(kept.parent.parent) for task in manifest["tasks"]):
        assert {"partition", "path", "stores"} <= set(task)
    assert superseded(kept.parent.parent, 3) == []
    asked_for(program.parent)


def test_a_value_that_is_nested_too_deeply_is_not_stored() -> None:
    value: list[Any] = []
    for _ in range(LEVELS):
        value = [value]
    with pytest.raises(ValueNotStorable):
        encode_value(value, 1)
