"""This release of Holdfast and the former one read each other's data. Data that a release must not read is refused."""

from __future__ import annotations

import base64
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.infra.database.errors import RegistryNewerThanCode
from holdfast.infra.database.registry import Registry
from holdfast.processors.engine.changelog import format as changelog
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT, CheckpointFile, Manifest
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from tests.parts.former_release import run_former, unpack

pytestmark = pytest.mark.slow

META = changelog.ChangelogMeta({"in": 7}, 3, "v1", {"in": "id"}, owner="holdfast-p-0", processor="p")
TASK = TaskMeta({"in": 7}, {"s": StoreOffset("p-s-changelog", "id", 9, {"in": 7})}, 3, False, 12.5, {"in": "id"})
FILE = CheckpointFile("000001.sst", "p/in-0/files/u/000001.sst", 3, "00" * 32)
MANIFEST = Manifest("c1", "p", "in-0", 0, "v1", "db", STATE_FORMAT, 12.5, TASK, (FILE,))
VALUES = {"json": changelog.encode_value({"n": [1, "é", None]}, 5), "bytes": changelog.encode_bytes(b"\x00\xff", 5)}

#: The program of the former release. It reads data that this release wrote, and writes the data again.
PROGRAM = """
import base64, json, sys
from holdfast.processors.engine.changelog import format as changelog
from holdfast.processors.engine.checkpoints.manifest import Manifest
from holdfast.processors.engine.state.task_store import TaskMeta
given = {name: base64.b64decode(text) for name, text in json.load(sys.stdin).items()}
def told(name, call):
    try:
        return base64.b64encode(call(given[name])).decode()
    except Exception as error:
        if type(error).__name__ != "FormatUnknown":
            raise
        return "FormatUnknown"
print(json.dumps({
    "meta": told("meta", lambda raw: changelog.ChangelogMeta.decode(raw).encode()),
    "task": told("task", lambda raw: TaskMeta.decode(raw).encode()),
    "manifest": told("manifest", lambda raw: Manifest.decode(raw).encode()),
    "json": told("json", lambda raw: changelog.encode_value(changelog.decode_value(raw), changelog.event_time_ms(raw))),
    "bytes": told("bytes", lambda raw: changelog.encode_bytes(changelog.decode_value(raw), 5)),
}))
"""


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("former"))


def read_by_former(former: Path, documents: dict[str, bytes]) -> dict[str, bytes | str]:
    given = {name: base64.b64encode(raw).decode() for name, raw in documents.items()}
    answer: dict[str, str] = run_former(former, PROGRAM, given)
    return {name: text if text == "FormatUnknown" else base64.b64decode(text) for name, text in answer.items()}


def written(**changed: bytes) -> dict[str, bytes]:
    return {"meta": META.encode(), "task": TASK.encode(), "manifest": MANIFEST.encode(), **VALUES, **changed}


def test_the_former_release_reads_what_this_one_writes_and_this_one_reads_that_again(former: Path) -> None:
    answer = read_by_former(former, written())
    assert "FormatUnknown" not in answer.values()
    meta = changelog.ChangelogMeta.decode(answer["meta"])  # type: ignore[arg-type]
    # The former release does not know the field `processor`. A record without the field does not name its owner.
    assert meta == msgspec.structs.replace(META, processor=meta.processor)
    assert meta.processor in ("", "p")
    assert TaskMeta.decode(answer["task"]) == TASK  # type: ignore[arg-type]
    assert Manifest.decode(answer["manifest"]) == MANIFEST  # type: ignore[arg-type]
    assert {name: answer[name] for name in VALUES} == VALUES


def test_fields_that_it_does_not_know_are_nothing_to_the_former_release(former: Path) -> None:
    def more(raw: bytes) -> bytes:
        return msgspec.json.encode({**msgspec.json.decode(raw), "of_a_later_release": {"x": 1}})

    changed = {name: more(raw) for name, raw in written().items() if name in ("meta", "task", "manifest")}
    plain, answer = read_by_former(former, written()), read_by_former(former, written(**changed))
    assert answer == plain
    for name, decode in (("meta", changelog.ChangelogMeta), ("task", TaskMeta), ("manifest", Manifest)):
        assert decode.decode(changed[name]) == decode.decode(written()[name]), "nor to this one"


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("meta", META.encode().replace(b'"version":1', b'"version":2')),
        ("task", TASK.encode().replace(b'"version":1', b'"version":99')),
        ("manifest", MANIFEST.encode().replace(b'"version": 1', b'"version": 2')),
        ("json", bytes([2]) + VALUES["json"][1:]),
        ("bytes", VALUES["bytes"][:1] + bytes([9]) + VALUES["bytes"][2:]),
    ],
)
def test_another_version_or_codec_is_refused_by_both(former: Path, name: str, raw: bytes) -> None:
    assert raw != written()[name]
    assert read_by_former(former, written(**{name: raw}))[name] == "FormatUnknown"
    decoders: dict[str, Any] = {"meta": changelog.ChangelogMeta.decode, "task": TaskMeta.decode}
    decoders |= {"manifest": Manifest.decode, "json": changelog.decode_value, "bytes": changelog.decode_value}
    with pytest.raises(changelog.FormatUnknown):
        decoders[name](raw)


REGISTRY = """
import json, sys
from datetime import UTC, datetime
from holdfast.infra.database.registry import Registry
url = json.load(sys.stdin)
try:
    registry = Registry(url)
    version = registry.migrate()
    incident, is_new = registry.open_incident("p", "dead", {"slot": "0"}, datetime.now(UTC))
    print(json.dumps([version, incident.id, is_new, dict(incident.detail)]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def test_a_registry_that_the_former_release_began_goes_on_and_is_refused_by_it(former: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'one.db'}"
    began = run_former(former, REGISTRY, url)
    registry = Registry(url)
    version = registry.migrate()
    incident, is_new = registry.open_incident("p", "dead", {}, datetime.now(UTC))
    assert [began[1], is_new, began[3]] == [incident.id, False, dict(incident.detail)]
    assert began[0] < version
    told = run_former(former, REGISTRY, url)
    assert told[0] == "RegistryNewerThanCode"
    assert version in told[1]
    registry.close()


def test_a_registry_of_a_later_schema_is_refused_by_both_and_stays_as_it_is(former: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'later.db'}"
    registry = Registry(url)
    registry.migrate()
    with sqlite3.connect(tmp_path / "later.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    told = run_former(former, REGISTRY, url)
    assert told[0] == "RegistryNewerThanCode"
    assert "9999" in told[1]
    with pytest.raises(RegistryNewerThanCode, match="9999"):
        registry.migrate()
    registry.close()
