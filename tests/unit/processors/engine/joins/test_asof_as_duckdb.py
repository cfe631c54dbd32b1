"""As-of joins give the rows of DuckDB's ``ASOF JOIN`` on the same messages in the order of time."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import duckdb
import pytest

from holdfast import Application, InMemoryCluster

QUERY = "SELECT l.t, l.k, l.v, r.v FROM l ASOF {how} JOIN r ON l.k = r.k AND l.t >= r.t ORDER BY l.t, l.v"


def drawn(random: Random, begin: int) -> list[tuple[int, str, int]]:
    """Messages of one side at distinct times. With ``begin`` even or odd, no time of one side occurs on the other."""
    times = sorted(random.sample(range(begin, 2_000, 2), 60))
    return [(at, random.choice("abc"), number) for number, at in enumerate(times)]


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("seed", range(5))
def test_an_as_of_join_is_that_of_duckdb(seed: int, how: Any) -> None:
    random, cluster, tables = Random(seed), InMemoryCluster(), duckdb.connect()
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None)
    left, right = (app.dataframe(app.topic(name)) for name in ("l", "r"))
    left.join_asof(right, how, lambda one, other: [one, other]).to_topic(app.topic("out"))
    for name, begin in (("l", 0), ("r", 1)):
        cluster.create_topic(name)
        tables.execute(f"CREATE TABLE {name} (t BIGINT, k VARCHAR, v BIGINT)")
        for at, key, value in drawn(random, begin):
            cluster.produce(name, b"%d" % value, key.encode(), timestamp_ms=at)
            tables.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", [at, key, value])
    cluster.run(app)
    rows = [
        (each.timestamp_ms, (each.key or b"").decode(), *json.loads(each.value or b""))
        for _, each in cluster.read("out")
    ]
    assert rows == tables.execute(QUERY.format(how=how.upper())).fetchall()
