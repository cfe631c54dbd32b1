"""Recomputes the demo's results from the CSV with Spark and compares them with the warehouse.

Totals are compared key by key with their tables. Windows are compared with what was sent when they closed, together
with their tables, which also hold those that are open: together these have each window once.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.infra.sample_data.flights import flights_file
from holdfast.infra.spark.session import short_errors
from holdfast.processors.definitions import delays, rotations
from holdfast.processors.snapshots.names import quoted

#: The most differing keys in a result.
EXAMPLES_MAX = 20
#: Comparisons that run at the same time: while one plans, another computes.
AT_ONCE = 2

_FLEET = (
    "flights BIGINT, minutes_in_air BIGINT, miles BIGINT, worst_arrival_delay BIGINT, last_airport STRING, "
    "first_departure STRING, last_departure STRING"
)
_ROUTES = "flights BIGINT, cancelled BIGINT, delays ARRAY<BIGINT>, moving_average DOUBLE"
_ROTATIONS = (
    "start BIGINT, end BIGINT, flights BIGINT, miles BIGINT, minutes_in_air BIGINT, first_airport STRING, "
    "last_destination STRING"
)
_DELAYS = "start BIGINT, end BIGINT, departures BIGINT, delay BIGINT, mean_delay DOUBLE, worst_delay BIGINT"

_ORDER = "struct(year, month, day, sched_dep_time, carrier, flight, origin, coalesce(tailnum, ''), line)"
_DEPARTURE = "format_string('%04d-%02d-%02dT%02d:%02d', year, month, day, dep_time DIV 100, dep_time % 100)"
#: Flights that left: when (milliseconds since 1970), and their order; those that left at one time are as in the feed.
_LEFT = f"""
SELECT *, struct(left_ms, {_ORDER}) AS place FROM (
    SELECT *, unix_millis(to_timestamp(time_hour)) + (minute + dep_delay) * 60000L AS left_ms
    FROM flights WHERE dep_delay IS NOT NULL)
"""

_FLEET_SQL = f"""
SELECT tailnum AS message_key, named_struct(
    'flights', count(1),
    'minutes_in_air', sum(coalesce(air_time, 0)),
    'miles', sum(distance),
    'worst_arrival_delay', max(arr_delay),
    'last_airport', max_by(dest, {_ORDER}) FILTER (WHERE dep_time IS NOT NULL),
    'first_departure', min_by({_DEPARTURE}, {_ORDER}) FILTER (WHERE dep_time IS NOT NULL),
    'last_departure', max_by({_DEPARTURE}, {_ORDER}) FILTER (WHERE dep_time IS NOT NULL)) AS expected
FROM flights WHERE tailnum IS NOT NULL GROUP BY tailnum
"""

_ROUTES_SQL = f"""
SELECT message_key, named_struct(
    'flights', flights, 'cancelled', cancelled, 'delays', delays,
    'moving_average', if(size(delays) = 0, NULL,
        round(aggregate(delays, 0L, (total, delay) -> total + delay) / size(delays), 6))) AS expected
FROM (
    SELECT message_key, flights, cancelled,
        transform(slice(timed, greatest(size(timed) - 19, 1), 20), one -> one.arr_delay) AS delays
    FROM (
        SELECT concat_ws('-', origin, dest, carrier) AS message_key, count(1) AS flights,
            count_if(dep_time IS NULL) AS cancelled,
            sort_array(collect_list(struct({_ORDER} AS ord, arr_delay)) FILTER (WHERE arr_delay IS NOT NULL)) AS timed
        FROM flights GROUP BY 1))
"""

_ROTATIONS_SQL = f"""
SELECT tailnum AS message_key, min(left_ms) AS start, named_struct(
    'start', min(left_ms),
    'end', max(left_ms) + 1,
    'flights', count(1),
    'miles', sum(distance),
    'minutes_in_air', sum(coalesce(air_time, 0)),
    'first_airport', min_by(origin, place),
    'last_destination', max_by(dest, place)) AS expected
