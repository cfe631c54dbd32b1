"""routes: how late each route runs, from the departures that are keyed by origin, destination and carrier.

The moving average runs over the last flights that arrived; cancelled flights are counted apart.
"""

from __future__ import annotations

from typing import Any

from holdfast import Application, State, TopicConfig
from holdfast.infra.sample_data.flights import route_of

#: So many arrivals make up the moving average.
WINDOW = 20

application = Application(
    consumer_group="routes",
    auto_offset_reset="earliest",
    dead_letter_topic="routes-dead-letters",
    # A killed worker's partitions are free again after this long; it is the broker's least.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000},
    description="Per route and carrier: moving average of the arrival delay over the last 20 arrivals, cancelled "
    "flights counted apart.",
    owners=("team:network-planning",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
departures = application.topic("departures", config=_layout)
routes_updates = application.topic("routes-updates", config=_layout)

UNSEEN: dict[str, Any] = {"flights": 0, "cancelled": 0, "delays": [], "moving_average": None}


def update_route(flight: dict[str, Any], state: State) -> dict[str, Any]:
    """Add one flight to its route; the route as it is now, where ``flights`` counts the updates."""
    route = state.get("route", default=UNSEEN)
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
sdf = sdf.apply(update_route, stateful=True, store="routes")
sdf = sdf.to_topic(routes_updates)
