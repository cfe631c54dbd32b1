"""Recomputes the demo's results from the CSV files with Spark, and compares them with the warehouse.

Totals are compared key by key with their tables. Windows are compared with the union of the sent (closed) windows and
the windows in the table, which can still be open. The union contains each window once. For ``carriers``, all closed
hours are compared with the sent hours, and the newest hour of each carrier with the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.infra.sample_data.flights import (
    BY_MONTH,
    LONG_DELAY_MIN,
    NOT_AVAILABLE,
    flights_file,
    flights_table,
    sample_file,
)
from holdfast.infra.spark.session import short_errors
from holdfast.processors.definitions import RESULTS, carriers, delays, models, rotations, weather
from holdfast.processors.snapshots.names import quoted

#: Maximum number of differing keys that the result of a comparison contains as examples.
EXAMPLES_MAX = 20
#: Number of comparisons that run in parallel: Spark can execute one comparison while it plans another.
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
_WEATHER = (
    "flights BIGINT, cancelled BIGINT, minutes_late BIGINT, observed STRING, temperature DOUBLE, wind DOUBLE, "
    "rain DOUBLE, visibility DOUBLE"
)
_MODELS = "flights BIGINT, delay BIGINT, mean_delay DOUBLE, worst_delay BIGINT, seats BIGINT"
_CARRIERS = (
    "name STRING, start BIGINT, end BIGINT, departures BIGINT, delay BIGINT, mean_delay DOUBLE, worst_delay BIGINT"
)
_DELAYS = "start BIGINT, end BIGINT, departures BIGINT, delay BIGINT, mean_delay DOUBLE, worst_delay BIGINT"

#: The columns of the flights file that are needed to recompute the results.
_COLUMNS = (
    *("year", "month", "day", "dep_time", "dep_delay", "arr_delay", "carrier", "tailnum", "origin", "dest"),
    *("air_time", "distance", "minute", "time_hour"),
)
#: Number of flights that one Spark task reads.
_GROUP_ROWS = 100_000
#: SQL: the departed flights with departure time ``left_ms`` (milliseconds since 1970) and sort number ``place``.
#: Flights with equal departure times keep the order of the feed.
#: ``place`` combines departure time and position in the feed, because Spark sorts numbers faster than pairs.
#: A year has fewer than 10^6 flights, so the position in the feed fits into six digits.
_LEFT = """
SELECT * EXCEPT (place), left_ms * 1000000L + place AS place FROM (
    SELECT *, unix_millis(to_timestamp(time_hour)) + (minute + dep_delay) * 60000L AS left_ms
    FROM flights WHERE dep_delay IS NOT NULL)
"""


def _departure(flight: str) -> str:
    """SQL expression: a flight's departure time in the format of the processors, such as ``2013-01-31T24:00``."""
    columns = ("year", "month", "day", "dep_time DIV 100", "dep_time % 100")
    text = f"format_string('%04d-%02d-%02dT%02d:%02d', {', '.join(f'{flight}.{column}' for column in columns)})"
    return f"if({flight} IS NULL, NULL, {text})"


_FLEET_SQL = f"""
SELECT tailnum AS message_key, named_struct(
    'flights', flights,
    'minutes_in_air', minutes_in_air,
    'miles', miles,
    'worst_arrival_delay', worst_arrival_delay,
    'last_airport', last.dest,
    'first_departure', {_departure("first")},
    'last_departure', {_departure("last")}) AS expected
FROM (
    SELECT tailnum, count(1) AS flights, sum(coalesce(air_time, 0)) AS minutes_in_air, sum(distance) AS miles,
        max(arr_delay) AS worst_arrival_delay, min(departed) AS first, max(departed) AS last
    FROM (
        SELECT *, if(dep_time IS NULL, NULL, struct(place, year, month, day, dep_time, dest)) AS departed
        FROM flights WHERE tailnum IS NOT NULL)
    GROUP BY tailnum)
"""

