"""As-of joins give the result that Spark computes in batch from the same messages, with a range join and a window."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from tests.mechanics.tiers import variants

#: For each left message, the newest right message at its time; NULL without a match, or beyond the tolerance.
QUERY = """
SELECT t, k, v, IF(t - at <= {tolerance}, found, NULL) AS found FROM (
  SELECT l.t, l.k, l.v, r.t AS at, r.v AS found,
         row_number() OVER (PARTITION BY l.n ORDER BY r.t DESC, r.n DESC) AS rank
  FROM l LEFT JOIN r ON l.k = r.k AND r.t <= l.t
) WHERE rank = 1 ORDER BY t, v
"""
#: Columns: a message's number in its topic, event time, key, value.
SCHEMA = "n INT, t LONG, k STRING, v INT"
TOLERANCE_MS = 60


def drawn(random: Random, lates: list[int]) -> list[tuple[int, int, str, int]]:
    """Random messages, some with equal times; ``lates`` are the delays behind the newest time that may be drawn."""
    made, now = [], 1_000
    for number in range(400):
        now += random.choice([0, 1, 5, 20])
        made.append((number, now - random.choice(lates), random.choice("abc"), number))
    return made


@pytest.mark.thorough
@pytest.mark.parametrize("tolerance", variants([TOLERANCE_MS, None]))
def test_an_as_of_join_is_what_spark_recomputes(spark: Any, tolerance: int | None) -> None:
    """Right messages are in order and left ones late by 50 ms at most, so the join finds the batch join's matches."""
    random, cluster = Random(1), InMemoryCluster()
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None)
    left, right = (app.dataframe(app.topic(name)) for name in ("l", "r"))
    pairs = left.join_asof(right, "left", lambda one, other: [one, other], tolerance_ms=tolerance)
    pairs.to_topic(app.topic("out"))
    for name, lates in (("l", [0, 0, 10, 50]), ("r", [0])):
        cluster.create_topic(name)
        messages = drawn(random, lates)
        for _, at, key, value in messages:
            cluster.produce(name, b"%d" % value, key.encode(), timestamp_ms=at)
        spark.createDataFrame(messages, SCHEMA).createOrReplaceTempView(name)
    cluster.run(app)
    rows = [
        (each.timestamp_ms, (each.key or b"").decode(), *json.loads(each.value or b""))
        for _, each in cluster.read("out")
    ]
    expected = [tuple(row) for row in spark.sql(QUERY.format(tolerance=tolerance or 10**9)).collect()]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert 0 < sum(row[3] is None for row in rows) < len(rows)
