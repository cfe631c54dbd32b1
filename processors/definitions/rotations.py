"""rotations: the rotations of each aircraft from New York, from flights keyed by tail number.

A rotation is a session window: departures of one aircraft that are at most two weeks apart. Event time is the actual
departure. The feed is in the order of the timetable. So the message of a flight that departs 21 hours late arrives 21
hours before its event time.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast.infra.sample_data.flights import Flight, left, left_ms
from holdfast.processors.application.application import Application
from holdfast.processors.engine.aggregates.aggregation import Count, Sum
from holdfast.processors.engine.aggregates.window_aggregates import Earliest, Latest
from holdfast.processors.engine.steps.topic import TopicConfig

#: Maximum time between two departures of an aircraft in the same rotation.
GAP = timedelta(days=14)
#: Maximum lateness of a flight: more than the greatest delay of a departure (22 hours), so that no flight is too late.
GRACE = timedelta(hours=24)
#: Retention of a rotation in the store after its end.
KEPT = timedelta(days=14)

application = Application(
    consumer_group="rotations",
    auto_offset_reset="earliest",
    dead_letter_topic="rotations-dead-letters",
    # Rotations are open for weeks, and each commit writes all changed rotations, so rare commits write fewer records.
    commit_interval=5.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per aircraft, sessions of departures at most 14 days apart: flights, miles, minutes in the air, first "
    "airport, last destination; each is sent once, when it is over.",
    owners=("team:fleet-operations",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
flights = application.topic("flights", config=_layout)
rotations_closed = application.topic("rotations-closed", config=_layout)


def minutes_in_air(flight: Flight) -> int:
    """Minutes in the air; 0 for a flight that was diverted."""
    return flight["air_time"] or 0


sdf = application.dataframe(flights)
sdf = sdf.filter(left)
sdf = sdf.set_timestamp(left_ms)
sessions = sdf.session_window(GAP, grace_ms=GRACE, name="sessions", retention=KEPT).agg(
    flights=Count(),
    miles=Sum("distance"),
    minutes_in_air=Sum(minutes_in_air),
    first_airport=Earliest("origin"),
    last_destination=Latest("dest"),
)
sdf = sessions.final(closing_strategy="partition").to_topic(rotations_closed)