_ROUTES_SQL = """
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
            sort_array(collect_list(struct(place, arr_delay)) FILTER (WHERE arr_delay IS NOT NULL)) AS timed
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

#: SQL: disrupted departures, each with the newest observation of its airport.
#: Rows are sorted by time; at equal times, observations come first.
_OBSERVED = f"""
SELECT *, if(at_ms - newest.at_ms <= {weather.TOLERANCE // timedelta(milliseconds=1)}, newest, NULL) AS seen FROM (
    SELECT *, last_value(observation) IGNORE NULLS OVER (PARTITION BY origin ORDER BY at_ms, place) AS newest
    FROM (
        SELECT origin, unix_millis(to_timestamp(time_hour)) + minute * 60000L AS at_ms, place, time_hour, dep_delay,
            NULL AS observation
        FROM flights WHERE dep_delay IS NULL OR dep_delay >= {LONG_DELAY_MIN}
        UNION ALL
        SELECT origin, unix_millis(to_timestamp(time_hour)), NULL, NULL, NULL,
            struct(unix_millis(to_timestamp(time_hour)) AS at_ms, time_hour, temp, wind_speed, precip, visib)
        FROM weather))
WHERE place IS NOT NULL
"""

_WEATHER_SQL = f"""
SELECT message_key, state_key, named_struct(
    'flights', flights, 'cancelled', cancelled, 'minutes_late', minutes_late, 'observed', seen.time_hour,
    'temperature', seen.temp, 'wind', seen.wind_speed, 'rain', seen.precip, 'visibility', seen.visib) AS expected
FROM (
    SELECT origin AS message_key, time_hour AS state_key, count(1) AS flights, count_if(dep_delay IS NULL) AS cancelled,
        sum(coalesce(dep_delay, 0)) AS minutes_late, max_by(seen, place) AS seen
    FROM ({_OBSERVED}) GROUP BY origin, time_hour)
"""

_MODELS_SQL = f"""
SELECT coalesce(model, '{models.UNKNOWN}') AS message_key, named_struct(
    'flights', count(1),
    'delay', sum(dep_delay),
    'mean_delay', sum(dep_delay) / count(1),
    'worst_delay', max(dep_delay),
    'seats', sum(coalesce(seats, 0))) AS expected
FROM flights LEFT JOIN planes USING (tailnum) WHERE dep_delay >= {LONG_DELAY_MIN} GROUP BY 1
"""

_CARRIER_HOUR_MS, _CARRIER_GRACE_MS = (each // timedelta(milliseconds=1) for each in (carriers.HOUR, carriers.GRACE))
#: SQL: the hourly windows that must be closed when the last flight has departed. The result has each of them with the
#: place ``sent``, because the processor sends every closed window. It also has the newest window of each carrier with
#: the place ``newest``, because the processor's table has only that one.
_CARRIERS_SQL = f"""
WITH closed AS (
    SELECT carrier, start, named_struct(
        'name', name,
        'start', start,
        'end', start + {_CARRIER_HOUR_MS},
        'departures', departures,
        'delay', delay,
        'mean_delay', delay / departures,
        'worst_delay', worst_delay) AS expected
    FROM (
        SELECT carrier, left_ms - left_ms % {_CARRIER_HOUR_MS} AS start, count(1) AS departures,
            sum(dep_delay) AS delay, max(dep_delay) AS worst_delay, max(max(left_ms)) OVER () AS now_ms
        FROM ({_LEFT}) GROUP BY 1, 2)
    LEFT JOIN airlines USING (carrier)
    WHERE start + {_CARRIER_HOUR_MS + _CARRIER_GRACE_MS} <= now_ms)
SELECT carrier AS message_key, 'sent' AS place, start, expected FROM closed
UNION ALL
SELECT carrier, 'newest', max(start), max_by(expected, start) FROM closed GROUP BY carrier
"""


@dataclass(frozen=True, slots=True)
class _Result:
    """The recomputed result of one processor of the demo: the SQL that computes it, and its columns."""

    processor: str
    expected: str
    columns: str
    #: Function that reads the result that the processor published.
    #: Arguments: Spark session, table name, file with sent records, this object.
    seen: Callable[[SparkSession, str, Path | None, _Result], DataFrame]
    #: Columns that are part of the result's key, in addition to the message key.
    parts: tuple[str, ...] = ()

    @property
    def as_struct(self) -> str:
        """SQL expression: all columns of the result as one struct."""
        names = [part.split()[0] for part in self.columns.split(", ")]
        members = ", ".join(f"'{name}', {name}" for name in names)
        return f"named_struct({members}) AS seen"


def _totals(spark: SparkSession, table: str, _: Path | None, result: _Result) -> DataFrame:
    """The totals in a processor's table: one row for each message key and state key."""
    return spark.table(table).selectExpr("message_key", "state_key", f"from_json(json, '{result.columns}') AS seen")


def _aggregates(spark: SparkSession, table: str, _: Path | None, result: _Result) -> DataFrame:
    """The typed columns of a table whose store is an aggregation."""
    return spark.table(table).where("state_key = 'aggregate'").selectExpr("message_key", result.as_struct)


def _windows(spark: SparkSession, table: str, sent: Path | None, result: _Result) -> DataFrame:
    """The windows in a processor's table and the windows that it sent, without duplicates."""
    columns = [part.split() for part in result.columns.split(", ")]
    typed = [f"CAST({name} AS {kind}) AS {name}" for name, kind in columns if name not in ("start", "end")]
    times = ["unix_millis(window_start) AS start", "unix_millis(window_end) AS end"]
    held = spark.table(table).where("window_start IS NOT NULL").selectExpr("message_key", *times, *typed)
    return _sent(spark, sent, result).unionByName(held).distinct().selectExpr("message_key", "start", result.as_struct)


def _sent_and_newest(spark: SparkSession, table: str, sent: Path | None, result: _Result) -> DataFrame:
    """Returns the windows that a processor sent, and the newest window of each key from the processor's table."""
    closed = _sent(spark, sent, result).selectExpr("message_key", "'sent' AS place", "start", result.as_struct)
    newest = spark.table(table).where("state_key = 'row'")
    return closed.unionAll(newest.selectExpr("message_key", "'newest'", "start", result.as_struct))


def _sent(spark: SparkSession, sent: Path | None, result: _Result) -> DataFrame:
    return spark.read.json(str(sent), schema=f"message_key STRING, {result.columns}", mode="FAILFAST")


_RESULTS = (
    _Result("fleet", _FLEET_SQL, _FLEET, _totals),
    _Result("routes", _ROUTES_SQL, _ROUTES, _totals),
    _Result("rotations", _ROTATIONS_SQL, _ROTATIONS, _windows, ("start",)),
    _Result("delays", _DELAYS_SQL, _DELAYS, _windows, ("start",)),
    _Result("weather", _WEATHER_SQL, _WEATHER, _totals, ("state_key",)),
    _Result("models", _MODELS_SQL, _MODELS, _aggregates),
    _Result("carriers", _CARRIERS_SQL, _CARRIERS, _sent_and_newest, ("place", "start")),
)

#: Names and columns of the CSV files, except the file of flights.
_BESIDE = {
    "weather": "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
    "wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour STRING",
    "planes": "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats BIGINT, "
    "speed INT, engine STRING",
    "airlines": "carrier STRING, name STRING",
}


@dataclass(frozen=True, slots=True)
class FlightsComparison:
    """The comparison of one processor's result.

    ``keys`` is the number of keys or windows that at least one side has. ``mismatches`` is the number of these that
    differ. ``examples`` are the first differences.
    """

    processor: str
    keys: int
    mismatches: int
    examples: tuple[dict[str, Any], ...]


def verify_flights(
    spark: SparkSession,
    table_of: Callable[[str, str], str],
    published: Callable[[str], Path | None],
    months: int = len(BY_MONTH),
) -> dict[str, FlightsComparison]:
    """Maps each processor to the comparison of its table with a recomputation from the CSV files.

    ``months`` is the number of months of the CSV files that are used.

    ``table_of`` returns the table name for a processor and a store. ``published`` is called with a processor, from
    several threads, after the recomputation. ``published`` waits until the processor's table exists. For a processor
    with windows, ``published`` returns a file of JSON lines: the sent records with their ``message_key``.

    Raises:
        SparkFailed: A table or the file could not be read.
        FlightsUnavailable: The sample data is not installed.
    """

    def compute(one: _Result) -> DataFrame:
        made = spark.sql(one.expected).persist()
        made.count()
        return made

    def compare(one: _Result, expected: DataFrame) -> FlightsComparison:
        table = quoted(table_of(one.processor, RESULTS[one.processor]))
        return _compare(one, expected, one.seen(spark, table, published(one.processor), one))

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-flights-") as folder,
        short_errors("verify the flights"),
        ThreadPoolExecutor(AT_ONCE, thread_name_prefix="flights") as threads,
    ):
        _load(spark, Path(folder), months).createOrReplaceTempView("flights")
        for name, columns in _BESIDE.items():
            _csv(spark, sample_file(f"{name}.csv"), columns).createOrReplaceTempView(name)
        computed = list(threads.map(compute, _RESULTS))
        return {one.processor: one for one in threads.map(compare, _RESULTS, computed)}