FROM (
    SELECT *, count_if(begins) OVER (PARTITION BY tailnum ORDER BY place) AS number
    FROM (
        SELECT *, left_ms - lag(left_ms) OVER (PARTITION BY tailnum ORDER BY place)
            > {rotations.GAP // timedelta(milliseconds=1)} AS begins
        FROM ({_LEFT})))
GROUP BY tailnum, number
"""

_DELAYS_SQL = f"""
SELECT origin AS message_key, start, named_struct(
    'start', start,
    'end', start + {delays.HOUR // timedelta(milliseconds=1)},
    'departures', count(1),
    'delay', sum(dep_delay),
    'mean_delay', sum(dep_delay) / count(1),
    'worst_delay', max(dep_delay)) AS expected
FROM (SELECT *, left_ms - left_ms % {delays.HOUR // timedelta(milliseconds=1)} AS start FROM ({_LEFT}))
GROUP BY origin, start
"""


@dataclass(frozen=True, slots=True)
class _Store:
    """A store that is recomputed: the result as SQL, and the columns of the result."""

    processor: str
    store: str
    expected: str
    columns: str
    #: The parts of a result's key beside the key of the message.
    parts: tuple[str, ...] = ()


_STORES = (
    _Store("fleet", "aircraft", _FLEET_SQL, _FLEET),
    _Store("routes", "routes", _ROUTES_SQL, _ROUTES),
    _Store("rotations", "sessions", _ROTATIONS_SQL, _ROTATIONS, ("start",)),
    _Store("delays", "hours", _DELAYS_SQL, _DELAYS, ("start",)),
)


@dataclass(frozen=True, slots=True)
class FlightsComparison:
    """The comparison of one store: keys or windows on either side, how many differ, and the first of those."""

    processor: str
    keys: int
    mismatches: int
    examples: tuple[dict[str, Any], ...]


def verify_flights(
    spark: SparkSession, table_of: Callable[[str, str], str], published: Callable[[], Mapping[str, Path]]
) -> dict[str, FlightsComparison]:
    """Processor -> the comparison of its table with a recomputation from the CSV.

    ``table_of`` gives the table name of a processor and a store. ``published`` is called when all is recomputed; it
    returns when the tables are there. It maps each processor with windows to a file of JSON lines: what it sent, and
    the ``message_key``.

    Raises:
        SparkFailed: A table or the file could not be read.
        FlightsUnavailable: The sample data is not installed.
    """

    def compute(one: _Store) -> DataFrame:
        made = spark.sql(one.expected).persist()
        made.count()
        return made

    def compare(one: _Store, expected: DataFrame) -> FlightsComparison:
        table = quoted(table_of(one.processor, one.store))
        return _compare(one, expected, _seen(spark, table, closed.get(one.processor), one))

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-flights-") as folder,
        short_errors("verify the flights"),
        ThreadPoolExecutor(AT_ONCE, thread_name_prefix="flights") as threads,
    ):
        _load(spark, Path(folder)).createOrReplaceTempView("flights")
        computed = list(threads.map(compute, _STORES))
        closed = published()
        return {one.processor: one for one in threads.map(compare, _STORES, computed)}


def _load(spark: SparkSession, folder: Path) -> DataFrame:
    """The file's rows with their line numbers, which break the last ties in the feed's order."""
    path = folder / "flights.csv"
    with zipfile.ZipFile(flights_file()).open("flights.csv") as packed, path.open("wb") as plain:
        for number, line in enumerate(packed):
            plain.write((b"line" if number == 0 else b"%d" % number) + b"," + line)
    numbers = (
        "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay BIGINT, arr_time INT, "
        "sched_arr_time INT, arr_delay BIGINT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
        "air_time BIGINT, distance BIGINT, hour INT, minute INT, time_hour STRING"
    )
    header = path.open().readline().strip().replace('"', "").split(",")
    kinds = {part.split()[0]: part.split()[1] for part in numbers.split(", ")} | {"line": "BIGINT"}
    schema = ", ".join(f"{name} {kinds[name]}" for name in header)
    rows = spark.read.csv(str(path), schema=schema, header=True, nullValue="NA", mode="FAILFAST")
    return rows.persist()


def _seen(spark: SparkSession, table: str, sent: Path | None, store: _Store) -> DataFrame:
    """The values of a table; with ``sent``, its windows and those that were sent, equal ones once."""
    if sent is None:
        return spark.table(table).selectExpr("message_key", f"from_json(json, '{store.columns}') AS seen")
    columns = [part.split() for part in store.columns.split(", ")]
    typed = [f"CAST({name} AS {kind}) AS {name}" for name, kind in columns if name not in ("start", "end")]
    times = ["unix_millis(window_start) AS start", "unix_millis(window_end) AS end"]
    held = spark.table(table).where("window_start IS NOT NULL").selectExpr("message_key", *times, *typed)
    closed = spark.read.json(str(sent), schema=f"message_key STRING, {store.columns}", mode="FAILFAST")
    members = ", ".join(f"'{name}', {name}" for name, _ in columns)
    return closed.unionByName(held).distinct().selectExpr("message_key", "start", f"named_struct({members}) AS seen")


def _compare(store: _Store, expected: DataFrame, seen: DataFrame) -> FlightsComparison:
    both = expected.join(seen, ["message_key", *store.parts], "full_outer")
    equal = f"from_json(to_json(expected), '{store.columns}') <=> seen"
    compared = both.selectExpr("*", f"NOT ({equal}) OR expected IS NULL OR seen IS NULL AS differs")
    ((keys, mismatches),) = compared.selectExpr("count(1)", "count_if(differs)").collect()
    examples = compared.where("differs").drop("differs").orderBy("message_key", *store.parts).limit(EXAMPLES_MAX)
    shown = tuple(row.asDict(recursive=True) for row in examples.collect()) if mismatches else ()
    return FlightsComparison(store.processor, keys, mismatches, shown)
