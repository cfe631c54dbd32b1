"""Data from before an erasure that has the key is refused, or the plan tells that the key may come back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import Record
from holdfast.infra.kafka.topics.topic_copies import file_of, write_copy
from holdfast.infra.paths import Paths
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.state.exports import ExportFile
from holdfast.processors.engine.state.fingerprint import fingerprint_of
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.orphans.kinds import sha256_of
from holdfast.processors.lifecycle.orphans.put_back import put_back
from holdfast.processors.lifecycle.plans.certificates import ErasureFacts, mark_of
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys, ErasedKeyThere, exported_at, secret_of
from holdfast.processors.lifecycle.plans.facts.files import FileFacts, FileStore
from holdfast.processors.lifecycle.plans.facts.orphans import Manifest
from holdfast.processors.lifecycle.plans.facts.warehouse import StoreTable, StoreVersion
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Restore
from holdfast.processors.lifecycle.plans.stages import CheckTable, PutTopicBack
from holdfast.processors.lifecycle.rebuild.from_tables import TableStages
from holdfast.processors.lifecycle.rebuild.table_world import TableWorld
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import orders_topology, world_of

ERASED_AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
BEFORE, AFTER = ERASED_AT - timedelta(days=1), ERASED_AT + timedelta(days=1)
TOPOLOGY = orders_topology()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "home")


@pytest.fixture
def registry(tmp_path: Path, paths: Paths) -> Iterator[Registry]:
    """A registry in which key alice of processor orders is erased."""
    made = Registry(f"sqlite:///{tmp_path}/registry.db")
    made.migrate()
    made.erasures.begin("1", "orders", mark_of(secret_of(paths), "orders", b"alice"), ERASED_AT)
    yield made
    made.close()


@pytest.fixture
def erased(registry: Registry, paths: Paths) -> ErasedKeys:
    return ErasedKeys.of(registry, paths, "orders")


def test_an_erased_key_is_known_by_its_hash_alone(erased: ErasedKeys, registry: Registry, paths: Paths) -> None:
    assert erased.erased_at(b"alice") == ERASED_AT
    assert erased.erased_at(b"bob") is None
    assert erased.erased_at(b"alice", AFTER) is None, "data of later messages is no copy"
    assert erased.erased_at(b"alice", BEFORE) == ERASED_AT
    assert ErasedKeys.of(registry, paths, "others").erased_at(b"alice") is None
    (record,) = registry.erasures.of("orders")
    assert b"alice" not in repr(record).encode()


def exported(folder: Path, moment: datetime) -> Path:
    file = ExportFile(folder, "totals", moment.timestamp())
    file.write("totals", 0, [(key_prefix(key) + b"n", encode_value(1, 0)) for key in (b"bob", b"alice", b"carol")])
    file.finish()
    return file.path


def test_an_export_from_before_the_erasure_is_refused_and_the_action_makes_it_fit(
    erased: ErasedKeys, tmp_path: Path
) -> None:
    path = exported(tmp_path / "exports", BEFORE)
    assert exported_at(path.name) == BEFORE
    assert erased.lines_in(str(exported(tmp_path / "exports", AFTER))) == ()
    facts = world_of(
        TOPOLOGY,
        file=FileFacts(str(path), "sha", {"totals": FileStore(3, 3, 60, (0,), ("alice", "bob", "carol"))}),
        erased_lines=erased.lines_in(str(path)),
    )
    plan = decide(Restore("orders", file=str(path)), facts, TOPOLOGY)
    assert isinstance(plan.verdict, Refused)
    assert "in line 2" in plan.verdict.sentence
    assert "alice" not in plan.verdict.sentence
    subprocess.run(plan.verdict.action.split("`")[1], shell=True, check=True)
    assert erased.lines_in(str(path)) == ()
    assert len(path.read_text().splitlines()) == 2
    fit = decide(Restore("orders", file=str(path)), msgspec.structs.replace(facts, erased_lines=()), TOPOLOGY)
    assert not isinstance(fit.verdict, Refused), fit.verdict


class Warehouse:
    """A table of store totals with the keys alice and bob, whose one version was written at ``written``."""

    def __init__(self, written: datetime) -> None:
        self.written = written
        self.keys = [key_prefix(key) + b"n" for key in (b"alice", b"bob")]
        self.values = [encode_value(1, 0)] * 2

    @property
    def print(self) -> str:
        return fingerprint_of(zip(self.keys, self.values, strict=True)).hex

    def store_table(self, processor: str, store: str) -> StoreTable:
        return StoreTable("holdfast.orders.totals", (StoreVersion(7, written_at=self.written.timestamp()),))

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        yield self.keys, self.values


def checked(warehouse: Warehouse, erased: ErasedKeys) -> str:
    nothing: Any = None
    tables: Any = warehouse
    world = TableWorld(tables, nothing, nothing, nothing, nothing, erased=lambda processor: erased)
    stage = CheckTable("read it", "totals", "holdfast.orders.totals", 7, {0: warehouse.print})
    return TableStages(world, nothing)("orders", stage, lambda text: None).text


def test_a_restore_to_a_time_before_the_erasure_is_refused_before_anything_is_changed(erased: ErasedKeys) -> None:
    with pytest.raises(ErasedKeyThere, match="that was erased at 2026-11-30T12:00:00") as refused:
        checked(Warehouse(BEFORE), erased)
    assert "alice" not in str(refused.value)
    assert "match its manifest" in checked(Warehouse(AFTER), erased)


@pytest.mark.parametrize("key", [b"alice", key_prefix(b"alice") + b"n"])
def test_an_archived_topic_from_before_the_erasure_is_not_put_back(
    erased: ErasedKeys, tmp_path: Path, key: bytes
) -> None:
    archive = Archive(tmp_path / "archive")
    part = archive.begin("topic", "orders-old-changelog", BEFORE)
    write_copy(iter([Record(key, b"1", 0, 0, None)]), part / file_of(0))
    about = {"records": {"0": 1}, "sha256": {file_of(0): sha256_of(part / file_of(0))}, "partitions": 1}
    manifest = Manifest(
        kind="topic",
        name="orders-old-changelog",
        processor="orders",
        why="",
        archived_at=BEFORE,
        who="",
        facts={},
        about=about,
        files={file_of(0): 1},
    )
    folder = archive.finish(part, manifest)
    nothing: Any = None  # no topic is asked for, so none is created
    stage = PutTopicBack("put it back", "orders-old-changelog", folder.name)
    with pytest.raises(ErasedKeyThere):
        put_back(archive, nothing, stage, lambda: AFTER, (erased,))


@pytest.mark.parametrize(
    "request_",
    [Backfill("orders", "totals", "topic"), Clear("orders", rewind="earliest"), Restore("orders", at="latest")],
)
def test_a_verb_that_reads_input_again_tells_that_erased_keys_may_come_back(request_: Any) -> None:
    tables = {store: StoreTable(store, problem="It is not there.", action="None.") for store in ("totals", "seen")}
    facts = world_of(TOPOLOGY, tables=tables, erased=(ErasureFacts("mark", ERASED_AT.timestamp(), True, True),))
    told = decide(request_, facts, TOPOLOGY).findings
    assert any("1 key of orders was erased, the last at 2026-11-30T12:00:00+00:00" in each for each in told)
    never = decide(request_, world_of(TOPOLOGY, tables=tables), TOPOLOGY).findings
    assert not any("erased" in each for each in never)
