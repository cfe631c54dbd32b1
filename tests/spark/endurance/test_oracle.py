"""The comparison of the endurance run detects each kind of wrong version."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

import pyarrow as pa
import pytest

from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.snapshots.manifest import SnapshotManifest
from tests.spark.endurance.lives import Floors
from tests.spark.endurance.oracle import Oracle
from tests.unit.processors.snapshots.test_manifest import MANIFEST, PART

#: Columns: partition, offset, key, id, amount, and whether the record resets its key.
RECORDS = [
    (0, 0, "a", 0, 5, False),
    (0, 1, "a", 1, 6, False),
    (0, 2, "b", 2, 1, False),
    (0, 3, "a", 3, 0, True),
    (0, 4, "a", 4, 7, False),
    (1, 0, "c", 5, 9, False),
    (1, 1, "c", 6, 1, True),
]
RIGHT = [(0, "a", 1, 7, 4), (0, "b", 1, 1, 2)]


def table(rows: list[tuple[int, str, int, int, int]], **typed: Any) -> Any:
    texts = [json.dumps({"n": n, "total": total, "last": last}) for _, _, n, total, last in rows]
    names = ("store_partition", "message_key", "n", "total", "last")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return pa.table({**columns, "json": texts, **typed})


def manifest(first: int, second: int) -> SnapshotManifest:
    ends = [dataclasses.replace(PART, partition=n, inputs={"in": end}) for n, end in enumerate((first, second))]
    return dataclasses.replace(MANIFEST, partitions=tuple(ends))


@pytest.fixture
def oracle() -> Oracle:
    made = Oracle(cast(Topics, None), "in")  # records are added by hand, not read from Kafka
    made.put(RECORDS)
    made._read = {0: 5, 1: 2}
    return made


def test_the_fold_at_the_input_offsets_is_right(oracle: Oracle) -> None:
    floors = {0: Floors(), 1: Floors()}
    assert oracle.differences(manifest(5, 2), floors, table(RIGHT)) == []
    earlier = [(0, "a", 2, 11, 1), (0, "b", 1, 1, 2), (1, "c", 1, 9, 5)]
    assert oracle.differences(manifest(3, 1), floors, table(earlier)) == []


def test_a_wrong_row_a_missing_one_and_one_too_many_are_seen(oracle: Oracle) -> None:
    floors = {0: Floors(), 1: Floors()}
    wrong = [(0, "a", 1, 8, 4), (1, "c", 1, 9, 5)]
    assert oracle.differences(manifest(5, 2), floors, table(wrong)) == [
        ("expected", 0, "a", 1, 7, 4),
        ("found", 0, "a", 1, 8, 4),
        ("expected", 0, "b", 1, 1, 2),
        ("found", 1, "c", 1, 9, 5),
    ]
    assert oracle.differences(manifest(5, 2), floors, table([*RIGHT, RIGHT[0]])) == [("found", 0, "a", 1, 7, 4)]


def test_cleared_keys_count_from_their_clear_on(oracle: Oracle) -> None:
    floors = {0: Floors(keys={"b": 3}), 1: Floors()}
    assert oracle.differences(manifest(5, 2), floors, table(RIGHT[:1])) == []
    assert oracle.differences(manifest(5, 2), floors, table(RIGHT)) == [("found", 0, "b", 1, 1, 2)]
    assert oracle.differences(manifest(5, 2), {0: Floors(5, {"a": 0}), 1: Floors()}, table(RIGHT[:1])) == []


def test_columns_that_are_typed_otherwise_are_seen(oracle: Oracle) -> None:
    with pytest.raises(AssertionError, match="is typed as"):
        oracle.differences(manifest(5, 2), {0: Floors(), 1: Floors()}, table(RIGHT, total=[7, None]))
