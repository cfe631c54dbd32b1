"""Other orphans (resources without an owner): tables, checkpoints in an object store, and state that was moved aside.

The slot (a worker's place) from which the state was moved aside is still in use.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from holdfast.infra.storage.objects import FsspecObjects
from holdfast.infra.warehouse.catalog import open_catalog
from holdfast.processors.lifecycle.orphans import kinds
from holdfast.processors.lifecycle.orphans.kinds import OrphanChanged
from holdfast.processors.lifecycle.plans.facts.orphans import Orphan
from tests.kafka.orphans.leaving import Left
from tests.parts.operated import Killed


def test_a_table_stays_for_its_grace_then_goes_with_its_files(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{left.group}.counts"
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    catalog = open_catalog(left.settings)
    catalog.create_namespace(left.group)
    table = catalog.create_table(name, rows.schema)
    table.append(rows)
    left.apply(left.plan("table"))
    manifest = left.archive.newest()[0]["table", f"holdfast.{name}"].manifest
    assert manifest.about["rows"] == 3
    assert manifest.about["metadata"] == table.metadata_location
    left.now += timedelta(days=8)
    table.append(rows)
    assert left.steps("table") == [("archive", "table")], "it changed"
    left.apply(left.plan("table"))

    left.now += timedelta(days=8)
    plan = left.plan("table")
    assert "its rows are lost" in plan.deleted[0]

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(kinds, "delete_files", killed)
        with pytest.raises(Killed):
            left.apply(plan)
    assert not catalog.table_exists(name)
    data = left.settings.paths.warehouse / "data" / left.group / "counts"
    assert any(data.rglob("*.parquet"))
    left.apply(plan)
    assert not data.exists()
    assert "table" not in left.kinds()


def test_checkpoints_in_the_store_are_copied_and_go_also_when_half_of_them_went(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FsspecObjects(left.settings.checkpoint_store)
    names = [f"{left.group}/in-0/files/{number}" for number in range(3)]
    others = f"{left.group}/in-1/files/0"
    for name in (*names, others):
        objects.write(name, [name.encode()])
    only = f"checkpoint/{left.group}/in-0"
    left.apply(left.plan(only))
    copy = left.archive.newest()[0]["checkpoint", f"{left.group}/in-0"]
    assert {name: (copy.folder / name).read_bytes() for name in names} == {name: name.encode() for name in names}
    left.now += timedelta(days=8)
    plan = left.plan(only)

    def half(store: FsspecObjects, listed: list[str]) -> None:
        delete(store, listed[:1])
        raise Killed

    delete = FsspecObjects.delete
    with monkeypatch.context() as patch:
        patch.setattr(FsspecObjects, "delete", half)
        with pytest.raises(Killed):
            left.apply(plan)
    left.apply(plan)
    assert list(objects.sizes(f"{left.group}/")) == [others]


def test_what_was_set_aside_goes_also_while_the_slot_is_held(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """State that was moved aside is deleted although a worker holds the slot (the worker's place with its lock).

    No process opens the state that was moved aside. The state beside it, which the worker uses, is not deleted.
    """
    orphan = Orphan("state", str(left.state), left.group, "it was set aside", 1, aside=True)
    thing = kinds.thing_of("state", str(left.state), left.settings, left.topics)
    (left.state.parent / "lock").write_text(f"{os.getpid()}\n")
    look = thing.look(orphan)
    assert look.facts is not None
    assert not look.blocked
    in_use = thing.look(replace(orphan, aside=False))
    assert "a live process has the slot" in in_use.blocked
    (left.state / "CURRENT").write_bytes(b"changed")
    with pytest.raises(OrphanChanged):
        thing.delete(orphan, look.facts, thing.leftovers(orphan, look.facts))
    assert (left.state / "CURRENT").exists()
    now = thing.look(orphan).facts
    assert now is not None
    thing.delete(orphan, now, thing.leftovers(orphan, now))
    assert not left.state.exists()
