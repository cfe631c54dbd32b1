"""`join_lookup` reads rows through an object of a user's own class, and from a SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import InMemoryCluster, ProcessingFailed
from holdfast.dataframe.joins.lookups import (
    BaseField,
    BaseLookup,
    SQLiteLookup,
    SQLiteLookupField,
    SQLiteLookupQueryField,
)
from holdfast.processors.engine.joins.merge import JoinInvalid
from tests.window_apps import build, send


@dataclass(frozen=True)
class Part(BaseField):
    name: str


class Rows(BaseLookup[Part]):
    def join(
        self, fields: Mapping[str, Part], on: Any, value: dict[str, Any], key: Any, timestamp: int, headers: Any
    ) -> None:
        for name, part in fields.items():
            value[name] = f"{part.name} of {on}"


@pytest.fixture
def file(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "rows.db") as rows:
        rows.execute("CREATE TABLE planes (id TEXT, model TEXT, seats INTEGER)")
        rows.executemany("INSERT INTO planes VALUES (?, ?, ?)", [("p1", "A", 100), ("p1", "B", 200), ("p2", "C", 50)])
    rows.close()
    return str(tmp_path / "rows.db")


def results(place: Any, *values: Any) -> list[Any]:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for value in values:
        send(cluster, 0, value)
    cluster.run(build(place))
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def test_a_lookup_of_ones_own_by_a_field_a_function_or_the_key() -> None:
    fields = {"x": Part("size"), "y": Part("colour")}
    assert results(lambda sdf: sdf.join_lookup(Rows(), fields, on="id"), {"id": 7}) == [
        {"id": 7, "x": "size of 7", "y": "colour of 7"}
    ]
    assert (
        results(
            lambda sdf: sdf.join_lookup(lookup=Rows(), fields=fields, on=lambda value, key: (value["id"], key)),
            {"id": 7},
        )[0]["x"]
        == "size of (7, b'k')"
    )
    assert results(lambda sdf: sdf.join_lookup(Rows(), fields), {"id": 7})[0]["x"] == "size of b'k'"


def test_rows_of_a_sqlite_file(file: str) -> None:
    fields = {
        "first": SQLiteLookupField(table="planes", columns=["model", "seats"], on="id", order_by="seats"),
        "all": SQLiteLookupField(
            table="planes",
            columns=["model"],
            on="id",
            order_by="model",
            order_by_direction="DESC",
            first_match_only=False,
        ),
        "query": SQLiteLookupQueryField("SELECT max(seats) FROM planes WHERE id = :plane"),
        "none": SQLiteLookupField(table="planes", columns=["model"], on="model", default="unknown"),
    }
    lookup = SQLiteLookup(path=file, cache_size=2)
    found = results(lambda sdf: sdf.join_lookup(lookup, on="plane", fields=fields), {"plane": "p1"}, {"plane": "p2"})
    assert found[0] == {
        "plane": "p1",
        "first": {"model": "A", "seats": 100},
        "all": [{"model": "B"}, {"model": "A"}],
        "query": [200],
        "none": "unknown",
    }
    assert found[1]["first"] == {"model": "C", "seats": 50}


def test_a_cached_row_stays_as_it_is(file: str) -> None:
    def spoil(value: Any) -> None:
        value["row"]["model"] += "!"

    lookup = SQLiteLookup(file)
    fields = {"row": SQLiteLookupField("planes", ["model"], "id")}
    made = results(lambda sdf: sdf.join_lookup(lookup, fields, on="id").update(spoil), {"id": "p2"}, {"id": "p2"})
    assert [each["row"] for each in made] == [{"model": "C!"}, {"model": "C!"}]


def test_bad_fields_and_values_are_told(file: str) -> None:
    for bad in ({"table": "a; DROP"}, {"columns": ["*"]}, {"columns": []}):
        with pytest.raises(JoinInvalid, match="expected names of a table and of columns"):
            SQLiteLookupField(**{"table": "planes", "columns": ["model"], "on": "id", **bad})  # type: ignore[arg-type]
    with pytest.raises(JoinInvalid, match="expected a mapping of names to its fields"):
        build(lambda sdf: sdf.join_lookup(SQLiteLookup(file), {"row": "model"}))
    fields = {"row": SQLiteLookupField("planes", ["model"], "id")}
    with pytest.raises(ProcessingFailed, match="asks by the field 'id'"):
        results(lambda sdf: sdf.join_lookup(SQLiteLookup(file), fields, on="id"), {"other": 1})