def _load(spark: SparkSession, folder: Path, months: int) -> DataFrame:
    """The flights of the first months, with their position in the feed as ``place``.

    Arrow reads and sorts the CSV file, and writes it as Parquet into ``folder``. Arrow is used for this, because Spark
    needs several times as long. Spark computes everything else.
    """
    import pyarrow as pa
    from pyarrow import parquet

    flights = flights_table(flights_file(), months=months).select(_COLUMNS)
    fed = flights.append_column("place", pa.array(range(flights.num_rows), pa.int32()))
    path = folder / "flights.parquet"
    parquet.write_table(fed, path, row_group_size=_GROUP_ROWS)
    return spark.read.parquet(str(path))


def _csv(spark: SparkSession, path: Path, schema: str) -> DataFrame:
    return spark.read.csv(str(path), schema=schema, header=True, nullValue=NOT_AVAILABLE, mode="FAILFAST")


def _compare(result: _Result, expected: DataFrame, seen: DataFrame) -> FlightsComparison:
    both = expected.join(seen, ["message_key", *result.parts], "full_outer")
    equal = f"from_json(to_json(expected), '{result.columns}') <=> seen"
    compared = both.selectExpr("*", f"NOT ({equal}) OR expected IS NULL OR seen IS NULL AS differs")
    ((keys, mismatches),) = compared.selectExpr("count(1)", "count_if(differs)").collect()
    examples = compared.where("differs").drop("differs").orderBy("message_key", *result.parts).limit(EXAMPLES_MAX)
    shown = tuple(row.asDict(recursive=True) for row in examples.collect()) if mismatches else ()
    return FlightsComparison(result.processor, keys, mismatches, shown)
