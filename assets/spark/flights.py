"""Recomputes the demo's results from the CSV with Spark and compares them key by key with the warehouse."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.infra.sample_data.flights import flights_file
from holdfast.infra.spark.session import short_errors
from holdfast.processors.snapshots.names import quoted

#: The most differing keys in a result.
EXAMPLES_MAX = 20

_FLEET = (
    "flights BIGINT, minutes_in_air BIGINT, miles BIGINT, worst_arrival_delay BIGINT, last_airport STRING, "
    "first_departure STRING, last_departure STRING"
)
_ROUTES = "flights BIGINT, cancelled BIGINT, delays ARRAY<BIGINT>, moving_average DOUBLE"

_ORDER = "struct(year, month, day, sched_dep_time, carrier, flight, origin, coalesce(tailnum, ''), line)"
_DEPARTURE = "format_string('%04d-%02d-%02dT%02d:%02d', year, month, day, dep_time DIV 100, dep_time % 100)"

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


@dataclass(frozen=True, slots=True)
class FlightsComparison:
    """The comparison of one store: keys on either side, the number that differ, and the first of those."""

    processor: str
    keys: int
    mismatches: int
    examples: tuple[dict[str, Any], ...]


def verify_flights(spark: SparkSession, table_of: Callable[[str, str], str]) -> dict[str, FlightsComparison]:
    """Processor -> the comparison of its table with a recomputation from the CSV.

    ``table_of`` gives the table name of a processor and a store.

    Raises:
        SparkFailed: A table or the file could not be read.
        FlightsUnavailable: The sample data is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-flights-") as folder, short_errors("verify the flights"):
        _load(spark, Path(folder)).createOrReplaceTempView("flights")
        return {
            "fleet": _compare(spark, "fleet", _FLEET_SQL, table_of("fleet", "aircraft"), _FLEET),
            "routes": _compare(spark, "routes", _ROUTES_SQL, table_of("routes", "routes"), _ROUTES),
        }


def _load(spark: SparkSession, folder: Path) -> DataFrame:
    """The file's rows with their line numbers, which break the last ties in the feed's order."""
    path = folder / "flights.csv"
    with zipfile.ZipFile(flights_file()).open("flights.csv") as packed, path.open("wb") as plain:
        for number, line in enumerate(packed):
            plain.write((b"line" if number == 0 else b"%d" % number) + b"," + line)
    numbers = (
        "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
        "sched_arr_time INT, arr_delay BIGINT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
        "air_time BIGINT, distance BIGINT, hour INT, minute INT, time_hour STRING"
    )
    header = path.open().readline().strip().replace('"', "").split(",")
    kinds = {part.split()[0]: part.split()[1] for part in numbers.split(", ")} | {"line": "BIGINT"}
    schema = ", ".join(f"{name} {kinds[name]}" for name in header)
    rows = spark.read.csv(str(path), schema=schema, header=True, nullValue="NA", mode="FAILFAST")
    return rows.persist()


def _compare(spark: SparkSession, processor: str, expected_sql: str, table: str, schema: str) -> FlightsComparison:
    seen = spark.table(quoted(table)).selectExpr("message_key", f"from_json(json, '{schema}') AS seen")
    both = spark.sql(expected_sql).join(seen, "message_key", "full_outer")
    differing = both.where(
        f"NOT (from_json(to_json(expected), '{schema}') <=> seen) OR expected IS NULL OR seen IS NULL"
    ).persist()
    examples = differing.orderBy("message_key").limit(EXAMPLES_MAX).collect()
    shown = tuple(row.asDict(recursive=True) for row in examples)
    result = FlightsComparison(processor, both.count(), differing.count(), shown)
    differing.unpersist()
    return result
