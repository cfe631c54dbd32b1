"""weather: disrupted departures of each airport and hour, with the weather at the scheduled departure time.

A departure is disrupted if it is cancelled, or at least an hour late. The departure is joined with the airport's newest
weather observation before the departure time. The feed sends the weather of the whole year before the first flight, so
the join must keep all observations.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict

from holdfast.infra.sample_data.flights import Flight, is_disrupted
from holdfast.processors.application.application import Application
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.topic import TopicConfig

#: Maximum age of an observation, because a few hours of the year have no observation.
TOLERANCE = timedelta(hours=3)
#: Retention of observations for the join. The feed sends the weather up to a year before the last flights.
KEPT = timedelta(days=400)

application = Application(
    consumer_group="weather",
    auto_offset_reset="earliest",
    dead_letter_topic="weather-dead-letters",
    # Few messages change the state, so a commit every two seconds is frequent enough, and cheaper than more commits.
    commit_interval=2.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per airport and hour: flights that were cancelled or left an hour late or more, with the weather at "
    "their scheduled departure.",
    owners=("team:network-planning",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
origins = application.topic("origins", config=_layout)
observations = application.topic("weather", config=_layout)
weather_updates = application.topic("weather-updates", config=_layout)


class Hour(TypedDict):
    """The disrupted departures of an airport in one hour of the timetable; the fields are the columns of the table.

    Units are those of the input file: degrees Fahrenheit, miles per hour, inches of rain, miles of visibility.
    """

    flights: int
    cancelled: int
    minutes_late: int
    observed: str | None
    temperature: float | None
    wind: float | None
    rain: float | None
    visibility: float | None


def with_weather(flight: Flight, observation: dict[str, Any] | None) -> dict[str, Any]:
    """A disrupted departure with the weather; without an observation its columns are None."""
    seen = observation or {}
    return {
        "origin": flight["origin"],
        "hour": flight["time_hour"],
        "minutes_late": flight["dep_delay"],
        "observed": seen.get("time_hour"),
        "temperature": seen.get("temp"),
        "wind": seen.get("wind_speed"),
        "rain": seen.get("precip"),
        "visibility": seen.get("visib"),
    }


def update_hour(flight: dict[str, Any], state: State) -> dict[str, Any]:
    """Adds one departure to its hour; returns the hour, in which ``flights`` counts the updates."""
    hour: Hour | None = state.get(flight["hour"])
    minutes = flight["minutes_late"]
    made: Hour = {
        "flights": (0 if hour is None else hour["flights"]) + 1,
        "cancelled": (0 if hour is None else hour["cancelled"]) + (minutes is None),
        "minutes_late": (0 if hour is None else hour["minutes_late"]) + (minutes or 0),
        "observed": flight["observed"],
        "temperature": flight["temperature"],
        "wind": flight["wind"],
        "rain": flight["rain"],
        "visibility": flight["visibility"],
    }
    state.set(flight["hour"], made)
    return {"origin": flight["origin"], "hour": flight["hour"], **made}


def key_of(hour: dict[str, Any]) -> bytes:
    """The key of an update: airport and hour."""
    return f"{hour['origin']} {hour['hour']}".encode()


sdf = application.dataframe(origins)
sdf = sdf.filter(is_disrupted)
sdf = sdf.join_asof(
    application.dataframe(observations),
    how="left",
    on_merge=with_weather,
    grace_ms=KEPT,
    name="observations",
    tolerance_ms=TOLERANCE,
)
sdf = sdf.apply(update_hour, stateful=True, store="conditions", model=Hour)
sdf = sdf.to_topic(weather_updates, key=key_of)
