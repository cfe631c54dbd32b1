"""A table's metadata, read from its row in the catalog and from the file that the row names."""

import gzip
import json

import pytest
from sqlalchemy import create_engine, text

from holdfast.infra.warehouse.errors import StorageUnavailable, TableUnknown
from holdfast.infra.warehouse.table_metadata import MetadataReader

TABLE = {
    "current-snapshot-id": 2,
    "properties": {"p": "1"},
    "snapshots": [
        {"snapshot-id": 1, "timestamp-ms": 1000, "summary": {"operation": "append", "x": "y"}},
        {"snapshot-id": 2, "parent-snapshot-id": 1, "timestamp-ms": 2000, "unknown": {}},
    ],
    "refs": {"main": {"snapshot-id": 2, "type": "branch"}, "t": {"snapshot-id": 1, "type": "tag"}},
    "snapshot-log": [{"snapshot-id": 1, "timestamp-ms": 1000}, {"snapshot-id": 2, "timestamp-ms": 2000}],
}


@pytest.fixture
def place(tmp_path):
    """Write a metadata file, and the table's row in the catalog that names the file."""
    url = f"sqlite:{tmp_path / 'catalog.db'}"
    engine = create_engine(url.replace("sqlite:", "sqlite:///"))
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                "previous_metadata_location, iceberg_type)"
            )
        )

    def put(name, content, file):
        path = tmp_path / file
        path.write_bytes(content)
        namespace, table = name.split(".")
        row = {"n": namespace, "t": table, "m": f"file://{path}"}
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM iceberg_tables"))
            connection.execute(text("INSERT INTO iceberg_tables VALUES ('holdfast', :n, :t, :m, NULL, 'TABLE')"), row)
        return path

    put.reader = MetadataReader({"spark.sql.catalog.holdfast.uri": f"jdbc:{url}"})
    return put


@pytest.mark.parametrize(("file", "pack"), [("1.metadata.json", bytes), ("1.gz.metadata.json", gzip.compress)])
def test_versions_references_and_properties(place, file, pack):
    place("n.t", pack(json.dumps(TABLE).encode()), file)
    found = place.reader.table("n.t")
    assert [(each.snapshot_id, each.parent_snapshot_id, each.timestamp_ms) for each in found.snapshots] == [
        (1, None, 1000),
        (2, 1, 2000),
    ]
    assert [dict(each.summary) for each in found.snapshots] == [{"operation": "append", "x": "y"}, {}]
    assert {name: (each.snapshot_id, each.type) for name, each in found.references.items()} == {
        "main": (2, "branch"),
        "t": (1, "tag"),
    }
    assert found.properties == {"p": "1"}
    assert [each.snapshot_id for each in found.snapshot_log] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"refs": {}}, {"main": 2}),  # Iceberg's format version 1 stores no branch names
        ({"refs": {}, "current-snapshot-id": None}, {}),
        ({"refs": {}, "current-snapshot-id": -1, "snapshots": []}, {}),
    ],
)
def test_main_of_a_writer_that_names_no_branch(place, changes, expected):
    place("n.t", json.dumps(TABLE | changes).encode(), "1.metadata.json")
    found = place.reader.table("n.t").references
    assert {name: each.snapshot_id for name, each in found.items()} == expected


def test_a_view_has_the_query_of_its_present_version(place):
    versions = [
        {"version-id": 1, "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}]},
        {"version-id": 2, "representations": [{"type": "sql", "sql": "SELECT 2", "dialect": "spark"}]},
    ]
    place("n.v", json.dumps({"current-version-id": 2, "versions": versions}).encode(), "1.metadata.json")
    assert place.reader.view_queries("n.v") == {"SELECT 2"}
    assert place.reader.view_queries("n.other") == frozenset()


def test_what_is_not_there_or_no_metadata_is_said(place):
    path = place("n.t", b"{", "1.metadata.json")
    with pytest.raises(StorageUnavailable, match=r"metadata file://.* of n\.t can't be read"):
        place.reader.table("n.t")
    path.unlink()
    with pytest.raises(StorageUnavailable, match="can't be read"):
        place.reader.table("n.t")
    with pytest.raises(TableUnknown, match=r"no table n\.other"):
        place.reader.table("n.other")
