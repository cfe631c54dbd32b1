"""Inspects and removes a table through the Python catalog, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.warehouse.catalog import open_catalog, tables_on_disk
from holdfast.infra.warehouse.removal import TableElsewhere, delete_files, drop_table, table_facts, table_files

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(home=tmp_path)


def made(settings: Settings, name: str = "gone.counts", location: str | None = None) -> Any:
    catalog = open_catalog(settings)
    catalog.create_namespace_if_not_exists("gone")
    table = catalog.create_table(name, ROWS.schema, location=location)
    table.append(ROWS)
    return table


def files_below(settings: Settings) -> list[Path]:
    return [path for path in (settings.paths.warehouse / "data").rglob("*") if path.is_file()]


def test_facts_change_with_each_commit_and_the_table_with_its_uuid(settings: Settings) -> None:
    assert table_facts(settings, "gone.counts") is None
    table = made(settings)
    before = table_facts(settings, "gone.counts")
    assert before is not None
    assert before.rows == 3
    table.append(ROWS)
    now = table_facts(settings, "gone.counts")
    assert now is not None
    assert (now.uuid, now.rows) == (before.uuid, 6)
    assert now.metadata != before.metadata
    assert now.snapshot != before.snapshot


def test_a_dropped_table_leaves_nothing_and_its_neighbour_everything(settings: Settings) -> None:
    made(settings)
    made(settings, "gone.counts_history")
    facts, files = table_facts(settings, "gone.counts"), table_files(settings, "gone.counts")
    assert facts is not None
    assert len(files) == len(files_below(settings)) - len(table_files(settings, "gone.counts_history"))
    assert drop_table(settings, "gone.counts", facts.uuid)
    assert not drop_table(settings, "gone.counts", facts.uuid)
    delete_files(settings, "gone.counts", files)
    delete_files(settings, "gone.counts", files)  # deleting files that are already gone is no error
    assert not (settings.paths.warehouse / "data" / "gone" / "counts").exists()
    assert sorted(tables_on_disk(settings)) == ["gone.counts_history"]
    assert table_files(settings, "gone.counts") == ()


def test_a_table_that_was_made_anew_loses_nothing(settings: Settings) -> None:
    made(settings)
    facts, files = table_facts(settings, "gone.counts"), table_files(settings, "gone.counts")
    assert facts is not None
    assert drop_table(settings, "gone.counts", facts.uuid)
    table = made(settings)
    assert not drop_table(settings, "gone.counts", facts.uuid)
    delete_files(settings, "gone.counts", files)
    assert table.refresh().scan().to_arrow().num_rows == 3


def test_files_elsewhere_are_not_listed(settings: Settings, tmp_path: Path) -> None:
    made(settings, location=f"file://{tmp_path}/warehouse/data/gone")
    with pytest.raises(TableElsewhere, match="Another table may use them"):
        table_files(settings, "gone.counts")


@pytest.mark.parametrize("elsewhere", ["{neighbour}", "{place}/../counts_history/x", "{place}", "/etc/hostname"])
def test_only_files_of_the_table_are_deleted_whatever_is_listed(settings: Settings, elsewhere: str) -> None:
    made(settings)
    made(settings, "gone.counts_history")
    files, neighbours = table_files(settings, "gone.counts"), table_files(settings, "gone.counts_history")
    place = files[0].partition("/gone/counts/")[0] + "/gone/counts"
    listed = elsewhere.format(neighbour=neighbours[0], place=place)
    before = files_below(settings)
    with pytest.raises(TableElsewhere, match="expected files below"):
        delete_files(settings, "gone.counts", [*files, listed])
    assert files_below(settings) == before
