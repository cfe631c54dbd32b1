"""Snapshots of stores with other codecs than JSON: typed columns, history, views, past versions, a change of codec."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from holdfast.assets.spark import past
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.history import DECODED, has_decoded
from holdfast.assets.spark.planning import planned_shape
from holdfast.processors.engine.changelog.codec_table import CODECS
from holdfast.processors.engine.changelog.format import encode_value, key_prefix, pack_head
from holdfast.processors.engine.changelog.stored_values import encode_coded
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import INFERRED
from holdfast.processors.engine.state.typed import CodedModels
from holdfast.processors.snapshots.names import history_name, time_tag, views_of
from holdfast.processors.snapshots.plan import Wanted

T = 1_700_000_000_000


class Kind(Enum):
    LONG = "long"
    SHORT = "short"


class Trip(BaseModel):
    count: int
    price: Decimal
    stops: set[str]
    at: datetime
    kind: Kind = Kind.LONG
    share: float = 0.5


def trip(count: int) -> Trip:
    return Trip(count=count, price=Decimal("1.25"), stops={"b", "a", "c"}, at=datetime(2024, 5, 1, tzinfo=UTC))


def stored(codec: str, value: Trip) -> bytes:
    """A model instance in stored form, as a worker with this codec writes it."""
    if codec == "json":
        return encode_value(TypeAdapter(Trip).dump_python(value, mode="json"), T)
    made = CodedModels("s", {"*": Trip}, {}, CODECS[codec])
    return pack_head(1, CODECS[codec].number, T) + made.payload("n", value)


def put(changelog: Any, codec: str, **trips: int) -> None:
    for key, count in trips.items():
        changelog.write_raw(0, key_prefix(key.encode()) + b"n", stored(codec, trip(count)))


def snapshot(changelog: Any, schema: Any, wanted: Wanted = Wanted.AUTO) -> Any:
    shape = planned_shape(changelog.spark, changelog.processor, "s", schema)
    return changelog.snapshot(changelog.plan(schema_version=shape, wanted=wanted), schema=schema)


def counts(rows: Any) -> dict[str, int | None]:
    return {row["message_key"]: row["count"] for row in rows.select("message_key", "count").collect()}


@pytest.mark.thorough
@pytest.mark.parametrize("codec", ["typed", pytest.param("msgpack", marks=pytest.mark.thorough)])
def test_a_store_whose_codec_changed_has_the_columns_of_its_model(changelog: Any, codec: str) -> None:
    spark, schema, table = changelog.spark, schema_of(Trip), f"holdfast.`{changelog.processor}`.s"
    history = history_name(changelog.processor, "s")
    put(changelog, "json", old=1, kept=7)
    first = snapshot(changelog, schema)
    assert (first.manifest.quarantined, has_decoded(spark, history)) == (0, False)

    put(changelog, codec, old=2, new=3)
    second = snapshot(changelog, schema)  # an incremental snapshot, which adds the column `decoded` to the history
    assert (second.manifest.source, second.manifest.quarantined) == ("incremental", 0)
    assert counts(spark.table(table)) == {"old": 2, "kept": 7, "new": 3}
    [row] = spark.table(table).where("message_key = 'new'").collect()
    [plain] = spark.table(table).where("message_key = 'kept'").collect()
    for name in ("price", "stops", "at", "kind", "share"):
        seen = (row[name], plain[name])
        assert sorted(seen[0]) == sorted(seen[1]) if name == "stops" else seen[0] == seen[1], name
    assert {**json.loads(row["json"]), "count": 7, "stops": []} == {**json.loads(plain["json"]), "stops": []}

    at = time.time()
    while time.time() < at + 0.002:
        pass
    put(changelog, codec, new=4)
    whole = snapshot(changelog, schema, Wanted.CHANGELOG)
    assert (whole.manifest.source, whole.manifest.quarantined) == ("changelog", 0)
    assert counts(spark.table(table)) == {"old": 2, "kept": 7, "new": 4}
    past.write_past(spark, changelog.processor, "s", "2026-02-03", at, schema)
    assert counts(versions.at_version(spark, table.replace("`", ""), time_tag("2026-02-03")))["new"] == 3

    scd2, feed = (spark.table(f"{name}") for name in map(_quoted, views_of(changelog.processor, "s")))
    assert counts(scd2.where("is_current")) == {"old": 2, "kept": 7, "new": 4}
    [change] = feed.where("message_key = 'new' AND change = 'update'").collect()
    assert (json.loads(change["json_before"])["count"], json.loads(change["json"])["count"]) == (3, 4)
    texts = spark.table(_quoted(history)).where(f"{DECODED} IS NULL").select("message_key").collect()
    # These JSON values have no decoded text, because SQL can read them directly.
    assert sorted(row["message_key"] for row in texts) == ["kept", "old"]


def test_values_of_a_codec_without_a_model_have_inferred_columns_and_damaged_ones_go_to_quarantine(
    changelog: Any,
) -> None:
    spark = changelog.spark
    for key, value in ((b"a", {"n": 1, "seen": {2, 3}}), (b"b", {"n": 2, "seen": set()})):
        changelog.write_raw(0, key_prefix(key) + b"n", encode_coded(CODECS["typed"], value, T))
    changelog.write_raw(1, key_prefix(b"c") + b"n", pack_head(1, CODECS["typed"].number, T) + b"\xc1")
    made = snapshot(changelog, INFERRED)
    assert made.manifest.rows == 3
    rows = spark.table(f"holdfast.`{changelog.processor}`.s").select("message_key", "n", "seen").collect()
    assert {row["message_key"]: (row["n"], row["seen"]) for row in rows} == {
        "a": (1, [2, 3]),
        "b": (2, []),
        "c": (None, None),
    }
    [why] = spark.table(f"holdfast.`{changelog.processor}`.s_quarantine").select("why").collect()
    assert why["why"] == "its payload of codec 04 is damaged"


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))
