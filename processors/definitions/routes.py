"""routes: average delay of each route, from departures keyed by origin, destination and carrier.

The moving average covers the last 20 flights that arrived. Cancelled flights are counted separately.
"""

from __future__ import annotations

from typing import Any, TypedDict

from holdfast.infra.sample_data.flights import route_of
from holdfast.processors.application.application import Application
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.topic import TopicConfig

#: Number of arrivals in the moving average.
WINDOW = 20

application = Application(
    consumer_group="routes",
    auto_offset_reset="earliest",
    dead_letter_topic="routes-dead-letters",
    # Totals are read from state and tables, so a commit every two seconds is enough, and cheaper than more commits.
    commit_interval=2.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per route and carrier: moving average of the arrival delay over the last 20 arrivals, cancelled "
    "flights counted apart.",
    owners=("team:network-planning",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
departures = application.topic("departures", config=_layout)
routes_updates = application.topic("routes-updates", config=_layout)


class Route(TypedDict):
    """The totals of one route; the fields are the columns of the table."""

    flights: int
    cancelled: int
    delays: list[int]
    moving_average: float | None


UNSEEN: Route = {"flights": 0, "cancelled": 0, "delays": [], "moving_average": None}


def update_route(flight: dict[str, Any], state: State) -> dict[str, Any]:
    """Adds one flight to its route; returns the new totals, in which ``flights`` counts the updates."""
    route: Route = state.get("route", default=UNSEEN)
    delay, delays = flight["arr_delay"], route["delays"]
    if delay is not None:
        delays = [*delays, delay][-WINDOW:]
    route = {
        "flights": route["flights"] + 1,
        "cancelled": route["cancelled"] + (flight["dep_time"] is None),
        "delays": delays,
        "moving_average": round(sum(delays) / len(delays), 6) if delays else None,
    }
    state.set("route", route)
    return {"route": route_of(flight), **route}


sdf = application.dataframe(departures)
sdf = sdf.apply(update_route, stateful=True, store="routes", model=Route)
sdf = sdf.to_topic(routes_updates)
