"""carriers: hourly delays of each airline, with the airline's name, from departures keyed by route.

Departures are grouped by carrier, and counted in hourly windows. The newest closed hour of each carrier is a row of a
table. This table is joined with the table of airlines. When an hour closes, the joined row changes and is sent.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict

from holdfast.infra.sample_data.flights import Flight, left, left_ms
from holdfast.processors.application.application import Application
from holdfast.processors.engine.aggregates.aggregation import Count, Max, Mean, Sum
from holdfast.processors.engine.steps.topic import TopicConfig

HOUR = timedelta(hours=1)
#: Maximum lateness of a flight. Messages arrive in the order of the timetable, but flights depart up to 22 hours late.
#: If a whole year is sent in half a minute, the event time of one partition can also lag days behind the others.
GRACE = timedelta(days=14)
#: Retention of an hourly window in the store after its end.
KEPT = timedelta(days=14)

application = Application(
    consumer_group="carriers",
    auto_offset_reset="earliest",
    dead_letter_topic="carriers-dead-letters",
    # A commit every two seconds is frequent enough for windows of hours and days, and costs less than more commits.
    commit_interval=2.0,
    # A killed worker's partitions are reassigned after the session timeout; 6 s is the broker's minimum.
    # An idle worker polls four times a second instead of twenty, because a delay of seconds is acceptable here.
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000, "fetch.wait.max.ms": 250},
    description="Per airline and hour: departures, their total, mean and worst delay; each hour is sent once, when it "
    "is over, with the airline's name.",
    owners=("team:network-planning",),
)

_layout = TopicConfig(num_partitions=4, replication_factor=1)
departures = application.topic("departures", config=_layout)
airlines = application.topic("airlines", config=_layout)
carriers_closed = application.topic("carriers-closed", config=_layout)


class Board(TypedDict):
    """The newest closed hour of an airline; the fields are the columns of the table."""

    name: str | None
    start: int
    end: int
    departures: int
    delay: int
    mean_delay: float
    worst_delay: int


def delay_of(flight: Flight) -> dict[str, Any]:
    """What the hours need of a departure: less to write and to read again."""
    return {"carrier": flight["carrier"], "dep_delay": flight["dep_delay"]}


def with_name(hour: dict[str, Any], airline: dict[str, Any] | None) -> dict[str, Any]:
    """An hour with the airline's name; None for one that the table lacks."""
    return {"name": None if airline is None else airline["name"], **hour}


sdf = application.dataframe(departures)
sdf = sdf.filter(left)
sdf = sdf.set_timestamp(left_ms)
sdf = sdf.apply(delay_of)
sdf = sdf.group_by("carrier")
hours = sdf.tumbling_window(HOUR, grace_ms=GRACE, name="hourly", retention=KEPT).agg(
    departures=Count(),
    delay=Sum("dep_delay"),
    mean_delay=Mean("dep_delay"),
    worst_delay=Max("dep_delay"),
)
newest = hours.final(closing_strategy="partition").to_table("newest")
board = newest.join(application.table(airlines), how="left", on_merge=with_name, name="board", model=Board)
sdf = board.to_stream().to_topic(carriers_closed)
