"""The expected results of the flights, computed without the engine: with Spark, and with a plain count per key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.infra.sample_data.flights import read_flights, route_of
from holdfast.infra.settings import Settings

if TYPE_CHECKING:
    from holdfast.assets.spark.flights import FlightsComparison


def compare_with_spark(settings: Settings) -> Mapping[str, FlightsComparison]:
    """Compute both results with Spark from the file of flights, and compare the tables with them key by key.

    Raises:
        holdfast.infra.spark.session.SparkFailed: The tables or the file could not be read.
    """
    # imported here, so loading this module needs no JVM
    from holdfast.assets.spark.flights import verify_flights
    from holdfast.infra.spark.session import spark_session, stop_spark
    from holdfast.processors.snapshots.names import table_name

    session = spark_session(settings, app_name="holdfast-demo")
    try:
        return verify_flights(session, table_name)
    finally:
        stop_spark(session)


def updates_expected() -> dict[str, Counter[str]]:
    """Processor -> key -> number of updates that its output topic must hold."""
    fleet: Counter[str] = Counter()
    routes: Counter[str] = Counter()
    for flight in read_flights():
        routes[route_of(flight)] += 1
        if flight["tailnum"] is not None:
            fleet[flight["tailnum"]] += 1
    return {"fleet": fleet, "routes": routes}
