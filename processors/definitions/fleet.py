"""fleet: running totals of each aircraft, from flights keyed by tail number.

Flights without a tail number have no key. A stateful step cannot process a message without a key, so these flights go
to the dead-letter topic.
"""

from __future__ import annotations

from typing import Any, TypedDict

from holdfast.processors.application.application import Application
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.topic import TopicConfig

application = Application(
    consumer_group="fleet",
    auto_offset_reset="earliest",
    dead_letter_topic="fleet-dead-letters",
    # Totals are read from state and tables, so a commit every two seconds is enough, and cheaper than more commits.
    commit_interval=2.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per aircraft: flights, minutes in the air, miles, worst arrival delay, last airport, first and "
    "last departure.",
    owners=("team:fleet-operations",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
flights = application.topic("flights", config=_layout)
fleet_updates = application.topic("fleet-updates", config=_layout)


class Aircraft(TypedDict):
    """The totals of one aircraft; the fields are the columns of the table."""

    flights: int
    minutes_in_air: int
    miles: int
    worst_arrival_delay: int | None
    last_airport: str | None
    first_departure: str | None
    last_departure: str | None


UNSEEN: Aircraft = {
    "flights": 0,
    "minutes_in_air": 0,
    "miles": 0,
    "worst_arrival_delay": None,
    "last_airport": None,
    "first_departure": None,
    "last_departure": None,
}


def departure_of(flight: dict[str, Any]) -> str | None:
    """The local time of departure as ``YYYY-MM-DDTHH:MM`` (24:00 ends a day); None for a cancelled flight."""
    left = flight["dep_time"]
    if left is None:
        return None
    return f"{flight['year']}-{flight['month']:02}-{flight['day']:02}T{left // 100:02}:{left % 100:02}"


def update_aircraft(flight: dict[str, Any], state: State) -> dict[str, Any]:
    """Adds one flight to its aircraft; returns the new totals, in which ``flights`` counts the updates."""
    aircraft: Aircraft = state.get("aircraft", default=UNSEEN)
    departure = departure_of(flight)
    delay, worst = flight["arr_delay"], aircraft["worst_arrival_delay"]
    aircraft = {
        "flights": aircraft["flights"] + 1,
        "minutes_in_air": aircraft["minutes_in_air"] + (flight["air_time"] or 0),
        "miles": aircraft["miles"] + flight["distance"],
        "worst_arrival_delay": delay if worst is None or (delay is not None and delay > worst) else worst,
        "last_airport": aircraft["last_airport"] if departure is None else flight["dest"],
        "first_departure": aircraft["first_departure"] or departure,
        "last_departure": departure or aircraft["last_departure"],
    }
    state.set("aircraft", aircraft)
    return {"tailnum": flight["tailnum"], **aircraft}


sdf = application.dataframe(flights)
sdf = sdf.apply(update_aircraft, stateful=True, store="aircraft", model=Aircraft)
sdf = sdf.to_topic(fleet_updates)
